//! Which TalosCluster governs a machine (spec section 3: teardown, missing or replaced
//! cluster).

use ichor_api::{TalosCluster, TalosMachine, names};

/// How the TalosCluster that a machine names stands to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Belonging {
    /// It governs the machine: every rule applies.
    Governed,
    /// It is the very cluster that the machine recorded, and it is being deleted: the
    /// cluster is going away, not shrinking.
    TearingDown,
    /// There is none of that name: nothing is done to the node.
    Missing,
    /// There is one of that name, but another one: nothing is done to the node.
    Replaced {
        /// UID of the one that is there.
        uid: String,
    },
}

/// Judges `cluster`, the one that `machine.spec.clusterRef` names as the API server has
/// it, by the UID that the machine recorded.
///
/// A cluster with another UID is the same one where it reports the etcd cluster ID in
/// the machine's identity, or where annotation `ichor.maesh.dev/adopt-cluster` names it.
/// A machine that recorded no cluster yet is governed by the one that is there.
pub fn belonging(machine: &TalosMachine, cluster: Option<&TalosCluster>) -> Belonging {
    let Some(cluster) = cluster else {
        return Belonging::Missing;
    };
    let uid = cluster.metadata.uid.clone().unwrap_or_default();
    let identity = machine.identity();
    match &identity.cluster_uid {
        None => return Belonging::Governed,
        Some(recorded) if *recorded == uid => {
            return if cluster.is_being_deleted() {
                Belonging::TearingDown
            } else {
                Belonging::Governed
            };
        }
        Some(_) => {}
    }
    let reported = cluster
        .status
        .as_ref()
        .and_then(|s| s.etcd.as_ref())
        .and_then(|e| e.cluster_id.as_ref());
    let same_etcd = reported.is_some() && reported == identity.etcd_cluster_id.as_ref();
    if same_etcd || machine.annotation(names::ADOPT_CLUSTER) == Some(uid.as_str()) {
        return Belonging::Governed;
    }
    Belonging::Replaced { uid }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{control_plane, time};
    use ichor_api::cluster::{ControlPlaneSpec, EtcdStatus, TalosSpec};
    use ichor_api::{SecretReference, TalosClusterSpec};

    fn cluster(uid: &str) -> TalosCluster {
        let mut cluster = TalosCluster::new(
            "demo",
            TalosClusterSpec {
                control_plane: ControlPlaneSpec { count: 3 },
                workers: None,
                schedulable: ichor_api::cluster::Schedulable::Auto,
                approval: ichor_api::cluster::Approval::Relaxed,
                gitops: None,
                kubernetes: None,
                talos: TalosSpec {
                    credentials_secret_ref: SecretReference { name: "t".into() },
                    config_secret_ref: None,
                },
                deletion_policy: ichor_api::cluster::DeletionPolicy::Orphan,
                drain: None,
            },
        );
        cluster.metadata.uid = Some(uid.into());
        cluster
    }

    fn recorded(uid: &str) -> TalosMachine {
        let mut machine = control_plane("cp-1");
        let identity = machine
            .status
            .get_or_insert_default()
            .identity
            .get_or_insert_default();
        identity.cluster_uid = Some(uid.into());
        identity.etcd_cluster_id = Some("0000000000000e7c".into());
        machine
    }

    #[test]
    fn only_the_very_cluster_that_was_recorded_is_torn_down() {
        let mut deleted = cluster("a");
        deleted.metadata.deletion_timestamp = Some(time());
        assert_eq!(
            belonging(&recorded("a"), Some(&deleted)),
            Belonging::TearingDown
        );
        assert_eq!(
            belonging(&recorded("b"), Some(&deleted)),
            Belonging::Replaced { uid: "a".into() }
        );
        assert_eq!(
            belonging(&control_plane("cp-1"), Some(&deleted)),
            Belonging::Governed,
            "a machine that recorded no cluster is not let go by the deletion of one"
        );
    }

    #[test]
    fn a_cluster_with_another_uid_is_the_same_by_its_etcd_or_by_annotation() {
        let mut other = cluster("b");
        assert_eq!(
            belonging(&recorded("a"), Some(&other)),
            Belonging::Replaced { uid: "b".into() }
        );
        let mut adopted = recorded("a");
        adopted.metadata.annotations =
            Some([(names::ADOPT_CLUSTER.to_owned(), "b".to_owned())].into());
        assert_eq!(belonging(&adopted, Some(&other)), Belonging::Governed);
        adopted.metadata.annotations =
            Some([(names::ADOPT_CLUSTER.to_owned(), "c".to_owned())].into());
        assert_ne!(belonging(&adopted, Some(&other)), Belonging::Governed);
        other.status.get_or_insert_default().etcd = Some(EtcdStatus {
            cluster_id: Some("0000000000000e7c".into()),
            ..EtcdStatus::default()
        });
        assert_eq!(belonging(&recorded("a"), Some(&other)), Belonging::Governed);
    }

    #[test]
    fn two_that_report_no_etcd_are_not_the_same() {
        let mut machine = recorded("a");
        machine
            .status
            .get_or_insert_default()
            .identity
            .get_or_insert_default()
            .etcd_cluster_id = None;
        assert_eq!(
            belonging(&machine, Some(&cluster("b"))),
            Belonging::Replaced { uid: "b".into() }
        );
    }

    #[test]
    fn a_cluster_that_is_gone_is_missing() {
        assert_eq!(belonging(&recorded("a"), None), Belonging::Missing);
    }
}
