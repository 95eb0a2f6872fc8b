//! From flags, environment and files to one resolved configuration, as kubectl does it.
//! Every request of a command uses that one (field reports P2 to P8).

use std::collections::BTreeMap;
use std::path::PathBuf;

use kube::Config;
use kube::config::{
    AuthInfo, Cluster, Context, ExecInteractiveMode, KubeConfigOptions, Kubeconfig, NamedAuthInfo,
    NamedCluster, NamedContext,
};

use crate::cli::ConnectionFlags;
use crate::error::Error;
use crate::io::Env;
use crate::proxy;

/// What a command connects with.
#[derive(Debug)]
pub struct Resolved {
    /// The configuration for the client.
    pub config: Config,
    /// The namespace of `-n`, else of the context, else `default`.
    pub namespace: String,
}

fn bad(what: impl Into<String>, next: impl Into<String>) -> Error {
    Error::Kubeconfig {
        what: what.into(),
        next: next.into(),
    }
}

/// The files that make up the kubeconfig: `--kubeconfig` alone, else the list in
/// `KUBECONFIG`, else `~/.kube/config`.
fn files(flags: &ConnectionFlags, env: &Env) -> (Vec<PathBuf>, bool) {
    if let Some(file) = &flags.kubeconfig {
        return (vec![file.clone()], true);
    }
    if let Some(list) = env.get("KUBECONFIG") {
        let files: Vec<PathBuf> = std::env::split_paths(list)
            .filter(|path| !path.as_os_str().is_empty())
            .collect();
        if !files.is_empty() {
            return (files, false);
        }
    }
    let default = env.home().map(|home| home.join(".kube").join("config"));
    (default.into_iter().collect(), false)
}

fn load(flags: &ConnectionFlags, env: &Env) -> Result<Kubeconfig, Error> {
    let (files, named) = files(flags, env);
    let mut merged = Kubeconfig::default();
    let mut found = false;
    for file in &files {
        // A file of the list that is not there is passed over, as kubectl does; one that
        // was named on the command line must be there.
        if !named && !file.exists() {
            continue;
        }
        let read = Kubeconfig::read_from(file)
            .map_err(|error| bad(error.to_string(), "Name another file with --kubeconfig."))?;
        merged = merged
            .merge(read)
            .map_err(|error| bad(error.to_string(), "Check the files in KUBECONFIG."))?;
        found = true;
    }
    if !found && flags.server.is_none() {
        let looked = files
            .iter()
            .map(|f| f.display().to_string())
            .collect::<Vec<_>>()
            .join(", ");
        return Err(bad(
            format!("no kubeconfig found (looked for {looked})"),
            "Name one with --kubeconfig or KUBECONFIG. Ichor never falls back to another cluster by itself.",
        ));
    }
    Ok(merged)
}

fn context(kubeconfig: &Kubeconfig, flags: &ConnectionFlags) -> Result<Context, Error> {
    let name = flags
        .context
        .as_ref()
        .or(kubeconfig.current_context.as_ref())
        .filter(|name| !name.is_empty());
    let Some(name) = name else {
        // With enough said on the command line no context is needed.
        if flags.server.is_some() || flags.cluster.is_some() {
            return Ok(Context {
                cluster: String::new(),
                user: None,
                namespace: None,
                extensions: None,
                other: BTreeMap::default(),
            });
        }
        return Err(bad(
            "the kubeconfig has no current context",
            "Choose one with --context or kubectl config use-context.",
        ));
    };
    kubeconfig
        .contexts
        .iter()
        .find(|c| &c.name == name)
        .and_then(|c| c.context.clone())
        .ok_or_else(|| {
            let known = kubeconfig
                .contexts
                .iter()
                .map(|c| c.name.as_str())
                .collect::<Vec<_>>()
                .join(", ");
            bad(
                format!("context {name:?} does not exist"),
                format!("Known contexts: {known}"),
            )
        })
}

