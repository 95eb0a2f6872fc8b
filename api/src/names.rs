//! Names that stand in the cluster (spec section 2, `interfaces.md`).

use sha2::{Digest, Sha256};

/// API group of every Ichor resource.
pub const GROUP: &str = "ichor.maesh.dev";
/// The one served version.
pub const VERSION: &str = "v1alpha1";
/// The RBAC verb that lets a caller past the override gates.
pub const OVERRIDE_VERB: &str = "override";
/// Field manager of every write of the agent and the plugin.
/// It must not start with `kubectl`: Flux would take such fields back.
pub const FIELD_MANAGER: &str = "ichor";

/// Finalizer on a TalosMachine: the removal runs before the object goes.
pub const MACHINE_FINALIZER: &str = "ichor.maesh.dev/machine-removal";
/// Finalizer on a TalosCluster: its machines go before it does.
pub const CLUSTER_FINALIZER: &str = "ichor.maesh.dev/cluster-teardown";
/// Every finalizer of ours starts so.
pub const FINALIZER_PREFIX: &str = "ichor.maesh.dev/";

/// Annotation without which a TalosMachine or TalosCluster is not deleted (`"true"`).
pub const ALLOW_DELETE: &str = "ichor.maesh.dev/allow-delete";
/// Annotation that takes a removal back, until its leave has begun (`"true"`).
pub const CANCEL_REMOVAL: &str = "ichor.maesh.dev/cancel-removal";
/// Annotation that lets a held removal go on; its value equals `status.removal.hold`.
pub const CONTINUE_REMOVAL: &str = "ichor.maesh.dev/continue-removal";
/// Annotation: let a machine go un-wiped (`"true"`).
pub const SKIP_RESET: &str = "ichor.maesh.dev/skip-reset";
/// Annotation: finish a removal whose box was configured again (`"true"`).
pub const ACCEPT_REJOIN: &str = "ichor.maesh.dev/accept-rejoin";
/// Annotation: another hardware UUID is this machine from now on (the UUID).
pub const ACCEPT_HARDWARE: &str = "ichor.maesh.dev/accept-hardware";
/// Annotation: assigns an etcd member to this machine (16 hex digits).
pub const ETCD_MEMBER_ID: &str = "ichor.maesh.dev/etcd-member-id";
/// Annotation: the last worker may go (`"true"`; setting it needs `override`).
pub const ALLOW_LAST_WORKER: &str = "ichor.maesh.dev/allow-last-worker";
/// Annotation: a TalosCluster with another UID is the same cluster (its UID).
pub const ADOPT_CLUSTER: &str = "ichor.maesh.dev/adopt-cluster";
/// Annotation on a TalosCluster: drop an entry of `notWiped` or `abandoned` (hardware UUID).
pub const FORGET: &str = "ichor.maesh.dev/forget";
/// The annotations by which a person answers a removal that stands still; changing
/// nothing else on an object being deleted is no GitOps write (spec section 7).
pub const CONSENT_ANNOTATIONS: [&str; 6] = [
    ALLOW_DELETE,
    CANCEL_REMOVAL,
    SKIP_RESET,
    CONTINUE_REMOVAL,
    ACCEPT_REJOIN,
    ETCD_MEMBER_ID,
];

/// Label on a Namespace: it is not deleted while it holds TalosMachines (`"true"`).
pub const GUARD_LABEL: &str = "ichor.maesh.dev/guard";

/// Annotation on a Node: the UID of the operation that cordoned it.
/// Only a cordon so marked is ever undone by the agent (spec section 6).
pub const CORDONED_BY: &str = "ichor.maesh.dev/cordoned-by";

/// The agent's namespace in the shipped manifests.
pub const AGENT_NAMESPACE: &str = "ichor-system";
/// The agent's ServiceAccount in the shipped manifests.
pub const AGENT_SERVICE_ACCOUNT: &str = "ichor-agent";
/// Value of the agent pods' `app.kubernetes.io/name` label.
pub const AGENT_APP: &str = "ichor-agent";

/// The name of the Lease that is `cluster`'s lock, in the cluster's namespace.
///
/// `ichor-<cluster>`; where that would pass 253 characters, cut and ended with a
/// hash of the whole name, so that two long names never share a lock.
///
/// ```
/// assert_eq!(ichor_api::names::lease_name("demo"), "ichor-demo");
/// ```
pub fn lease_name(cluster: &str) -> String {
    const LIMIT: usize = 253;
    let name = format!("ichor-{cluster}");
    if name.len() <= LIMIT {
        return name;
    }
    let digest = Sha256::digest(cluster.as_bytes());
    let mut hash = String::with_capacity(16);
    for byte in &digest[..8] {
        use std::fmt::Write as _;
        let _ = write!(hash, "{byte:02x}");
    }
    // Names are ASCII by Kubernetes' rules; be safe with what a person could pass in.
    let mut cut = LIMIT - hash.len() - 1;
    while !name.is_char_boundary(cut) {
        cut -= 1;
    }
    format!("{}-{hash}", name[..cut].trim_end_matches(['.', '-']))
}

/// Formats an etcd member or cluster ID the way etcd and Talos print it:
/// 16 lower-case hex digits.
pub fn format_etcd_id(id: u64) -> String {
    format!("{id:016x}")
}

/// Reads an ID written by [`format_etcd_id`] (or by a person, without leading zeros).
pub fn parse_etcd_id(text: &str) -> Option<u64> {
    let text = text.trim();
    let text = text.strip_prefix("0x").unwrap_or(text);
    if text.is_empty() || text.len() > 16 {
        return None;
    }
    u64::from_str_radix(text, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn long_cluster_names_get_distinct_leases_of_legal_length() {
        let one = lease_name(&format!("{}a", "x".repeat(252)));
        let two = lease_name(&format!("{}b", "x".repeat(252)));
        assert!(one.len() <= 253 && two.len() <= 253);
        assert_ne!(one, two);
        assert_eq!(lease_name(&"x".repeat(247)).len(), 253);
    }

    #[test]
    fn member_ids_keep_their_leading_zeros() {
        assert_eq!(format_etcd_id(0x0abc), "0000000000000abc");
        assert_eq!(parse_etcd_id("0000000000000abc"), Some(0x0abc));
        assert_eq!(parse_etcd_id("0xABC"), Some(0x0abc));
        assert_eq!(parse_etcd_id(""), None);
        assert_eq!(parse_etcd_id("00000000000000abc"), None);
        assert_eq!(parse_etcd_id("member"), None);
    }
}
