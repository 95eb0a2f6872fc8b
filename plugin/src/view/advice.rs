//! What to do next, for each reason that a removal may stand still for
//! (`interfaces.md`, "In the cluster").

use ichor_api::conditions::StandstillReason as Reason;
use ichor_api::{TalosMachine, names};

/// What a person can do about `reason`. The condition's message says what happened.
pub fn next(reason: Reason, machine: &TalosMachine) -> String {
    let name = machine.metadata.name.as_deref().unwrap_or_default();
    let cluster = machine.spec.cluster_ref.name.as_str();
    let set = |key: &str| format!("kubectl annotate tm {name} {key}=true");
    let cancel = format!("or take it back: kubectl ichor remove {name} --cancel");
    match reason {
        Reason::ClusterLockHeld => format!(
            "Nothing: it goes on when the lock is free. See who holds it: kubectl ichor status {cluster}"
        ),
        Reason::ClusterTransitioning => {
            "Bring the number of control planes back to an odd one; it goes on by itself then.".to_owned()
        }
        Reason::LastControlPlane | Reason::QuorumWouldBreak | Reason::BelowDeclaredCount => format!(
            "Join and approve another control plane; it goes on by itself then, {cancel}"
        ),
        Reason::EtcdUnhealthy => format!(
            "Bring the named etcd member or its node back; it goes on by itself then, {cancel}"
        ),
        Reason::EtcdUnreachable => {
            "See whether the control planes answer on the Talos API (port 50000), and the credentials of the TalosCluster.".to_owned()
        }
        Reason::QuorumLost => {
            "Bring control planes back, or restore etcd from a snapshot. Removing members repairs nothing here.".to_owned()
        }
        Reason::LearnerPresent => {
            "Wait until the joining member is promoted, or remove it; it goes on by itself then.".to_owned()
        }
        Reason::UnknownMember => format!(
            "Remove the named member (talosctl etcd remove-member), or assign it to its machine with annotation {}.",
            names::ETCD_MEMBER_ID
        ),
        Reason::LastWorker => format!(
            "Approve another worker, or have somebody who holds the verb override run: {}",
            set(names::ALLOW_LAST_WORKER)
        ),
        Reason::DrainFailed => format!(
            "Free the pods that are named: kubectl ichor drain status {name}"
        ),
        Reason::Yielded => {
            "Nothing: a more urgent operation has the lock, and this one starts again after it.".to_owned()
        }
        Reason::LeaveFailed => {
            "See what etcd or Talos answered; the leave is tried again by itself.".to_owned()
        }
        Reason::OutcomeUnknown => {
            "Nothing: the agent finds out what became of the call. Bringing the node or the network back makes it faster.".to_owned()
        }
        Reason::IdentityMismatch => format!(
            "Correct spec.address, or, where the board was replaced, set annotation {} to the new hardware UUID.",
            names::ACCEPT_HARDWARE
        ),
        Reason::RoleMismatch => {
            "The box runs with another machine type than spec.role: correct the address, or delete the wrong TalosMachine.".to_owned()
        }
        Reason::NodeUnknown => {
            "Set spec.nodeName before deleting; now: make the Talos API answer, so that the node name can be asked.".to_owned()
        }
        Reason::CredentialsInvalid => {
            "Correct the talosconfig in the Secret that the TalosCluster names.".to_owned()
        }
        Reason::NodeUnreachable => format!(
            "Mend the Talos API of the node, power the box off (it then counts as dead), {cancel}"
        ),
        Reason::Rejoining => {
            "Nothing: the box rebooted and joins again; it will leave once more by itself.".to_owned()
        }
        Reason::Rejoined => format!(
            "Reset the box by hand (talosctl reset), or keep it as a new machine: {}",
            set(names::ACCEPT_REJOIN)
        ),
        Reason::AwaitingWipe => format!(
            "Power the box on so that it can be seen, or let it go un-wiped: {}",
            set(names::SKIP_RESET)
        ),
        Reason::SkipResetNeeded => format!(
            "Bring the box back so that it can be wiped, or let it go un-wiped: {}",
            set(names::SKIP_RESET)
        ),
        Reason::Held => held(machine, name),
        Reason::ClusterMissing => format!(
            "Create the TalosCluster {cluster} again, {cancel}"
        ),
        Reason::ClusterReplaced => format!(
            "Where it is the same cluster, a holder of override sets annotation {} to its UID, {cancel}",
            names::ADOPT_CLUSTER
        ),
    }
}

fn held(machine: &TalosMachine, name: &str) -> String {
    let token = machine
        .status
        .as_ref()
        .and_then(|s| s.removal.as_ref())
        .and_then(|r| r.hold.as_deref());
    if !machine.consents(names::ALLOW_DELETE) {
        return format!(
            "It goes on once it is allowed: kubectl ichor remove {name} (sets {}), or take it back: kubectl ichor remove {name} --cancel",
            names::ALLOW_DELETE
        );
    }
    match token {
        Some(_) => format!(
            "It waited too long to go on unasked: kubectl ichor remove {name} lets it, kubectl ichor remove {name} --cancel takes it back."
        ),
        None => format!("Let it go on: kubectl ichor remove {name}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_reason_has_a_next_step() {
        let machine = crate::testing::control_plane("cp-1");
        for reason in Reason::ALL {
            let text = next(*reason, &machine);
            assert!(text.len() > 20, "{reason}: {text}");
        }
    }
}
