//! Which API server is asked, as whom, and through what (field reports P2 to P8).
#![allow(clippy::unwrap_used)] // tests: a panic is the failure

mod support;

use std::io::{Read as _, Write as _};

use support::{Server, ichor_env, kubeconfig};

struct Files {
    folder: tempfile::TempDir,
}

impl Files {
    fn new() -> Self {
        Self {
            folder: tempfile::tempdir().unwrap(),
        }
    }

    fn write(&self, name: &str, text: &str) -> String {
        let file = self.folder.path().join(name);
        std::fs::write(&file, text).unwrap();
        file.to_str().unwrap().to_owned()
    }
}

fn two(one: &Server, other: &Server) -> String {
    format!(
        "{}- name: two\n  context:\n    cluster: c-two\n    user: u-one\n    namespace: elsewhere\n",
        kubeconfig(&one.url, "").replace(
            "users:",
            &format!(
                "- name: c-two\n  cluster:\n    server: {}\nusers:",
                other.url
            )
        )
    )
}

fn header(server: &Server, name: &str) -> Vec<String> {
    server
        .asked()
        .first()
        .and_then(|a| a.headers.get(name).cloned())
        .unwrap_or_default()
}

#[test]
fn every_request_goes_to_the_chosen_context_and_its_namespace() {
    let (one, other) = (Server::start(), Server::start());
    let files = Files::new();
    let file = files.write("config", &two(&one, &other));
    let ran = ichor_env(&[("KUBECONFIG", &file)], "status --context two", None);
    assert_eq!(
        ran.code, 1,
        "nothing of Ichor's is in that namespace there: {ran:?}"
    );
    assert!(one.asked().is_empty());
    assert!(
        other
            .asked()
            .iter()
            .all(|a| a.uri.contains("/namespaces/elsewhere/")),
        "{:?}",
        other.asked()
    );
    ichor_env(
        &[("KUBECONFIG", &file)],
        "status --context two -n third",
        None,
    );
    assert!(
        other
            .asked()
            .last()
            .unwrap()
            .uri
            .contains("/namespaces/third/")
    );
    let ran = ichor_env(&[("KUBECONFIG", &file)], "status --context three", None);
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("\"three\" does not exist") && ran.err.contains("one, two"),
        "{}",
        ran.err
    );
}

#[test]
fn a_list_in_kubeconfig_is_merged_and_the_first_file_wins() {
    let (one, other) = (Server::start(), Server::start());
    let files = Files::new();
    let first = files.write(
        "first",
        "apiVersion: v1\nkind: Config\ncurrent-context: one\n",
    );
    let second = files.write("second", &kubeconfig(&one.url, ""));
    let third = files.write("third", &kubeconfig(&other.url, ""));
    let missing = format!("{first}.missing");
    let list = std::env::join_paths([&first, &missing, &second, &third]).unwrap();
    let ran = ichor_env(&[("KUBECONFIG", list.to_str().unwrap())], "version", None);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(!one.asked().is_empty() && other.asked().is_empty());
    // The flag beats the variable, and what it names must be there.
    let ran = ichor_env(
        &[("KUBECONFIG", &second)],
        &format!("version --kubeconfig {third}"),
        None,
    );
    assert_eq!((ran.code, other.asked().is_empty()), (0, false));
    assert_eq!(
        ichor_env(
            &[("KUBECONFIG", &second)],
            &format!("version --kubeconfig {missing}"),
            None
        )
        .code,
        1
    );
}

#[test]
fn the_home_folders_file_is_the_last_resort_and_nothing_comes_after_it() {
    let server = Server::start();
    let files = Files::new();
    std::fs::create_dir(files.folder.path().join(".kube")).unwrap();
    files.write(".kube/config", &kubeconfig(&server.url, ""));
    let home = files.folder.path().to_str().unwrap();
    assert_eq!(ichor_env(&[("HOME", home)], "version", None).code, 0);
    let ran = ichor_env(
        &[
            ("HOME", "/nonexistent"),
            ("KUBERNETES_SERVICE_HOST", "127.0.0.1"),
            ("KUBERNETES_SERVICE_PORT", "1"),
        ],
        "version",
        None,
    );
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("no kubeconfig found"), "{}", ran.err);
}

#[test]
fn impersonation_is_sent_with_every_request() {
    let server = Server::start();
    let files = Files::new();
    let file = files.write("config", &kubeconfig(&server.url, ""));
    ichor_env(
        &[("KUBECONFIG", &file)],
        "version --as alice --as-group g1 --as-group g2 --as-uid 7 --as-user-extra reason=x",
        None,
    );
    assert_eq!(server.asked().len(), 2);
    for asked in server.asked() {
        assert_eq!(asked.headers["impersonate-user"], ["alice"]);
        assert_eq!(asked.headers["impersonate-group"], ["g1", "g2"]);
        assert_eq!(asked.headers["impersonate-uid"], ["7"]);
        assert_eq!(asked.headers["impersonate-extra-reason"], ["x"]);
        assert_eq!(asked.headers["authorization"], ["Bearer token-one"]);
    }
}

