//! The commands against an API server on loopback: what they write, what they say, and
//! their exit codes (`interfaces.md`, "The plugin").
#![allow(clippy::unwrap_used)] // tests: a panic is the failure

mod support;

use serde_json::{Value, json};
use support::{Server, ichor, ichor_asked, status};

const ALLOW: &str = "ichor.maesh.dev/allow-delete";

fn demo() -> Server {
    let server = Server::start();
    server.with(support::State::demo);
    server
}

fn allowed(server: &Server) -> bool {
    server.machine("cp-1")["metadata"]["annotations"][ALLOW] == json!("true")
}

fn deleted(server: &Server) -> bool {
    server.machine("cp-1")["metadata"]["deletionTimestamp"].is_string()
}

#[test]
fn status_asks_two_lists_and_nothing_else() {
    let server = demo();
    let ran = ichor(&server, "status");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("3 declared") && ran.out.contains("leader cp-1"),
        "{}",
        ran.out
    );
    assert_eq!(server.asked().len(), 2);
    assert!(ran.err.is_empty(), "{}", ran.err);
}

#[test]
fn a_list_longer_than_a_page_is_read_to_its_end() {
    let server = demo();
    let mut page = 0;
    server.with(|s| {
        s.fault = Some(Box::new(move |asked| {
            if !asked.uri.contains("/talosmachines?") {
                return None;
            }
            page += 1;
            let machine = |name: &str| json!({"metadata": {"name": name, "namespace": "default"}, "spec": {"clusterRef": {"name": "demo"}, "role": "worker", "approved": true, "address": "192.0.2.1"}});
            Some(if page == 1 {
                (200, json!({"metadata": {"continue": "a b"}, "items": [machine("w-1")]}))
            } else {
                assert!(asked.uri.contains("continue=a%20b"), "{}", asked.uri);
                (200, json!({"metadata": {}, "items": [machine("w-2")]}))
            })
        }));
    });
    let ran = ichor(&server, "status -o name");
    assert!(
        ran.out.contains("/w-1\n") && ran.out.contains("/w-2\n"),
        "{ran:?}"
    );
}

#[test]
fn a_cluster_that_is_not_here_is_an_error_that_names_the_namespace() {
    let server = demo();
    let ran = ichor(&server, "status other");
    assert_eq!(ran.code, 1);
    assert!(
        ran.err.contains("namespace default") && ran.err.contains("-n"),
        "{}",
        ran.err
    );
    let ran = ichor(&server, "plan remove cp-9");
    assert_eq!(ran.code, 1);
    assert!(
        ran.err
            .contains("TalosMachine cp-9 not found in namespace default"),
        "{}",
        ran.err
    );
}

#[test]
fn plan_tells_its_verdict_by_the_exit_code_and_writes_nothing() {
    let server = demo();
    let ran = ichor(&server, "plan remove cp-1 -o json");
    assert_eq!(ran.code, 0, "{ran:?}");
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(plan["verdict"], "Proceed");
    server.with(|s| {
        s.lease = Some(json!({"metadata": {"name": "ichor-demo"}, "spec": {"holderIdentity": "removal of cp-4", "acquireTime": "2026-01-01T00:00:00.000000Z"}}));
    });
    let ran = ichor(&server, "plan remove cp-1");
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(ran.out.contains("held by removal of cp-4"), "{}", ran.out);
    server.with(|s| {
        s.machines.remove("cp-3");
        s.machines.remove("cp-4");
    });
    assert_eq!(ichor(&server, "plan remove cp-1").code, 3);
    assert!(server.writes().is_empty());
}

