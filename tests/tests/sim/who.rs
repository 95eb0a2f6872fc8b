//! A running machine tells who it is.

use ichor_talos::{CallError, MachineType, Stage};
use ichor_tests::sim::TalosVersion;

use crate::support::Sim;

#[tokio::test(flavor = "multi_thread")]
async fn a_running_control_plane_tells_who_it_is() {
    for (version, tag) in [
        (TalosVersion::V1_13, "v1.13.9"),
        (TalosVersion::V1_14, "v1.14.1"),
    ] {
        let sim = Sim::start(|options| {
            options.control_planes = 1;
            options.workers = 1;
            options.version = version;
        })
        .await;
        let cp = sim.client("cp-1").snapshot().await.unwrap();
        assert_eq!(
            cp.hardware_uuid.as_deref(),
            Some(sim.node("cp-1").hardware_uuid.as_str())
        );
        assert_eq!(cp.node_id, sim.node("cp-1").now().node_id.unwrap());
        assert_eq!(cp.boot_id, sim.node("cp-1").now().boot_id);
        assert_eq!((cp.status.stage, cp.status.ready), (Stage::Running, true));
        assert_eq!(cp.machine_type, MachineType::ControlPlane);
        assert_eq!(
            (cp.hostname.as_str(), cp.node_name.as_deref()),
            ("cp-1", Some("cp-1"))
        );
        assert_eq!(cp.member_id, Some(sim.member_id("cp-1").await));
        assert_eq!(cp.version.tag, tag);
        let worker = sim.client("worker-1").snapshot().await.unwrap();
        assert_eq!(
            (worker.machine_type, worker.member_id),
            (MachineType::Worker, None)
        );
        let refused = sim.client("worker-1").etcd_status().await.unwrap_err();
        assert!(matches!(refused, CallError::NotSupported(_)), "{refused:?}");
    }
}