#[test]
fn flags_beat_the_kubeconfig_and_suffice_without_one() {
    let (one, other) = (Server::start(), Server::start());
    let files = Files::new();
    let file = files.write("config", &kubeconfig(&one.url, ""));
    let words = format!("version --server {} --token t2", other.url);
    assert_eq!(ichor_env(&[("KUBECONFIG", &file)], &words, None).code, 0);
    assert!(one.asked().is_empty());
    assert_eq!(header(&other, "authorization"), ["Bearer t2"]);
    assert_eq!(ichor_env(&[], &words, None).code, 0);
}

/// Answers every request itself, as an HTTP proxy would be asked, and tells what was asked.
fn proxy() -> (String, std::sync::mpsc::Receiver<String>) {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (tell, told) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let mut stream = stream;
            let mut head = [0; 2048];
            let read = stream.read(&mut head).unwrap_or(0);
            let _ = tell.send(
                String::from_utf8_lossy(&head[..read])
                    .lines()
                    .next()
                    .unwrap_or_default()
                    .to_owned(),
            );
            let _ = stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\ncontent-length: 0\r\n\r\n");
        }
    });
    (url, told)
}

#[test]
fn the_kubeconfigs_proxy_is_used_whatever_the_environment_says() {
    let (url, told) = proxy();
    let files = Files::new();
    let file = files.write(
        "config",
        &kubeconfig(
            "https://api.example.invalid:6443",
            &format!("    proxy-url: {url}\n"),
        ),
    );
    let ran = ichor_env(
        &[
            ("KUBECONFIG", &file),
            ("HTTPS_PROXY", "http://127.0.0.1:1"),
            ("NO_PROXY", "*"),
        ],
        "version --request-timeout 5s",
        None,
    );
    assert_eq!(ran.code, 1);
    let asked = told
        .recv_timeout(std::time::Duration::from_secs(30))
        .unwrap();
    assert_eq!(asked, "CONNECT api.example.invalid:6443 HTTP/1.1");
}

#[test]
fn no_proxy_is_asked_about_the_server_and_not_about_the_proxy() {
    let (url, told) = proxy();
    let files = Files::new();
    let file = files.write(
        "config",
        &kubeconfig("https://api.example.invalid:6443", ""),
    );
    let run = |no_proxy: &str| {
        ichor_env(
            &[
                ("KUBECONFIG", &file),
                ("HTTPS_PROXY", &url),
                ("NO_PROXY", no_proxy),
            ],
            "version --request-timeout 5s",
            None,
        )
    };
    run("example.invalid");
    assert!(told.try_recv().is_err());
    run("127.0.0.1");
    assert!(
        told.recv_timeout(std::time::Duration::from_secs(30))
            .unwrap()
            .starts_with("CONNECT ")
    );
}

#[cfg(unix)]
fn exec_config(files: &Files, server: &Server, script: &str, more: &str) -> String {
    use std::os::unix::fs::PermissionsExt as _;
    let plugin = files.write("plugin.sh", &format!("#!/bin/sh\n{script}\n"));
    std::fs::set_permissions(&plugin, std::fs::Permissions::from_mode(0o755)).unwrap();
    let user = format!(
        "    exec:\n      apiVersion: client.authentication.k8s.io/v1\n      command: {plugin}\n      provideClusterInfo: true\n      interactiveMode: IfAvailable\n{more}"
    );
    files.write(
        "config",
        &kubeconfig(&server.url, "").replace("    token: token-one\n", &user),
    )
}

#[cfg(unix)]
#[test]
fn credential_plugins_are_run_and_told_about_the_cluster() {
    let server = Server::start();
    let files = Files::new();
    let script = r#"case "$KUBERNETES_EXEC_INFO" in *'"server"'*) token=knows-the-cluster;; *) token=does-not;; esac
echo "{\"apiVersion\":\"client.authentication.k8s.io/v1\",\"kind\":\"ExecCredential\",\"status\":{\"token\":\"$token\"}}""#;
    let file = exec_config(&files, &server, script, "");
    let ran = ichor_env(&[("KUBECONFIG", &file)], "version", None);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        header(&server, "authorization"),
        ["Bearer knows-the-cluster"]
    );
}

#[cfg(unix)]
#[test]
fn a_token_spares_the_credential_plugin() {
    let server = Server::start();
    let files = Files::new();
    let file = exec_config(&files, &server, "exit 1", "    token: static\n");
    let ran = ichor_env(&[("KUBECONFIG", &file)], "version", None);
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(header(&server, "authorization"), ["Bearer static"]);
}

#[cfg(unix)]
#[test]
fn a_plugin_that_must_talk_to_a_person_is_not_started_without_one() {
    let server = Server::start();
    let files = Files::new();
    let file = exec_config(&files, &server, "read answer; exit 1", "");
    let text = std::fs::read_to_string(&file)
        .unwrap()
        .replace("IfAvailable", "Always");
    std::fs::write(&file, text).unwrap();
    let ran = ichor_env(&[("KUBECONFIG", &file)], "version", None);
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("must talk to a person"), "{}", ran.err);
}