#[test]
fn a_blocking_budget_is_tried_once_by_dry_run_and_named() {
    let server = demo();
    let pod = |name: &str| json!({"metadata": {"namespace": "default", "name": name, "labels": {"app": "web"}, "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "r", "controller": true}]}, "spec": {"containers": []}, "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}});
    server.with(|s| {
        s.pods = vec![pod("web-1"), pod("web-2")];
        s.budgets = vec![json!({"metadata": {"namespace": "default", "name": "web", "generation": 1}, "spec": {"selector": {"matchLabels": {"app": "web"}}}, "status": {"observedGeneration": 1, "disruptionsAllowed": 0, "currentHealthy": 3, "desiredHealthy": 3, "expectedPods": 3}})];
    });
    let ran = ichor(&server, "plan remove cp-1 -o json");
    assert_eq!(ran.code, 4, "{ran:?}");
    let plan: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(plan["pods"][0]["blockedBy"], "web");
    let tries: Vec<_> = server
        .asked()
        .into_iter()
        .filter(|a| a.uri.contains("/eviction"))
        .collect();
    assert_eq!(tries.len(), 1);
    assert_eq!(tries[0].body["deleteOptions"]["dryRun"], json!(["All"]));
    assert!(
        server
            .asked()
            .iter()
            .any(|a| a.uri.contains("spec.nodeName%3Dnode-cp-1"))
    );
}

fn forbid(server: &Server, part: &'static str) {
    server.with(|s| {
        s.fault = Some(Box::new(move |asked| {
            asked
                .uri
                .contains(part)
                .then(|| (403, status(403, "Forbidden", "User \"eve\" cannot do that")))
        }));
    });
}

#[test]
fn a_caller_who_may_not_see_pods_or_the_lock_still_gets_a_plan() {
    for part in ["/pods", "/poddisruptionbudgets", "/leases/"] {
        let server = demo();
        forbid(&server, part);
        let ran = ichor(&server, "plan remove cp-1");
        assert_eq!(ran.code, 0, "{part}: {ran:?}");
        assert!(ran.out.contains("Not seen: "), "{part}: {}", ran.out);
    }
}

#[test]
fn a_missing_right_is_named_and_exits_3() {
    let server = demo();
    forbid(&server, "/talosmachines");
    let ran = ichor(&server, "status");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(
        ran.err
            .contains("verb \"list\" on \"talosmachines.ichor.maesh.dev\""),
        "{}",
        ran.err
    );
}

#[test]
fn remove_without_a_terminal_and_without_yes_writes_nothing_and_exits_2() {
    let server = demo();
    let ran = ichor(&server, "remove cp-1");
    assert_eq!(ran.code, 2, "{ran:?}");
    assert!(server.asked().is_empty());
}

#[test]
fn remove_marks_and_deletes_this_very_machine() {
    let server = demo();
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out
            .contains("Proceed: the removal of cp-1 would complete."),
        "{}",
        ran.out
    );
    assert!(allowed(&server) && deleted(&server));
    let asked = server.asked();
    let patch = asked.iter().find(|a| a.method == "PATCH").unwrap();
    assert_eq!(patch.body["metadata"]["resourceVersion"], "1");
    let delete = asked.iter().find(|a| a.method == "DELETE").unwrap();
    assert_eq!(delete.body["preconditions"]["uid"], "uid-cp-1");
}

#[test]
fn on_a_terminal_the_machines_name_must_be_typed() {
    let server = demo();
    let ran = ichor_asked(&server, "remove cp-1", Some("yes"));
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(server.writes().is_empty());
    let ran = ichor_asked(&server, "remove cp-1", Some("cp-1"));
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(deleted(&server));
}

#[test]
fn nothing_is_written_where_the_plan_waits_unless_asked_to() {
    let server = demo();
    server.with(|s| {
        s.machines.remove("cp-4");
    });
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 4, "{ran:?}");
    assert!(server.writes().is_empty());
    assert!(ran.err.contains("[rule: declared-count]"), "{}", ran.err);
    let ran = ichor(&server, "remove cp-1 --yes --wait");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(deleted(&server));
}

#[test]
fn nothing_is_written_where_the_plan_refuses_whatever_is_asked() {
    let server = demo();
    server.with(|s| s.machines.retain(|name, _| name == "cp-1"));
    let ran = ichor(&server, "remove cp-1 --yes --wait");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(server.writes().is_empty());
}

#[test]
fn a_delete_that_admission_refuses_leaves_the_machine_protected() {
    let server = demo();
    server.with(|s| {
        s.fault = Some(Box::new(|asked| {
            (asked.method == "DELETE").then(|| {
                (403, status(403, "Forbidden", "admission webhook \"talosmachine.ichor.maesh.dev\" denied the request: no [rule: quorum]"))
            })
        }));
    });
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(
        ran.err.contains("denied the request: no [rule: quorum]"),
        "{}",
        ran.err
    );
    assert!(!allowed(&server) && !deleted(&server));
}