fn cluster(
    kubeconfig: &Kubeconfig,
    flags: &ConnectionFlags,
    context: &Context,
) -> Result<Cluster, Error> {
    let name = flags.cluster.as_ref().unwrap_or(&context.cluster);
    let mut cluster = kubeconfig
        .clusters
        .iter()
        .find(|c| &c.name == name)
        .and_then(|c| c.cluster.clone())
        .or_else(|| flags.server.as_ref().map(|_| Cluster::default()))
        .ok_or_else(|| {
            bad(
                format!("cluster {name:?} does not exist in the kubeconfig"),
                "Choose another with --context or --cluster.",
            )
        })?;
    if let Some(server) = &flags.server {
        cluster.server = Some(server.clone());
    }
    if let Some(file) = &flags.certificate_authority {
        cluster.certificate_authority = Some(file.display().to_string());
        cluster.certificate_authority_data = None;
    }
    if let Some(name) = &flags.tls_server_name {
        cluster.tls_server_name = Some(name.clone());
    }
    if flags.insecure_skip_tls_verify {
        cluster.insecure_skip_tls_verify = Some(true);
        cluster.certificate_authority = None;
        cluster.certificate_authority_data = None;
    }
    Ok(cluster)
}

fn user(
    kubeconfig: &Kubeconfig,
    flags: &ConnectionFlags,
    context: &Context,
) -> Result<AuthInfo, Error> {
    let name = flags.user.as_ref().or(context.user.as_ref());
    let found = name.and_then(|name| {
        kubeconfig
            .auth_infos
            .iter()
            .find(|u| &u.name == name)
            .and_then(|u| u.auth_info.clone())
    });
    let mut user = match (found, &flags.user) {
        (Some(user), _) => user,
        (None, Some(name)) => {
            return Err(bad(
                format!("user {name:?} does not exist in the kubeconfig"),
                "Choose another with --user.",
            ));
        }
        (None, None) => AuthInfo::default(),
    };
    if let Some(token) = &flags.token {
        // Tokens are a type of their own there; serde is the way in.
        let given: AuthInfo = serde_json::from_value(serde_json::json!({ "token": token }))
            .map_err(|error| bad(format!("--token: {error}"), ""))?;
        user.token = given.token;
        user.token_file = None;
        user.auth_provider = None;
    }
    if let Some(file) = &flags.client_certificate {
        user.client_certificate = Some(file.display().to_string());
        user.client_certificate_data = None;
    }
    if let Some(file) = &flags.client_key {
        user.client_key = Some(file.display().to_string());
        user.client_key_data = None;
    }
    impersonate(&mut user, flags)?;
    // kubectl does not run the plugin where the user says who they are otherwise (P8).
    let certificate = (user.client_certificate.is_some() || user.client_certificate_data.is_some())
        && (user.client_key.is_some() || user.client_key_data.is_some());
    if user.token.is_some() || user.token_file.is_some() || user.username.is_some() || certificate {
        user.exec = None;
    }
    Ok(user)
}

fn impersonate(user: &mut AuthInfo, flags: &ConnectionFlags) -> Result<(), Error> {
    if let Some(name) = &flags.as_user {
        user.impersonate = Some(name.clone());
    }
    if let Some(uid) = &flags.as_uid {
        user.impersonate_uid = Some(uid.clone());
    }
    if !flags.as_group.is_empty() {
        user.impersonate_groups = Some(flags.as_group.clone());
    }
    for pair in &flags.as_user_extra {
        let (key, value) = pair
            .split_once('=')
            .ok_or_else(|| Error::Usage(format!("--as-user-extra {pair:?} is no KEY=VALUE")))?;
        user.impersonate_user_extra
            .get_or_insert_default()
            .entry(key.to_owned())
            .or_default()
            .push(value.to_owned());
    }
    let others = user.impersonate_groups.is_some()
        || user.impersonate_uid.is_some()
        || user.impersonate_user_extra.is_some();
    if others && user.impersonate.is_none() {
        return Err(Error::Usage(
            "--as-group, --as-uid and --as-user-extra need --as: a user to impersonate".to_owned(),
        ));
    }
    Ok(())
}

