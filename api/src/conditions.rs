//! Condition types, their reasons, and the steps of a removal (`interfaces.md`).
//!
//! Few types, many reasons; a check from outside relies on the words.

macro_rules! words {
    ($(#[$meta:meta])* $name:ident { $($(#[$doc:meta])* $variant:ident),+ $(,)? }) => {
        $(#[$meta])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name { $($(#[$doc])* $variant),+ }

        impl $name {
            /// Every word there is.
            pub const ALL: &'static [Self] = &[$(Self::$variant),+];

            /// The word as it stands in the object.
            pub fn as_str(self) -> &'static str {
                match self { $(Self::$variant => stringify!($variant)),+ }
            }

            /// Reads a word back.
            pub fn parse(word: &str) -> Option<Self> {
                match word { $(stringify!($variant) => Some(Self::$variant),)+ _ => None }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.as_str())
            }
        }
    };
}

/// `Ready`, on both resources.
pub const READY: &str = "Ready";
/// `Joined` on a TalosMachine: its etcd member (or its Node) is part of the cluster.
pub const JOINED: &str = "Joined";
/// `Removal` on a TalosMachine: True while it moves, False while it stands still.
pub const REMOVAL: &str = "Removal";
/// `ConfigApplied` on a TalosMachine.
pub const CONFIG_APPLIED: &str = "ConfigApplied";
/// `Transitioning` on a TalosCluster: disruptive operations wait.
pub const TRANSITIONING: &str = "Transitioning";
/// `Healthy` on a TalosCluster: False where a person should look.
pub const HEALTHY: &str = "Healthy";

words! {
    /// The steps of a removal, in their order (spec section 5); also the reasons of `Removal=True`.
    RemovalStep {
        /// Waiting for, or taking, the cluster lock.
        Lock,
        /// Recounting under the lock.
        Check,
        /// Emptying the Node.
        Drain,
        /// Leaving etcd.
        LeaveEtcd,
        /// Wiping through Talos.
        Reset,
        /// Seeing the box in maintenance mode.
        Confirm,
        /// Deleting the Node, clearing the finalizer, releasing the lock.
        Finish,
    }
}

words! {
    /// Why a removal stands still: reasons of `Removal=False`.
    StandstillReason {
        /// Another operation holds the cluster lock.
        ClusterLockHeld,
        /// The cluster is between two stable sizes.
        ClusterTransitioning,
        /// It would leave no control plane.
        LastControlPlane,
        /// Those left would be no majority of those there are.
        QuorumWouldBreak,
        /// It would leave fewer control planes than declared.
        BelowDeclaredCount,
        /// A voter, or too many of them, is not healthy.
        EtcdUnhealthy,
        /// No member list with a leader could be had.
        EtcdUnreachable,
        /// No node has reported a leader for five minutes: restore, do not remove.
        QuorumLost,
        /// A learner or unstarted member is listed.
        LearnerPresent,
        /// A listed member belongs to no machine.
        UnknownMember,
        /// It is the last worker and nothing else may run workloads.
        LastWorker,
        /// Pods are left on the Node.
        DrainFailed,
        /// It gave the lock to a more urgent operation.
        Yielded,
        /// Talos or etcd refused the leave.
        LeaveFailed,
        /// An irreversible call was sent and its outcome is not known yet.
        OutcomeUnknown,
        /// Another machine answers at the address.
        IdentityMismatch,
        /// Talos reports another machine type than `spec.role`.
        RoleMismatch,
        /// Which Node belongs to the machine could not be told.
        NodeUnknown,
        /// The Talos credentials cannot be used.
        CredentialsInvalid,
        /// The Talos API of a live Node does not answer.
        NodeUnreachable,
        /// The box rebooted between leave and reset and is about to join again.
        Rejoining,
        /// The box was wiped and configured again into this cluster.
        Rejoined,
        /// The reset was sent and the box has not been seen since.
        AwaitingWipe,
        /// The box is dead and was not wiped: a person must consent to let it go.
        SkipResetNeeded,
        /// Held for a person.
        Held,
        /// The TalosCluster is gone.
        ClusterMissing,
        /// A TalosCluster of that name, but another one.
        ClusterReplaced,
    }
}

words! {
    /// Reasons of `Joined=False`.
    NotJoinedReason {
        /// Its member never was a started voter.
        NeverVoter,
        /// Its member is gone from the list.
        MemberGone,
        /// Its host name or address belongs to another member or machine.
        NameTaken,
        /// It was not seen yet.
        NotSeen,
    }
}

words! {
    /// Reasons of a TalosMachine's `Ready`.
    MachineReadyReason {
        /// It answers, and its etcd member or Node is healthy.
        Healthy,
        /// Nobody approved it yet.
        NotApproved,
        /// It was rejected.
        Rejected,
        /// Its Talos API does not answer.
        NodeUnreachable,
        /// It is in maintenance mode: no configuration yet.
        Maintenance,
        /// Another machine answers at its address, or two claim one hardware.
        IdentityMismatch,
        /// Talos reports another machine type than `spec.role`.
        RoleMismatch,
        /// Another machine of the cluster has this address or node name.
        DuplicateAddress,
        /// The Talos credentials cannot be used.
        CredentialsInvalid,
        /// Its etcd member is not healthy.
        EtcdUnhealthy,
        /// The TalosCluster is gone.
        ClusterMissing,
        /// A TalosCluster of that name, but another one.
        ClusterReplaced,
        /// It is being removed.
        Removing,
    }
}

words! {
    /// Reasons of a TalosCluster's `Transitioning`.
    TransitioningReason {
        /// An even number of approved control planes.
        EvenControlPlaneCount,
        /// An even number of etcd voters.
        EvenVoterCount,
        /// A learner or unstarted member is listed.
        LearnerPresent,
        /// Stable.
        StableControlPlaneCount,
    }
}

words! {
    /// Reasons of a TalosCluster's `Healthy` and `Ready`.
    ClusterReason {
        /// Nothing to look at.
        AllHealthy,
        /// A listed member belongs to no machine.
        UnknownMember,
        /// A removal was broken off by force and left something behind.
        AbandonedRemoval,
        /// Another TalosCluster reports the same etcd cluster.
        DuplicateCluster,
        /// etcd is not healthy.
        EtcdUnhealthy,
        /// No member list with a leader could be had.
        EtcdUnreachable,
        /// No node has reported a leader for five minutes: restore, do not remove.
        QuorumLost,
        /// The Talos credentials cannot be used.
        CredentialsInvalid,
        /// Teardown with `Reset` would reset the agent's own cluster.
        OwnCluster,
        /// The cluster is being deleted.
        TearingDown,
        /// No machine is approved yet.
        NoMachines,
        /// A machine was let go un-wiped and is seen again.
        NotWipedSeenAgain,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_read_back() {
        for step in RemovalStep::ALL {
            assert_eq!(RemovalStep::parse(step.as_str()), Some(*step));
        }
        assert_eq!(StandstillReason::ALL.len(), 27);
        assert!(RemovalStep::Drain < RemovalStep::LeaveEtcd);
    }
}