#[test]
fn an_agent_that_writes_meanwhile_does_not_stop_the_marking() {
    let server = demo();
    let state = std::sync::Arc::clone(&server.state);
    let mut times = 0;
    server.with(|s| {
        s.fault = Some(Box::new(move |asked| {
            let _ = &state;
            times += usize::from(asked.method == "PATCH");
            (asked.method == "PATCH" && times == 1)
                .then(|| (409, status(409, "Conflict", "modified")))
        }));
    });
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(deleted(&server));
}

#[test]
fn a_lost_answer_to_the_delete_is_looked_at_not_guessed() {
    let server = demo();
    server.with(|s| {
        let mut machine = s.machines["cp-1"].clone();
        machine["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        let mut applied = false;
        s.fault = Some(Box::new(move |asked| match asked.method.as_str() {
            "DELETE" => {
                applied = true;
                Some((504, status(504, "Timeout", "timed out")))
            }
            "GET" if applied && asked.uri.contains("/cp-1") => Some((200, machine.clone())),
            _ => None,
        }));
    });
    assert_eq!(ichor(&server, "remove cp-1 --yes").code, 0);

    let server = demo();
    server.with(|s| {
        s.fault = Some(Box::new(|asked| {
            (asked.method == "DELETE").then(|| (504, status(504, "Timeout", "timed out")))
        }));
    });
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 1, "it still stands there: {ran:?}");
    assert!(!allowed(&server));
}

#[test]
fn a_dry_run_keeps_nothing() {
    for words in [
        "remove cp-1 --dry-run=server",
        "remove cp-1 --dry-run=client",
    ] {
        let server = demo();
        let ran = ichor(&server, words);
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(!allowed(&server) && !deleted(&server), "{words}");
    }
    let server = demo();
    ichor(&server, "remove cp-1 --dry-run=server");
    assert!(
        server
            .asked()
            .iter()
            .any(|a| a.method == "PATCH" && a.uri.contains("dryRun=All"))
    );
}

fn removing(server: &Server, over: &Value) {
    server.with(|s| {
        let mut machine = s.machines["cp-1"].clone();
        machine["metadata"]["deletionTimestamp"] = json!("2026-01-02T00:00:00Z");
        machine["metadata"]["annotations"] = json!({ALLOW: "true"});
        for (key, value) in over.as_object().unwrap() {
            machine["status"][key] = value.clone();
        }
        s.touch("cp-1", machine);
    });
}

#[test]
fn removing_again_lets_a_held_removal_go_on() {
    let server = demo();
    removing(
        &server,
        &json!({"removal": {"step": "Check", "hold": "token-1"}}),
    );
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        server.machine("cp-1")["metadata"]["annotations"]["ichor.maesh.dev/continue-removal"],
        "token-1"
    );
    assert!(!server.writes().iter().any(|w| w.starts_with("DELETE")));
}

#[test]
fn removing_again_what_is_under_way_writes_nothing() {
    let server = demo();
    removing(&server, &json!({"removal": {"step": "Drain"}}));
    let ran = ichor(&server, "remove cp-1 --yes");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(server.writes().is_empty());
    assert!(ran.out.contains("Next:"), "{}", ran.out);
}

#[test]
fn cancelling_is_possible_until_the_leave_is_intended() {
    let server = demo();
    assert_eq!(
        ichor(&server, "remove cp-1 --cancel").code,
        1,
        "it is not being removed"
    );
    removing(&server, &json!({"removal": {"step": "Drain"}}));
    let ran = ichor(&server, "remove cp-1 --cancel");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert_eq!(
        server.machine("cp-1")["metadata"]["annotations"]["ichor.maesh.dev/cancel-removal"],
        "true"
    );
    let server = demo();
    removing(
        &server,
        &json!({"intent": {"step": "LeaveEtcd", "operation": "o", "instance": "i", "deadline": "2026-01-02T00:00:00Z"}}),
    );
    let ran = ichor(&server, "remove cp-1 --cancel");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("too late"), "{}", ran.err);
    assert!(server.writes().is_empty());
}

