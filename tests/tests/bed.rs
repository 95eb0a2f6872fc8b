//! The test bed itself.
use std::time::{Duration, Instant};
use ichor_tests::{assets::ControlPlanePrograms, controlplane::*, process::Supervisor};
#[tokio::test(flavor = "multi_thread")]
async fn the_control_plane_comes_up() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let dir = tempfile::tempdir().unwrap();
    let t = Instant::now();
    let programs = ControlPlanePrograms::find(|l| eprintln!("{l}")).await.unwrap();
    let supervisor = Supervisor::new(dir.path(), false).unwrap();
    let plane = ControlPlane::start(&programs, &supervisor, dir.path(), ControlPlaneOptions::default()).await;
    for f in ["etcd", "kube-apiserver", "kube-controller-manager"] { eprintln!("{f}: {}", ichor_tests::process::log_tail(&supervisor.log_path(f), 8)); }
    eprintln!("{:?}", t.elapsed());
    let plane = plane.unwrap();
    tokio::time::sleep(Duration::from_secs(1)).await;
    plane.check().unwrap();
}
