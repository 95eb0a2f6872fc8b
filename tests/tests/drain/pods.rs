//! Pods of every kind: what is evicted, what stays, what is waited for.

use ichor_agent::drain::{self, DrainOutcome};
use ichor_tests::kubelet::{ENDS, NodeRole};
use ichor_tests::wait::until;
use ichor_tests::workload::{Workload, annotated, set};
use k8s_openapi::api::apps::v1::DaemonSet;
use k8s_openapi::api::core::v1::{Namespace, Pod};
use kube::Api;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use serde_json::json;
use std::collections::BTreeMap;
use std::time::Duration;

use crate::{BED, Drain, SOON, blocked, delete, reasons};

#[test]
fn a_bare_pod_stops_the_drain_and_a_finished_one_does_not() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "bare").await.unwrap();
        let bare = |name| {
            set(
                workload.pod(name, "bare"),
                "/metadata/ownerReferences",
                json!([]),
            )
        };
        let pods = [workload.pod("web", "web"), bare("bare"), bare("finished")];
        workload.run(pods).await.unwrap();
        let api = workload.api::<Pod>();
        let done = Patch::Merge(json!({ "status": { "phase": "Succeeded" } }));
        api.patch_status("finished", &PatchParams::default(), &done)
            .await
            .unwrap();

        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        let DrainOutcome::Refused { message } = &pass.outcome else {
            panic!("{:?}", pass.outcome);
        };
        assert!(
            message.contains("bare/bare: has no controller"),
            "{message}"
        );
        assert_eq!(
            reasons(&pass),
            BTreeMap::from([("bare", "Unmanaged"), ("web", "Waiting")])
        );
        assert_eq!(workload.pods().await.unwrap().len(), 3);

        let mut drain = drain.options(json!({ "unmanaged": "Evict" }));
        drain.drained().await;
        assert_eq!(workload.pods().await.unwrap(), ["finished"]);
    });
}

#[test]
fn an_empty_dir_is_evicted_by_default_and_refused_where_the_option_says_so() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "empty-dir").await.unwrap();
        let volumes = json!([{ "name": "tmp", "emptyDir": {} }]);
        let pod = set(workload.pod("cache", "cache"), "/spec/volumes", volumes);
        workload.run([pod]).await.unwrap();
        let mut drain = Drain::of(bed, &workload)
            .await
            .options(json!({ "emptyDir": "Refuse" }));
        let pass = drain.pass().await;
        assert!(matches!(pass.outcome, DrainOutcome::Refused { .. }));
        assert_eq!(reasons(&pass), BTreeMap::from([("cache", "EmptyDir")]));
        drain.options(json!({})).drained().await;
    });
}

#[test]
fn daemon_set_and_mirror_pods_stay_and_nobody_waits_for_them() {
    BED.run(async |bed| {
        let workload = Workload::with_role(bed, "skips", NodeRole::Worker)
            .await
            .unwrap();
        let daemons = workload.api::<DaemonSet>();
        let daemon: DaemonSet = serde_json::from_value(json!({
            "metadata": { "name": "agent" },
            "spec": {
                "selector": { "matchLabels": { "app": "daemon" } },
                "template": {
                    "metadata": { "labels": { "app": "daemon" } },
                    "spec": {
                        "nodeSelector": { "kubernetes.io/hostname": "skips" },
                        "containers": [{ "name": "main", "image": "none" }],
                    },
                },
            },
        }))
        .unwrap();
        daemons
            .create(&PostParams::default(), &daemon)
            .await
            .unwrap();
        until(SOON, "the DaemonSet's pod to run", async || match workload
            .pods()
            .await
            .map_err(|e| e.to_string())?
            .as_slice()
        {
            [_] => Ok(()),
            other => Err(format!("{other:?}")),
        })
        .await
        .unwrap();
        let mirror = set(
            workload.pod("etcd-skips", "etcd"),
            "/metadata/ownerReferences",
            json!([]),
        );
        let mirror = annotated(mirror, "kubernetes.io/config.mirror", "hash");
        let kept = set(
            workload.pod("kept", "storage"),
            "/metadata/ownerReferences",
            json!([]),
        );
        workload
            .run([mirror, kept, workload.pod("web", "web")])
            .await
            .unwrap();
        let mut drain = Drain::of(bed, &workload)
            .await
            .options(json!({ "skipSelector": "app in (storage)" }));
        let pass = drain.drained().await;
        assert_eq!((pass.status.total, pass.status.evicted), (1, 1));
        assert_eq!(workload.pods().await.unwrap().len(), 3);
    });
}

#[test]
fn a_pod_in_a_long_grace_period_is_waited_for_and_not_called_blocked() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "long-grace").await.unwrap();
        let slow = set(
            workload.pod("slow", "web"),
            "/spec/terminationGracePeriodSeconds",
            json!(600),
        );
        workload
            .run([annotated(slow, ENDS, "never")])
            .await
            .unwrap();
        workload.budget("web", "web", 1, 1).await.unwrap();
        delete(&workload, "slow").await;
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        assert_eq!(pass.outcome, DrainOutcome::Progressing);
        assert_eq!(reasons(&pass), BTreeMap::from([("slow", "GracePeriod")]));
        assert!(
            pass.status.pods[0]
                .message
                .contains("grace period is 600 s")
        );
        // The wait ends when it goes, not by a poll.
        drain.limits.retry = Duration::from_secs(3600);
        let (client, limits) = (drain.client.clone(), drain.limits.clone());
        let settled = drain::settle(&client, "long-grace", &pass, &limits);
        let force = async {
            let api = workload.api::<Pod>();
            let params = DeleteParams::default().grace_period(0);
            api.delete("slow", &params).await.unwrap();
        };
        let both = futures::future::join(settled, force);
        tokio::time::timeout(SOON, both).await.unwrap();
        assert_eq!(drain.pass().await.outcome, DrainOutcome::Drained);
    });
}

#[test]
fn an_evicted_pod_with_a_finalizer_is_named_with_it() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "finalizer").await.unwrap();
        let pod = set(
            workload.pod("web", "web"),
            "/metadata/finalizers",
            json!(["example.com/hold"]),
        );
        workload.run([pod]).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        let pass = drain.pass().await;
        assert_eq!(reasons(&pass), BTreeMap::from([("web", "Finalizer")]));
        assert!(pass.status.pods[0].message.contains("example.com/hold"));
        let free = Patch::Merge(json!({ "metadata": { "finalizers": null } }));
        let api = workload.api::<Pod>();
        api.patch("web", &PatchParams::default(), &free)
            .await
            .unwrap();
        drain.drained().await;
    });
}

#[test]
fn a_pod_of_a_namespace_on_its_way_out_goes_with_it() {
    BED.run(async |bed| {
        let workload = Workload::new(bed, "leaving").await.unwrap();
        let slow = |i| {
            set(
                workload.pod(&format!("web-{i:02}"), "web"),
                "/spec/terminationGracePeriodSeconds",
                json!(2),
            )
        };
        workload.run((0..20).map(slow)).await.unwrap();
        workload.budget("web", "web", 20, 20).await.unwrap();
        let mut drain = Drain::of(bed, &workload).await;
        blocked(&drain.pass().await);
        let namespaces: Api<Namespace> = Api::all(workload.client().clone());
        namespaces
            .delete("leaving", &DeleteParams::default())
            .await
            .unwrap();
        let pass = drain.drained().await;
        assert_eq!(pass.status.evicted, 20);
    });
}