#[test]
fn an_intent_written_while_cancelling_is_seen() {
    let server = demo();
    removing(&server, &json!({"removal": {"step": "Drain"}}));
    let mut late = server.machine("cp-1");
    late["status"]["intent"] = json!({"step": "LeaveEtcd", "operation": "o", "instance": "i", "deadline": "2026-01-02T00:00:00Z"});
    late["metadata"]["resourceVersion"] = json!("999");
    let mut patched = false;
    server.with(|s| {
        s.fault = Some(Box::new(move |asked| match asked.method.as_str() {
            "PATCH" => {
                patched = true;
                Some((409, status(409, "Conflict", "modified")))
            }
            _ if patched => Some((200, late.clone())),
            _ => None,
        }));
    });
    let ran = ichor(&server, "remove cp-1 --cancel");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert_eq!(server.writes().len(), 1);
}

#[test]
fn drain_status_takes_a_machine_or_its_node() {
    let server = demo();
    removing(
        &server,
        &json!({"drain": {"total": 3, "evicted": 1, "remaining": 2, "pods": [{"namespace": "default", "name": "web-1", "reason": "Budget", "budget": {"name": "web", "allowed": 0, "current": 3, "desired": 3}}]}}),
    );
    for name in ["cp-1", "node-cp-1", "node/node-cp-1"] {
        let ran = ichor(&server, &format!("drain status {name}"));
        assert_eq!(ran.code, 0, "{ran:?}");
        assert!(
            ran.out.contains("web (allows 0; 3 healthy, 3 needed)"),
            "{}",
            ran.out
        );
    }
    assert_eq!(ichor(&server, "drain status nobody").code, 1);
}

#[test]
fn a_machine_that_was_let_go_unwiped_is_remembered() {
    let server = demo();
    server.with(|s| {
        let cluster = s.cluster.as_mut().unwrap();
        cluster["status"]["notWiped"] = json!([{"machine": "cp-0", "hardwareUUID": "u"}]);
    });
    let ran = ichor(&server, "removal status cp-0");
    assert_eq!(ran.code, 1);
    assert!(ran.err.contains("WITHOUT being wiped"), "{}", ran.err);
}

#[test]
fn the_api_servers_warnings_reach_the_person_once() {
    let server = demo();
    server.with(|s| s.warning = Some("this delete will wait".into()));
    let ran = ichor(&server, "remove cp-1 --yes");
    assert!(
        ran.err.contains("Warning: this delete will wait"),
        "{}",
        ran.err
    );
    assert_eq!(ran.err.matches("Warning:").count(), 1, "{}", ran.err);
}

#[test]
fn requests_are_shown_at_verbosity_six() {
    let server = demo();
    let ran = ichor(&server, "status -v 6");
    assert_eq!(
        ran.err
            .lines()
            .filter(|l| l.starts_with("GET ") && l.contains("200 OK"))
            .count(),
        2,
        "{}",
        ran.err
    );
}

#[test]
fn versions_are_told_with_and_without_a_server() {
    let server = demo();
    let ran = ichor(&server, "version -o json");
    assert_eq!(ran.code, 0, "{ran:?}");
    let versions: Value = serde_json::from_str(&ran.out).unwrap();
    assert_eq!(versions["serverVersion"]["gitVersion"], "v1.36.3");
    let ran = support::ichor_env(&[], "version --client", None);
    assert_eq!(
        (ran.code, ran.out.starts_with("Client Version: v")),
        (0, true)
    );
}

#[test]
fn mistakes_on_the_command_line_exit_2() {
    let server = demo();
    for words in [
        "",
        "nonsense",
        "plan remove",
        "plan remove cp-1 -o name",
        "remove cp-1 --cancel --wait",
        "status --request-timeout x",
        "status --as-uid 1",
    ] {
        assert_eq!(ichor(&server, words).code, 2, "{words}");
    }
    assert!(server.asked().is_empty());
    assert_eq!(ichor(&server, "--help").code, 0);
}

#[test]
fn a_silent_api_server_is_not_waited_for_longer_than_asked() {
    // Accepts, and never answers.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let ran = support::ichor_env(
        &[],
        &format!("status --server {url} --request-timeout 200ms"),
        None,
    );
    assert_eq!(ran.code, 1, "{ran:?}");
    assert!(ran.err.contains("did not answer within"), "{}", ran.err);
}