/// Resolves flags, environment and files.
///
/// `interactive`: whether a credential plugin may talk to a person.
pub async fn resolve(
    flags: &ConnectionFlags,
    env: &Env,
    interactive: bool,
) -> Result<Resolved, Error> {
    let kubeconfig = load(flags, env)?;
    let context = context(&kubeconfig, flags)?;
    let cluster = cluster(&kubeconfig, flags, &context)?;
    let user = user(&kubeconfig, flags, &context)?;
    if let Some(exec) = &user.exec
        && exec.interactive_mode == Some(ExecInteractiveMode::Always)
        && !interactive
    {
        return Err(bad(
            format!(
                "the credential plugin {} must talk to a person, and there is no terminal",
                exec.command.as_deref().unwrap_or_default()
            ),
            "Run it on a terminal, or choose a context with other credentials.",
        ));
    }
    let proxy_url = cluster.proxy_url.clone();
    let named = context.namespace.clone().filter(|n| !n.is_empty());
    let mut config = build(cluster, user).await?;
    config.proxy_url = match proxy::choose(proxy_url.as_deref(), &config.cluster_url, env) {
        None => None,
        Some(proxy) => Some(proxy.parse().map_err(|_| {
            bad(
                format!("the proxy {proxy:?} is no URL"),
                "Correct proxy-url in the kubeconfig, or HTTPS_PROXY.",
            )
        })?),
    };
    let namespace = flags
        .namespace
        .clone()
        .or(named)
        .unwrap_or_else(|| "default".to_owned());
    config.default_namespace.clone_from(&namespace);
    Ok(Resolved { config, namespace })
}

async fn build(cluster: Cluster, user: AuthInfo) -> Result<Config, Error> {
    const NAME: &str = "chosen";
    let chosen = Kubeconfig {
        clusters: vec![NamedCluster {
            name: NAME.to_owned(),
            cluster: Some(cluster),
            other: BTreeMap::default(),
        }],
        auth_infos: vec![NamedAuthInfo {
            name: NAME.to_owned(),
            auth_info: Some(user),
            other: BTreeMap::default(),
        }],
        contexts: vec![NamedContext {
            name: NAME.to_owned(),
            context: Some(Context {
                cluster: NAME.to_owned(),
                user: Some(NAME.to_owned()),
                namespace: None,
                extensions: None,
                other: BTreeMap::default(),
            }),
            other: BTreeMap::default(),
        }],
        current_context: Some(NAME.to_owned()),
        ..Kubeconfig::default()
    };
    Config::from_custom_kubeconfig(chosen, &KubeConfigOptions::default())
        .await
        .map_err(|error| {
            bad(
                crate::error::chain(&error),
                "See what this context holds: kubectl config view --minify",
            )
        })
}

/// Names of the contexts, for completion; none where there is no kubeconfig.
pub fn context_names(flags: &ConnectionFlags, env: &Env) -> Vec<String> {
    load(flags, env)
        .map(|kubeconfig| kubeconfig.contexts.into_iter().map(|c| c.name).collect())
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn exec_spared(more: &str) -> bool {
        let text = format!(
            "apiVersion: v1\nkind: Config\nusers:\n- name: u\n  user:\n    exec: {{command: plugin}}\n{more}"
        );
        let kubeconfig = Kubeconfig::from_yaml(&text).unwrap();
        let flags = ConnectionFlags {
            user: Some("u".into()),
            ..ConnectionFlags::default()
        };
        let context: Context = serde_json::from_str(r#"{"cluster": "c"}"#).unwrap();
        user(&kubeconfig, &flags, &context).unwrap().exec.is_none()
    }

    #[test]
    fn whoever_says_who_they_are_otherwise_spares_the_credential_plugin() {
        assert!(!exec_spared(""));
        // A certificate without its key says nothing.
        assert!(!exec_spared("    client-certificate-data: eA==\n"));
        assert!(exec_spared(
            "    client-certificate-data: eA==\n    client-key-data: eA==\n"
        ));
        assert!(exec_spared(
            "    client-certificate: /c\n    client-key: /k\n"
        ));
        assert!(exec_spared("    tokenFile: /t\n"));
    }
}
