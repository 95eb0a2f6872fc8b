//! The users of the control plane, and the kubeconfigs that name them.

use std::fmt::Write as _;

use base64::Engine as _;

use crate::error::{BedError, Result};

/// A user of the API server's token file.
#[derive(Clone, Debug)]
pub struct User {
    /// User name.
    pub name: String,
    /// Groups.
    pub groups: Vec<String>,
    /// Bearer token.
    pub token: String,
}

impl User {
    /// A user with a random token.
    pub fn new(name: &str, groups: &[&str]) -> Self {
        let token: u128 = rand::random();
        Self {
            name: name.to_owned(),
            groups: groups.iter().map(ToString::to_string).collect(),
            token: format!("{token:032x}"),
        }
    }
}

/// The users that every bed has.
pub(super) fn own() -> Vec<User> {
    vec![
        User::new("admin", &["system:masters"]),
        User::new("editor", &[]),
        User::new("viewer", &[]),
        // The bed's own hands: the stand-ins for kubelet and scheduler.
        User::new("bed", &["system:masters"]),
        User::new("system:kube-controller-manager", &[]),
    ]
}

/// The API server's `--token-auth-file`.
pub(super) fn token_file(users: &[User]) -> String {
    let mut text = String::new();
    for user in users {
        let groups = user.groups.join(",");
        let _ = writeln!(
            text,
            "{},{},{},\"{groups}\"",
            user.token, user.name, user.name
        );
    }
    text
}

/// A context of a kubeconfig.
#[derive(Clone, Debug)]
pub struct Context {
    name: String,
    user: String,
    server: String,
}

impl Context {
    /// Context `name`: as `user`, at the server with the URL `server`.
    pub fn new(name: &str, user: &str, server: &str) -> Self {
        Self {
            name: name.to_owned(),
            user: user.to_owned(),
            server: server.to_owned(),
        }
    }
}

/// A kubeconfig with `contexts` of some of `users`; every context sets the namespace
/// `default`, the first is the current one.
pub(super) fn kubeconfig(contexts: &[Context], users: &[User], ca: &str) -> Result<String> {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    let (mut clusters, mut logins, mut names) = (String::new(), String::new(), String::new());
    for context in contexts {
        let Context { name, user, server } = context;
        let found = users.iter().find(|u| u.name == *user);
        let token = &found
            .ok_or_else(|| BedError::Unknown {
                kind: "user",
                name: user.clone(),
                known: users
                    .iter()
                    .map(|u| u.name.as_str())
                    .collect::<Vec<_>>()
                    .join(", "),
            })?
            .token;
        let _ = write!(
            clusters,
            "- name: {name}\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n"
        );
        let _ = write!(logins, "- name: {name}\n  user:\n    token: {token}\n");
        let _ = write!(
            names,
            "- name: {name}\n  context:\n    cluster: {name}\n    user: {name}\n    namespace: default\n"
        );
    }
    let current = contexts.first().map_or("", |c| c.name.as_str());
    Ok(format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: {current}\nclusters:\n{clusters}users:\n{logins}contexts:\n{names}"
    ))
}

/// A kubeconfig with one context, authenticated by a bearer token.
pub(crate) fn kubeconfig_with_token(
    server: &str,
    ca: &str,
    token: &str,
    namespace: &str,
) -> String {
    let ca = base64::engine::general_purpose::STANDARD.encode(ca);
    format!(
        "apiVersion: v1\nkind: Config\ncurrent-context: it\n\
         clusters:\n- name: it\n  cluster:\n    server: {server}\n    certificate-authority-data: {ca}\n\
         users:\n- name: it\n  user:\n    token: {token}\n\
         contexts:\n- name: it\n  context:\n    cluster: it\n    user: it\n    namespace: {namespace}\n"
    )
}