#[test]
fn completion_offers_live_names_and_no_files() {
    let server = demo();
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("config");
    std::fs::write(&file, support::kubeconfig(&server.url, "")).unwrap();
    let vars = [("KUBECONFIG", file.to_str().unwrap())];
    let ran = support::ichor_env(&vars, "__complete plan remove cp", None);
    assert_eq!(
        ran.out.lines().next(),
        Some("cp-1\tcontrol plane of demo"),
        "{}",
        ran.out
    );
    assert_eq!(ran.out.lines().last(), Some(":4"));
    let ran = support::ichor_env(&vars, "__complete re", None);
    let words: Vec<_> = ran
        .out
        .lines()
        .filter_map(|l| l.split('\t').next())
        .collect();
    assert_eq!(words, ["remove", "removal", ":4"]);
    let ran = support::ichor_env(&vars, "__complete status --context o", None);
    assert!(ran.out.starts_with("one\n"), "{}", ran.out);
    // An API server that is not there is no reason to complain.
    let ran = support::ichor_env(
        &[],
        "__complete plan remove --server http://127.0.0.1:1 c",
        None,
    );
    assert_eq!(
        (ran.out.as_str(), ran.err.as_str(), ran.code),
        (":4\n", "", 0)
    );
}

#[test]
fn the_completion_wrapper_is_written_where_asked() {
    let folder = tempfile::tempdir().unwrap();
    let ran = support::ichor_env(
        &[],
        &format!("completion --install {}", folder.path().display()),
        None,
    );
    assert_eq!(ran.code, 0, "{ran:?}");
    let text = std::fs::read_to_string(folder.path().join("kubectl_complete-ichor")).unwrap();
    assert!(text.contains("exec kubectl-ichor __complete \"$@\""));
    assert_eq!(
        support::ichor_env(&[], "completion --install /nonexistent/x", None).code,
        1
    );
    let ran = support::ichor_env(&[], "completion bash", None);
    assert!(ran.out.contains("kubectl-ichor"), "{}", ran.out);
}

/// Lists `cp-1` as it is, then lets a watch tell `event` of it once.
fn watching(server: &Server, event: &'static str, last: Value) {
    let mut told = false;
    server.with(|s| {
        s.fault = Some(Box::new(move |asked| {
            if !asked.uri.contains("watch=true") {
                return None;
            }
            assert!(asked.uri.contains("metadata.name%3Dcp-1"), "{}", asked.uri);
            let first = !std::mem::replace(&mut told, true);
            let bookmark = json!({"type": "BOOKMARK", "object": {"kind": "TalosMachine", "apiVersion": "ichor.maesh.dev/v1alpha1", "metadata": {"resourceVersion": "1", "annotations": {}}}});
            Some((200, if first { json!({"type": event, "object": last}) } else { bookmark }))
        }));
    });
}

#[test]
fn following_a_removal_ends_when_the_machine_is_gone() {
    let server = demo();
    removing(&server, &json!({"removal": {"step": "Finish"}}));
    watching(&server, "DELETED", server.machine("cp-1"));
    let ran = ichor(&server, "removal status cp-1 -w");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(
        ran.out.contains("cp-1 is being deleted") && ran.out.ends_with("cp-1 is removed.\n"),
        "{}",
        ran.out
    );
    assert!(!ran.out.contains('\x1b'), "no escapes on a pipe");
}

#[test]
fn following_tells_a_cancelled_removal_from_a_finished_one() {
    let server = demo();
    removing(&server, &json!({"removal": {"step": "Drain"}}));
    let mut last = server.machine("cp-1");
    last["metadata"]["annotations"]["ichor.maesh.dev/cancel-removal"] = json!("true");
    watching(&server, "DELETED", last);
    let ran = ichor(&server, "remove cp-1 --cancel --watch");
    assert_eq!(ran.code, 0, "{ran:?}");
    assert!(ran.out.contains("was taken back"), "{}", ran.out);
}

#[test]
fn a_caller_who_may_list_but_not_watch_is_told_so() {
    let server = demo();
    removing(&server, &json!({"removal": {"step": "Drain"}}));
    forbid(&server, "watch=true");
    let ran = ichor(&server, "removal status cp-1 -w");
    assert_eq!(ran.code, 3, "{ran:?}");
    assert!(ran.err.contains("verb \"watch\""), "{}", ran.err);
}
