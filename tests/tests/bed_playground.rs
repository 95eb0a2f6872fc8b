//! The program `playground`, as a person or a script uses it.

#![allow(clippy::unwrap_used, reason = "a test that cannot go on fails there")]

use std::io::{BufRead as _, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

/// The first start may build the control plane (11 minutes) and the agent.
const UP: Duration = Duration::from_mins(30);
const SOON: Duration = Duration::from_mins(1);

/// A playground in a process of its own, ended with the test.
struct Playground {
    process: Child,
    state: tempfile::TempDir,
    ready: Value,
}

impl Playground {
    fn up(args: &[&str]) -> Self {
        let state = tempfile::tempdir().unwrap();
        let mut process = Command::new(env!("CARGO_BIN_EXE_playground"))
            .args(["up", "--state"])
            .arg(state.path())
            .args(args)
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let (line, lines) = mpsc::channel();
        let out = process.stdout.take().unwrap();
        std::thread::spawn(move || {
            for text in BufReader::new(out).lines() {
                let _ = line.send(text.unwrap());
            }
        });
        let ready = match lines.recv_timeout(UP) {
            Ok(line) => serde_json::from_str(&line).unwrap(),
            Err(error) => {
                let _ = process.kill();
                panic!("the playground did not come up: {error}");
            }
        };
        Self {
            process,
            state,
            ready,
        }
    }

    fn ctl(&self, args: &[&str]) -> Output {
        Command::new(env!("CARGO_BIN_EXE_playground"))
            .args(["ctl", "--state"])
            .arg(self.state.path())
            .args(args)
            .output()
            .unwrap()
    }

    /// What a command says that must succeed.
    fn told(&self, args: &[&str]) -> String {
        let output = self.ctl(args);
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{args:?}: {error}");
        String::from_utf8(output.stdout).unwrap()
    }

    fn asked(&self, args: &[&str]) -> Value {
        serde_json::from_str(&self.told(args)).unwrap()
    }

    fn kubectl(&self, args: &[&str]) -> Output {
        Command::new(self.ready["kubectl"].as_str().unwrap())
            .env("KUBECONFIG", self.ready["kubeconfig"].as_str().unwrap())
            .args(args)
            .output()
            .unwrap()
    }

    /// The one agent whose pod was not replaced.
    fn agent(&self) -> Value {
        let all = self.asked(&["agent", "status", "-o", "json"]);
        let mut current = all
            .as_array()
            .unwrap()
            .iter()
            .filter(|a| a["replaced"] == false);
        let agent = current.next().unwrap().clone();
        assert!(current.next().is_none(), "{all}");
        agent
    }

    /// Processes that the bed has started and that run.
    fn children(&self) -> Vec<(PathBuf, i32)> {
        let pids = self.state.path().join("pids");
        let read = |entry: std::io::Result<std::fs::DirEntry>| {
            let path = entry.unwrap().path();
            let text = std::fs::read_to_string(&path).ok()?;
            let pid = text.split_whitespace().next()?.parse().ok()?;
            Some((path, pid))
        };
        std::fs::read_dir(pids).unwrap().filter_map(read).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.process.id()).unwrap();
        kill_process(Pid::from_raw(pid).unwrap(), signal).unwrap();
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

fn wait_until(what: &str, mut look: impl FnMut() -> bool) {
    let end = Instant::now() + SOON;
    while !look() {
        assert!(Instant::now() < end, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn runs(pid: i32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // A zombie has ended.
    stat.rsplit(") ")
        .next()
        .is_some_and(|rest| !rest.is_empty() && !rest.starts_with('Z'))
}

fn exit_code(output: &Output) -> Option<i32> {
    output.status.code()
}

#[test]
fn nothing_outlives_a_playground_that_is_killed() {
    let mut playground =
        Playground::up(&["--agents", "0", "--control-planes", "1", "--workers", "0"]);
    let children = playground.children();
    let names: Vec<_> = children
        .iter()
        .filter_map(|(path, _)| path.file_stem())
        .collect();
    // Two etcds, the API server, the controller manager.
    assert_eq!(children.len(), 4, "{names:?}");
    assert!(children.iter().all(|(_, pid)| runs(*pid)));
    playground.signal(Signal::KILL);
    playground.process.wait().unwrap();
    for (path, pid) in children {
        let what = format!("{} to end", path.display());
        wait_until(&what, || !runs(pid) && !path.exists());
    }
}

#[test]
fn a_playground_does_what_its_help_says() {
    let mut playground = Playground::up(&["--etcd", "shared", "--workers", "1"]);
    says_what_there_is(&playground);
    knows_names(&playground);
    guards_with_the_shipped_webhook(&playground);
    injects_faults_into_context_proxied_alone(&playground);
    runs_the_agents_pod(&playground);
    joins_the_spare(&playground);

    let children = playground.children();
    playground.signal(Signal::TERM);
    assert!(playground.process.wait().unwrap().success());
    for (path, pid) in children {
        assert!(!runs(pid), "{} outlived it", path.display());
    }
}

fn says_what_there_is(playground: &Playground) {
    let ready = &playground.ready;
    let nodes: Vec<_> = ready["nodes"]
        .as_array()
        .unwrap()
        .iter()
        .map(|n| (n["name"].as_str().unwrap(), n["role"].as_str().unwrap()))
        .collect();
    let expected = [
        ("cp-1", "controlplane"),
        ("cp-2", "controlplane"),
        ("cp-3", "controlplane"),
        ("worker-1", "worker"),
    ];
    assert_eq!(nodes, expected);
    assert!(
        Path::new(ready["path"].as_str().unwrap())
            .join("kubectl-ichor")
            .is_file()
    );
    for context in ["admin", "editor", "viewer", "proxied"] {
        let output = playground.kubectl(&["--context", context, "get", "tm", "-o", "name"]);
        let names = String::from_utf8_lossy(&output.stdout).lines().count();
        assert_eq!(
            names,
            5,
            "{context}: {}",
            String::from_utf8_lossy(&output.stderr)
        );
    }
    let plugin = playground.kubectl(&["ichor", "version", "--client"]);
    assert!(
        plugin.status.success(),
        "{}",
        String::from_utf8_lossy(&plugin.stderr)
    );
    let members = playground.asked(&["etcd", "members", "-o", "json"]);
    let members = members.as_array().unwrap();
    assert_eq!(members.len(), 3);
    for member in members {
        let id = member["id"].as_str().unwrap();
        assert!(
            id.len() == 16
                && id
                    .chars()
                    .all(|c| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()),
            "{id}"
        );
        assert_eq!(
            (&member["started"], &member["learner"]),
            (&true.into(), &false.into())
        );
    }
}

fn knows_names(playground: &Playground) {
    for unknown in [
        &["node", "cp-9", "power-off"][..],
        &["calls", "--node", "nobody", "-o", "json"],
        &["agent", "--pod", "nobody", "kill"],
        &["agent", "failpoint", "nowhere"],
    ] {
        let output = playground.ctl(unknown);
        assert_eq!(exit_code(&output), Some(2), "{unknown:?}");
        assert!(!output.stderr.is_empty(), "{unknown:?}");
    }
    let refused = playground.ctl(&["api", "status", "409", "--match", "FETCH /"]);
    assert_eq!(exit_code(&refused), Some(1));
    let calls = playground.asked(&["calls", "--node", "cp-2", "-o", "json"]);
    let calls = calls.as_array().unwrap();
    assert!(!calls.is_empty(), "the agent has adopted it without a call");
    for call in calls {
        assert_eq!(call["node"], "cp-2");
        for field in ["time", "method", "request", "code"] {
            assert!(!call[field].is_null(), "{field} in {call}");
        }
    }
}

fn guards_with_the_shipped_webhook(playground: &Playground) {
    let refused = playground.kubectl(&["delete", "tm", "cp-1", "--wait=false"]);
    let text = String::from_utf8_lossy(&refused.stderr);
    assert!(
        !refused.status.success() && text.contains("allow-delete"),
        "{text}"
    );
}

fn injects_faults_into_context_proxied_alone(playground: &Playground) {
    let create = |context: &str, name: &str| {
        playground
            .kubectl(&["--context", context, "create", "configmap", name])
            .status
            .success()
    };
    playground.told(&["api", "status", "503", "--match", "POST /configmaps"]);
    assert!(!create("proxied", "a"));
    assert!(create("admin", "a"));
    playground.told(&["api", "clear"]);
    assert!(create("proxied", "b"));
}

fn runs_the_agents_pod(playground: &Playground) {
    let ready = |what: &str| wait_until(what, || playground.agent()["ready"] == true);
    let first = playground.agent();
    playground.told(&["agent", "kill"]);
    assert_eq!(playground.agent()["state"], "Stopped");
    playground.told(&["agent", "start"]);
    ready("the killed agent");
    let same = playground.agent();
    assert_eq!(same["uid"], first["uid"]);
    assert_ne!(same["pid"], first["pid"]);

    playground.told(&["agent", "freeze"]);
    playground.told(&["agent", "start", "--new-pod"]);
    ready("the agent in another pod");
    let other = playground.agent();
    assert_ne!(other["uid"], first["uid"]);
    let all = playground.asked(&["agent", "status", "-o", "json"]);
    assert!(
        all.as_array()
            .unwrap()
            .iter()
            .any(|a| a["state"] == "Frozen"),
        "{all}"
    );
    playground.told(&["agent", "thaw"]);
    let old = first["pod"].as_str().unwrap();
    playground.told(&["agent", "--pod", old, "kill"]);

    // It ends at the point, once, and stays down so that somebody can look.
    playground.told(&["agent", "failpoint", "after-acquire"]);
    ready("the agent with a fail point");
    let annotate = [
        "annotate",
        "tm",
        "worker-1",
        "ichor.maesh.dev/allow-delete=true",
    ];
    assert!(playground.kubectl(&annotate).status.success());
    assert!(
        playground
            .kubectl(&["delete", "tm", "worker-1", "--wait=false"])
            .status
            .success()
    );
    wait_until("the agent to end at its fail point", || {
        playground.agent()["state"] == "Stopped"
    });
    let ended = playground.agent();
    assert_eq!(
        (&ended["uid"], &ended["crashes"]),
        (&other["uid"], &0.into())
    );
    playground.told(&["agent", "start"]);
    let gone = playground.kubectl(&["wait", "--for=delete", "tm/worker-1", "--timeout=60s"]);
    assert!(
        gone.status.success(),
        "{}",
        String::from_utf8_lossy(&gone.stderr)
    );
}

fn joins_the_spare(playground: &Playground) {
    playground.told(&["node", "cp-4", "join"]);
    let members = playground.asked(&["etcd", "members", "-o", "json"]);
    let joined = members
        .as_array()
        .unwrap()
        .iter()
        .find(|m| m["name"] == "cp-4")
        .unwrap();
    assert_eq!(joined["learner"], false);
    let node = playground.kubectl(&["get", "node", "cp-4", "-o", "name"]);
    assert!(node.status.success());
}
