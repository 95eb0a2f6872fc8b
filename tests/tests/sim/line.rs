//! The line to a machine, and what its answers mean.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use ichor_talos::maintenance::ProbeError;
use ichor_talos::{
    CallError, ConfigError, Partitions, ResetRequest, Stage, TalosClient, TalosConfig, maintenance,
};
use ichor_tests::sim::Fault;
use ichor_tests::wait::until;
use jiff::{SignedDuration, Timestamp};

use crate::support::{CALL, SOON, Sim, keep_os};

#[tokio::test(flavor = "multi_thread")]
async fn an_answer_after_the_deadline_is_an_unknown_outcome_of_something_done() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    sim.node("cp-3").answer_after_deadline("EtcdLeaveCluster");
    let short = Duration::from_secs(8);
    let outcome = sim
        .client("cp-3")
        .leave_etcd(sim.gate.permit().await, short)
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::UnknownOutcome(_)),
        "{outcome:?}"
    );
    sim.until_voters(2).await;
    let calls = sim.calls("EtcdLeaveCluster");
    assert_eq!(calls.len(), 1, "sent once: {calls:?}");
    assert_eq!(calls[0].code, "OK");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_was_given_up_may_be_carried_out_later() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    let late = Fault::ActLate(Duration::from_secs(3));
    sim.node("worker-1").fault("Reset", late);
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let outcome = client
        .reset(sim.gate.permit().await, &request, Duration::from_secs(1))
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::UnknownOutcome(_)) && !outcome.nothing_done(),
        "{outcome:?}"
    );
    assert_eq!(
        client.machine_status().await.unwrap().stage,
        Stage::Running,
        "nothing yet"
    );
    sim.until_stage("worker-1", Stage::Maintenance).await;
    assert_eq!(sim.calls("Reset").len(), 1, "sent once");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lock_lost_during_a_call_makes_its_outcome_unknown() {
    let mut sim = Sim::start(|_| {}).await;
    sim.until_removals_pass().await;
    let client = sim.client("cp-3");
    let late = Fault::ActLate(Duration::from_secs(3));
    sim.node("cp-3").fault("EtcdLeaveCluster", late);
    let store = Arc::clone(&sim.gate.store);
    let (cluster, gate) = (&sim.cluster, &mut sim.gate);
    // Somebody takes the Lease away while the node is at it; its answer is an OK.
    let take = until(SOON, "the call to arrive", async || {
        let arrived = cluster
            .calls()
            .iter()
            .any(|call| call.method == "EtcdLeaveCluster");
        if arrived { Ok(()) } else { Err(String::new()) }
    });
    let call = async { client.leave_etcd(gate.permit().await, CALL).await };
    let thief = async {
        take.await.unwrap();
        store.delete();
    };
    let (outcome, ()) = tokio::join!(call, thief);
    let outcome = outcome.unwrap_err();
    assert!(
        matches!(&outcome, CallError::UnknownOutcome(why) if why.contains("lock was lost")),
        "{outcome:?}"
    );
    sim.until_voters(2).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_names_another_node_is_handed_on() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let name = async |via: &str, target: &str| {
        let mut request = tonic::Request::new(());
        request
            .metadata_mut()
            .insert("node", target.parse().unwrap());
        let answer = sim.raw(via).await.hostname(request).await?;
        Ok::<_, tonic::Status>(answer.into_inner().messages[0].hostname.clone())
    };
    let worker = sim.node("worker-1").address().to_string();
    assert_eq!(name("cp-1", &worker).await.unwrap(), "worker-1");
    assert_eq!(
        name("worker-1", "cp-1").await.unwrap_err().code(),
        tonic::Code::PermissionDenied
    );
    sim.node("worker-1").power_off().await;
    assert_eq!(
        name("cp-1", &worker).await.unwrap_err().code(),
        tonic::Code::Unavailable
    );
    assert!(
        sim.calls("Hostname")
            .iter()
            .all(|call| call.node == "worker-1")
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_sent_into_a_cut_line() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    client.version().await.unwrap();
    sim.node("worker-1").cut();
    let silent = client.version().await.unwrap_err();
    assert!(matches!(silent, CallError::Unreachable(_)), "{silent:?}");
    let fresh = sim.client("worker-1").version().await.unwrap_err();
    assert!(matches!(fresh, CallError::Unreachable(_)), "{fresh:?}");
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let outcome = client
        .reset(sim.gate.permit().await, &request, Duration::from_secs(2))
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::Unreachable(_)) && outcome.nothing_done(),
        "{outcome:?}"
    );
    assert!(sim.calls("Reset").is_empty(), "nothing passed");
    sim.node("worker-1").heal();
    until(SOON, "worker-1 to answer", async || {
        client.version().await.map_err(|e| e.to_string())
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_without_power_was_sent_nothing() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    client.version().await.unwrap();
    sim.node("worker-1").power_off().await;
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let outcome = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(
        matches!(outcome, CallError::Unreachable(_)) && outcome.nothing_done(),
        "{outcome:?}"
    );
    let probed = maintenance::probe(&sim.node("worker-1").address().to_string()).await;
    assert!(
        matches!(probed, Err(ProbeError::Unreachable(_))),
        "{probed:?}"
    );
    sim.node("worker-1").power_on().await;
    sim.until_stage("worker-1", Stage::Running).await;
    client.version().await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn credentials_that_do_not_fit_are_told_from_a_silent_machine() {
    let mut sim = Sim::start(|options| {
        options.control_planes = 1;
        options.workers = 1;
    })
    .await;
    let now = Timestamp::now();
    let address = sim.node("cp-1").address().to_string();
    let foreign = TalosConfig::parse(&sim.cluster.foreign_talosconfig().unwrap(), now).unwrap();
    let refused = TalosClient::connect(&foreign, &address)
        .unwrap()
        .version()
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("certificate")),
        "{refused:?}"
    );

    let ended = now - SignedDuration::from_hours(1);
    let text = sim.cluster.talosconfig_for("os:admin", ended).unwrap();
    assert!(matches!(
        TalosConfig::parse(&text, now),
        Err(ConfigError::Expired(_))
    ));
    // Its clock says otherwise: the node's does not.
    let believed = TalosConfig::parse(&text, ended - SignedDuration::from_hours(1)).unwrap();
    let refused = TalosClient::connect(&believed, &address)
        .unwrap()
        .version()
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("Expired")),
        "{refused:?}"
    );

    let text = sim
        .cluster
        .talosconfig_for("os:reader", now + SignedDuration::from_hours(1))
        .unwrap();
    let reader = TalosConfig::parse(&text, now).unwrap();
    let reader = TalosClient::connect(&reader, &address).unwrap();
    reader.snapshot().await.unwrap();
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let refused = reader
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(
        matches!(&refused, CallError::Credentials(why) if why.contains("not authorized")),
        "{refused:?}"
    );

    let probed = maintenance::probe(&address).await;
    assert!(
        matches!(probed, Err(ProbeError::NotMaintenance(_))),
        "{probed:?}"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_machine_that_moved_answers_at_its_new_address_only() {
    let sim = Sim::start(|options| options.workers = 1).await;
    let node = sim.node("worker-1");
    let (old, new) = (node.address(), sim.cluster.spare_address());
    node.change_address(new).await.unwrap();
    let client = TalosClient::connect(&sim.config, &new.to_string()).unwrap();
    assert_eq!(
        client.hardware_uuid().await.unwrap().as_deref(),
        Some(node.hardware_uuid.as_str())
    );
    let gone = TalosClient::connect(&sim.config, &old.to_string())
        .unwrap()
        .version()
        .await;
    assert!(matches!(gone, Err(CallError::Unreachable(_))), "{gone:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lying_member_list_is_told_by_the_node_that_lies_only() {
    let sim = Sim::start(|_| {}).await;
    let truth = sim.members().await;
    sim.node("cp-1").lie_member_list(Some(truth[..1].to_vec()));
    assert_eq!(
        sim.client("cp-1").etcd_members(false).await.unwrap().len(),
        1
    );
    assert_eq!(
        sim.client("cp-2").etcd_members(false).await.unwrap().len(),
        3
    );
    sim.node("cp-1").lie_member_list(None);
    assert_eq!(
        sim.client("cp-1").etcd_members(false).await.unwrap().len(),
        3
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn a_gone_disk_cannot_be_wiped_and_does_not_boot() {
    let mut sim = Sim::start(|options| options.workers = 1).await;
    let client = sim.client("worker-1");
    sim.node("worker-1").disk_gone();
    assert!(Partitions::for_maintenance(&client.volume_statuses().await.unwrap()).is_err());
    let request = ResetRequest {
        partitions: keep_os(),
        reboot: true,
    };
    let refused = client
        .reset(sim.gate.permit().await, &request, CALL)
        .await
        .unwrap_err();
    assert!(matches!(refused, CallError::Refused { .. }), "{refused:?}");
    sim.node("worker-1").power_cycle().await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(matches!(
        client.version().await,
        Err(CallError::Unreachable(_))
    ));
}

#[tokio::test(flavor = "multi_thread")]
async fn no_etcd_outlives_its_simulation() {
    let sim = Sim::start(|_| {}).await;
    let data = sim.dir.path().to_string_lossy().into_owned();
    let running = |data: &str| {
        let processes = std::fs::read_dir("/proc").unwrap().flatten();
        let with = |path: PathBuf| {
            std::fs::read(path.join("cmdline"))
                .is_ok_and(|line| String::from_utf8_lossy(&line).contains(data))
        };
        processes.filter(|entry| with(entry.path())).count()
    };
    assert!(running(&data) >= 3);
    drop(sim);
    until(SOON, "the etcd processes to end", async || {
        match running(&data) {
            0 => Ok(()),
            count => Err(format!("{count} still run")),
        }
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn a_talosconfig_that_cannot_be_used_says_why() {
    let sim = Sim::start(|options| options.control_planes = 0).await;
    let (good, now) = (sim.cluster.talosconfig().unwrap(), Timestamp::now());
    let other = sim.cluster.talosconfig().unwrap();
    let line = |text: &str, key: &str| {
        let line = text.lines().find(|line| line.trim_start().starts_with(key));
        line.unwrap().to_owned()
    };
    let with = |key: &str, new: &str| good.replace(&line(&good, key), new);

    assert_eq!(
        TalosConfig::parse("", now).unwrap_err(),
        ConfigError::Missing
    );
    assert_eq!(
        TalosConfig::parse("contexts: {}\n", now).unwrap_err(),
        ConfigError::Missing
    );
    let cases = [
        ("{", "no YAML"),
        (
            "context: a\ncontexts:\n  b: {}\n",
            "\"a\" is not among its contexts",
        ),
        ("contexts:\n  a: {}\n  b: {}\n", "several contexts"),
        ("context: a\ncontexts:\n  a:\n", "\"a\" is empty"),
        ("context: a\ncontexts:\n  a: {}\n", "no `ca`"),
        (&with("key:", ""), "no `key`"),
        (&with("crt:", "        crt: '%%%'"), "`crt` is not base64"),
        (
            &with("ca:", "        ca: aGVsbG8="),
            "`ca` holds no PEM certificate",
        ),
        (
            &with("key:", &line(&other, "key:")),
            "`crt` and `key` cannot be used together",
        ),
    ];
    for (text, why) in cases {
        let error = TalosConfig::parse(text, now).unwrap_err();
        assert!(
            matches!(&error, ConfigError::Malformed(said) if said.contains(why)),
            "{why}: {error}"
        );
        let secret = line(&good, "key:").trim().len() > 20 && error.to_string().contains("LS0t");
        assert!(!secret, "{error}");
    }
    let config = TalosConfig::parse(&good.replace("context: simulated\n", ""), now).unwrap();
    assert!(config.key_pem.starts_with("-----BEGIN PRIVATE KEY-----"));
    assert!(!format!("{config:?}").contains("KEY"), "{config:?}");
}
