//! The removal's decision: from what a pass knows to the one thing it does next.
//!
//! Pure; spec section 5, with sections 3 and 4 where they refer to it. Unit tests,
//! property tests and the model checker call this very function.

use ichor_api::conditions::{RemovalStep, StandstillReason};
use ichor_api::names;
use ichor_rules::Verdict;
use ichor_rules::etcd::{ListedMember, LiveEtcd, Members, Target, live_etcd};

use super::facts::{
    Answer, Call, DrainFact, Governing, IntentCall, IntentFacts, NodeFact, Snapshot, TargetFact,
};

/// Why a machine is let go without (further) work on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LetGo {
    /// A person took the removal back.
    Cancelled,
    /// The TalosCluster is being deleted and orphans its machines.
    Orphaned,
    /// The namespace is terminating.
    NamespaceTerminating,
    /// Nothing was ever recorded of it, and etcd does not list it.
    NeverSeen,
}

/// The one thing to do next.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stand still, say why, try again later.
    Stand {
        /// The condition's reason.
        reason: StandstillReason,
        /// For a person.
        message: String,
        /// Whether the lock is kept: only for a drain that is blocked.
        keep_lock: bool,
        /// Whether our cordon is undone.
        undo_cordon: bool,
    },
    /// Begin to hold the removal for a person: set a token.
    BeginHold,
    /// Take the cluster lock.
    AcquireLock,
    /// Empty the Node.
    Drain,
    /// Ask the target to give up etcd's leadership.
    Forfeit,
    /// Send an irreversible call: intent, permit, one more look, call.
    Send(Call),
    /// Record that the machine is out of etcd.
    LeaveConfirmed {
        /// The boot it left in.
        boot_id: Option<String>,
    },
    /// Record that the machine joined again under another member ID.
    RejoinedAs {
        /// Its new member ID.
        member_id: u64,
    },
    /// Take the intent back: the call did not happen.
    WithdrawIntent {
        /// Repeat the leave by member ID only.
        leave_by_id: bool,
        /// For the log and the condition.
        why: String,
    },
    /// Record that the machine is done with: wiped and seen, or let go by consent.
    Wiped {
        /// Whether the box was seen in maintenance mode.
        confirmed: bool,
        /// Whether it is let go un-wiped.
        not_wiped: bool,
    },
    /// Look again in a moment; the lock is kept.
    Wait {
        /// The step that is going on.
        step: RemovalStep,
        /// For a person.
        message: String,
    },
    /// Delete the Node, clear the finalizer, release the lock.
    Finish,
    /// Undo our cordon, release the lock, clear the finalizer.
    LetGo(LetGo),
}

fn stand(reason: StandstillReason, message: impl Into<String>) -> Step {
    Step::Stand {
        reason,
        message: message.into(),
        keep_lock: false,
        undo_cordon: false,
    }
}

/// Decides what this pass does.
pub fn next(s: &Snapshot) -> Step {
    if s.governing == Governing::NamespaceTerminating {
        return Step::LetGo(LetGo::NamespaceTerminating);
    }
    match s.governing {
        // Whatever was begun: there is nobody to act or to ask for.
        Governing::Missing | Governing::Replaced { .. } => return without_cluster(s),
        Governing::TeardownOrphan { may_finish: false } => return Step::LetGo(LetGo::Orphaned),
        _ => {}
    }
    // An unsettled call comes before every rule: its outcome decides what is true.
    if let Some(intent) = &s.intent {
        return settle(s, intent);
    }
    match s.governing {
        Governing::TeardownOrphan { .. } if !past_leave(s) => {
            return Step::LetGo(LetGo::Orphaned);
        }
        // Without the lock, which the workers need.
        Governing::TeardownReset { turn: false } => {
            return stand(
                StandstillReason::Yielded,
                "the cluster is being torn down and its workers are reset first; this goes on by itself then",
            );
        }
        _ => {}
    }
    let teardown = is_teardown(s);
    if !past_leave(s)
        && !teardown
        && let Some(step) = taken_back_or_held(s)
    {
        return step;
    }
    if s.machine.identity.hardware_uuid.is_none() {
        if teardown {
            return Step::LetGo(LetGo::NeverSeen);
        }
        return never_identified(s);
    }
    if s.machine.did(RemovalStep::Confirm) {
        return finish(s);
    }
    if let TargetFact::Credentials { why } = &s.target {
        return stand(
            StandstillReason::CredentialsInvalid,
            format!(
                "the Talos credentials cannot be used: {why}. Put a valid talosconfig into the Secret that spec.talos.credentialsSecretRef names"
            ),
        );
    }
    if let Some(step) = shared_hardware(s) {
        return step;
    }
    if !past_leave(s)
        && let Some(step) = identity(s)
    {
        return step;
    }
    // The rules are asked without the lock first: only what would pass takes it.
    if !past_leave(s)
        && !teardown
        && let Some(step) = refused(s)
    {
        return step;
    }
    if let DrainFact::TimedOut { message } = &s.drain
        && !past_leave(s)
        && !teardown
    {
        return stand(StandstillReason::DrainFailed, message.clone());
    }
    let step = if teardown {
        reset(s)
    } else if !s.machine.did(RemovalStep::Drain) {
        drain(s)
    } else if s.machine.is_control_plane() && !s.machine.did(RemovalStep::LeaveEtcd) {
        leave(s)
    } else {
        reset(s)
    };
    // Only what would go on takes the lock.
    match step {
        Step::Stand { .. } => step,
        _ if !s.lock_held => Step::AcquireLock,
        _ => step,
    }
}

fn is_teardown(s: &Snapshot) -> bool {
    matches!(s.governing, Governing::TeardownReset { .. })
}

fn shared_hardware(s: &Snapshot) -> Option<Step> {
    let other = s.hardware_shared_with.as_ref()?;
    Some(stand(
        StandstillReason::IdentityMismatch,
        format!(
            "TalosMachine {other} has the same hardware UUID: nothing irreversible is done to either. Correct spec.address of the one that is wrong"
        ),
    ))
}

/// Whether the machine is out of etcd (workers: whether its reset has begun): from here
/// on nothing refuses or cancels.
fn past_leave(s: &Snapshot) -> bool {
    s.machine.did(RemovalStep::LeaveEtcd) || s.machine.did(RemovalStep::Reset)
}

fn without_cluster(s: &Snapshot) -> Step {
    if s.machine.consent.cancel {
        return Step::LetGo(LetGo::Cancelled);
    }
    let cancel = format!(
        "kubectl ichor remove {} --cancel lets this object go without touching the node",
        s.machine.name
    );
    match &s.governing {
        Governing::Replaced { uid } => stand(
            StandstillReason::ClusterReplaced,
            format!(
                "the TalosCluster of that name is another one (UID {uid}) than the one this machine was adopted into: nothing is done to the node. \
                 If it is the same cluster, set annotation {}: \"{uid}\"; else {cancel}",
                names::ADOPT_CLUSTER
            ),
        ),
        _ => stand(
            StandstillReason::ClusterMissing,
            format!(
                "there is no TalosCluster of that name: nothing is done to the node. Create it again, or {cancel}"
            ),
        ),
    }
}

fn taken_back_or_held(s: &Snapshot) -> Option<Step> {
    let consent = &s.machine.consent;
    if consent.cancel {
        return Some(Step::LetGo(LetGo::Cancelled));
    }
    if !consent.allow_delete {
        return Some(stand(
            StandstillReason::Held,
            format!(
                "the object is being deleted without annotation {}: \"true\". Set it to let the removal go on, or take the removal back: kubectl ichor remove {} --cancel",
                names::ALLOW_DELETE,
                s.machine.name
            ),
        ));
    }
    if let Some(hold) = &s.machine.hold
        && consent.continue_token.as_ref() != Some(hold)
    {
        return Some(stand(
            StandstillReason::Held,
            format!(
                "refused for {} minutes, so it is held: it will not start by itself when the refusal ends. \
                 To let it go on: kubectl ichor remove {name} (sets annotation {}: \"{hold}\"); to take it back: kubectl ichor remove {name} --cancel",
                s.limits.hold_after.as_secs() / 60,
                names::CONTINUE_REMOVAL,
                name = s.machine.name,
            ),
        ));
    }
    None
}

/// A machine that never answered is sent nothing: a member listed at its address is
/// removed by ID, and that is all.
fn never_identified(s: &Snapshot) -> Step {
    if !s.machine.is_control_plane() {
        return Step::LetGo(LetGo::NeverSeen);
    }
    let members = match listed_members(s) {
        Ok(members) => members,
        Err(step) => return step,
    };
    let Some(member) =
        own_member(s, members).filter(|member| owned_by_another(s, members, member).is_none())
    else {
        return Step::LetGo(LetGo::NeverSeen);
    };
    match refused(s) {
        Some(step) => step,
        None if !s.lock_held => Step::AcquireLock,
        None => Step::Send(Call::RemoveMember {
            member_id: member.id,
        }),
    }
}

fn identity(s: &Snapshot) -> Option<Step> {
    let recorded = &s.machine.identity;
    match &s.target {
        TargetFact::Answers(answer) => {
            if recorded.hardware_uuid.as_deref() != Some(answer.hardware_uuid.as_str()) {
                return Some(stand(
                    StandstillReason::IdentityMismatch,
                    format!(
                        "another machine answers at the address: hardware UUID {}, recorded is {}. Correct spec.address",
                        answer.hardware_uuid,
                        recorded.hardware_uuid.as_deref().unwrap_or("none")
                    ),
                ));
            }
            // In a teardown nothing can be taken back: the reset says what to do then.
            if !same_node(s, answer) && !is_teardown(s) {
                return Some(stand(
                    StandstillReason::IdentityMismatch,
                    format!(
                        "the box answers with Talos node ID {}, recorded is {}: it was installed anew since. \
                         Take the removal back (kubectl ichor remove {} --cancel) and let it be adopted again",
                        answer.node_id,
                        recorded.node_id.as_deref().unwrap_or("none"),
                        s.machine.name
                    ),
                ));
            }
            if !role_matches(s, answer) {
                return Some(stand(
                    StandstillReason::RoleMismatch,
                    format!(
                        "Talos reports machine type {}, spec.role is {}. Take the removal back (kubectl ichor remove {} --cancel) and create the TalosMachine with the right role",
                        answer.machine_type,
                        s.machine.role.as_str(),
                        s.machine.name
                    ),
                ));
            }
            None
        }
        TargetFact::Maintenance { hardware_uuid } => {
            if *hardware_uuid == recorded.hardware_uuid {
                None
            } else {
                Some(stand(
                    StandstillReason::IdentityMismatch,
                    format!(
                        "a box in maintenance mode answers at the address, hardware UUID {}, recorded is {}. Correct spec.address",
                        hardware_uuid.as_deref().unwrap_or("unknown"),
                        recorded.hardware_uuid.as_deref().unwrap_or("none")
                    ),
                ))
            }
        }
        TargetFact::Silent { .. } | TargetFact::Credentials { .. } => None,
    }
}

/// Whether the recorded installation of Talos answers.
fn same_node(s: &Snapshot, answer: &Answer) -> bool {
    let recorded = s.machine.identity.node_id.as_ref();
    recorded.is_none_or(|id| *id == answer.node_id)
}

/// Whether the recorded box answers.
fn same_box(s: &Snapshot, answer: &Answer) -> bool {
    s.machine.identity.hardware_uuid.as_deref() == Some(answer.hardware_uuid.as_str())
}

fn another_box(s: &Snapshot, uuid: Option<&str>) -> Step {
    stand(
        StandstillReason::IdentityMismatch,
        format!(
            "another box answers at the address: hardware UUID {}, recorded is {}. Correct spec.address",
            uuid.unwrap_or("unknown"),
            s.machine
                .identity
                .hardware_uuid
                .as_deref()
                .unwrap_or("none")
        ),
    )
}

fn role_matches(s: &Snapshot, answer: &Answer) -> bool {
    let control_plane = matches!(answer.machine_type.as_str(), "controlplane" | "init");
    control_plane == s.machine.is_control_plane()
}

/// The first rule that stands in the way.
fn refused(s: &Snapshot) -> Option<Step> {
    let check = s.checks.iter().find(|c| c.verdict != Verdict::Proceed)?;
    if s.waits
        .refused
        .is_some_and(|refused| refused >= s.limits.hold_after)
        && (s.machine.hold.is_none() || s.machine.hold == s.machine.consent.continue_token)
    {
        return Some(Step::BeginHold);
    }
    Some(Step::Stand {
        reason: check.reason.unwrap_or(StandstillReason::Held),
        message: check.to_string(),
        keep_lock: false,
        undo_cordon: true,
    })
}

fn drain(s: &Snapshot) -> Step {
    match &s.drain {
        DrainFact::Blocked { message } => {
            if let Some(waiter) = &s.urgent_waiter {
                return stand(
                    StandstillReason::Yielded,
                    format!(
                        "the drain is blocked, and {waiter} is more urgent: this makes way and starts again by itself afterwards. {message}"
                    ),
                );
            }
        }
        DrainFact::TimedOut { .. } | DrainFact::Open => {}
    }
    match &s.node {
        NodeFact::Unknown { why } => stand(StandstillReason::NodeUnknown, why.clone()),
        NodeFact::Missing { name } if !s.dead => match &s.target {
            TargetFact::Answers(answer) if answer.node_name.as_deref() == Some(name.as_str()) => {
                Step::Drain
            }
            TargetFact::Maintenance { .. } => Step::Drain,
            _ => stand(
                StandstillReason::NodeUnknown,
                format!(
                    "there is no Node {name}, and Talos does not confirm that this is the machine's node name. Correct spec.nodeName, or power the box off"
                ),
            ),
        },
        _ => Step::Drain,
    }
}

/// The list, or why nothing can be done without one.
fn listed_members(s: &Snapshot) -> Result<&Members, Step> {
    match &s.etcd {
        Some(LiveEtcd::Listed(members)) => Ok(members),
        Some(no_list @ LiveEtcd::NoList { .. }) => {
            let check = live_etcd(
                no_list,
                Target {
                    machine: &s.machine.name,
                    member_id: None,
                    unhealthy_long: false,
                },
                0,
            );
            Err(stand(
                check.reason.unwrap_or(StandstillReason::EtcdUnreachable),
                check.to_string(),
            ))
        }
        None => Err(stand(
            StandstillReason::EtcdUnreachable,
            "etcd could not be asked, since the Talos credentials cannot be used. \
             Put a valid talosconfig into the Secret that spec.talos.credentialsSecretRef names",
        )),
    }
}

/// The listed member that is the target's: by recorded ID, name or peer address.
fn own_member<'m>(s: &Snapshot, members: &'m Members) -> Option<&'m ListedMember> {
    let by_id = s.machine.member_id().and_then(|id| members.by_id(id));
    let mut alike = members
        .all
        .iter()
        .filter(|m| looks_like_target(s, &m.listed));
    by_id.or_else(|| alike.next()).map(|m| &m.listed)
}

/// Another machine to which `member` belongs by its recorded ID.
fn owned_by_another<'m>(
    s: &Snapshot,
    members: &'m Members,
    member: &ListedMember,
) -> Option<&'m str> {
    let owner = members.by_id(member.id)?.machine.as_deref()?;
    (owner != s.machine.name).then_some(owner)
}

/// What a listed member is that has the target's name or peer address, but not the ID
/// that it had: the target joined again where the recorded box and node say so (spec
/// section 5, step 4), else one that is not touched.
fn joined_again(s: &Snapshot, members: &Members, member: &ListedMember) -> Step {
    let owner = owned_by_another(s, members, member);
    let its_box = match &s.target {
        TargetFact::Answers(answer) => {
            same_box(s, answer)
                && same_node(s, answer)
                && answer.member_id.is_none_or(|id| id == member.id)
        }
        // Wiped, so its node ID is gone; the member is what it left behind.
        TargetFact::Maintenance { hardware_uuid } => {
            hardware_uuid.is_some() && *hardware_uuid == s.machine.identity.hardware_uuid
        }
        TargetFact::Silent { .. } | TargetFact::Credentials { .. } => false,
    };
    if its_box && owner.is_none() {
        return Step::RejoinedAs {
            member_id: member.id,
        };
    }
    stand(
        StandstillReason::IdentityMismatch,
        format!(
            "etcd lists {member} with this machine's name or address, but its recorded member ID is {}{}: which box it is cannot be told. \
             If it is this machine's, assign it with annotation {}: \"{}\"; else give that member another name and address",
            s.machine
                .identity
                .etcd_member_id
                .as_deref()
                .unwrap_or("none"),
            owner
                .map(|owner| format!(", and it belongs to TalosMachine {owner}"))
                .unwrap_or_default(),
            names::ETCD_MEMBER_ID,
            names::format_etcd_id(member.id)
        ),
    )
}

/// Whether a member has the target's recorded name or one of its peer addresses.
fn looks_like_target(s: &Snapshot, member: &ListedMember) -> bool {
    let identity = &s.machine.identity;
    let same_name = member.started()
        && identity
            .etcd_member_name
            .as_deref()
            .is_some_and(|name| name == member.name);
    same_name
        || member
            .peer_urls
            .iter()
            .any(|url| identity.etcd_peer_urls.contains(url))
}

fn leave(s: &Snapshot) -> Step {
    let members = match listed_members(s) {
        Ok(members) => members,
        Err(step) => return step,
    };
    let Some(member) = own_member(s, members) else {
        return Step::LeaveConfirmed {
            boot_id: boot_id(s),
        };
    };
    let recorded = s.machine.member_id();
    if Some(member.id) != recorded {
        return joined_again(s, members, member);
    }
    let by_id = Step::Send(Call::RemoveMember {
        member_id: member.id,
    });
    let belongs = looks_like_target(s, member)
        || (s.machine.identity.etcd_member_name.is_none()
            && s.machine.identity.etcd_peer_urls.is_empty());
    match &s.target {
        TargetFact::Answers(answer)
            if !s.machine.leave_by_id && answer.member_id == Some(member.id) =>
        {
            if answer.leads && !s.forfeit_tried {
                return Step::Forfeit;
            }
            Step::Send(Call::LeaveEtcd {
                member_id: member.id,
            })
        }
        TargetFact::Silent { why } if !s.dead => stand(
            StandstillReason::NodeUnreachable,
            format!(
                "the machine's Talos API does not answer ({why}), and its Node is not down for long enough to call it dead. \
                 Repair the Talos API, or power the box off, or take the removal back: kubectl ichor remove {} --cancel",
                s.machine.name
            ),
        ),
        _ if belongs => by_id,
        _ => stand(
            StandstillReason::IdentityMismatch,
            format!(
                "etcd lists the recorded member ID as {member}, which is neither the recorded name ({}) nor a recorded peer address: it is not removed. \
                 Take the removal back (kubectl ichor remove {} --cancel) and let the machine be looked at again",
                s.machine
                    .identity
                    .etcd_member_name
                    .as_deref()
                    .unwrap_or("none"),
                s.machine.name
            ),
        ),
    }
}

fn boot_id(s: &Snapshot) -> Option<String> {
    match &s.target {
        TargetFact::Answers(answer) => Some(answer.boot_id.clone()),
        _ => None,
    }
}

fn reset(s: &Snapshot) -> Step {
    let teardown = is_teardown(s);
    let recorded = s.machine.identity.hardware_uuid.as_deref();
    if let TargetFact::Answers(answer) = &s.target
        && same_box(s, answer)
        && !same_node(s, answer)
    {
        return configured_again(s, answer);
    }
    // A member of the target, whatever its role, sends it back to the checks.
    if !teardown
        && let Some(LiveEtcd::Listed(members)) = &s.etcd
        && let Some(member) = own_member(s, members)
    {
        if Some(member.id) == s.machine.member_id() {
            return Step::RejoinedAs {
                member_id: member.id,
            };
        }
        return joined_again(s, members, member);
    }
    match &s.target {
        TargetFact::Maintenance { hardware_uuid } if hardware_uuid.as_deref() == recorded => {
            Step::Wiped {
                confirmed: true,
                not_wiped: false,
            }
        }
        TargetFact::Maintenance { hardware_uuid } => another_box(s, hardware_uuid.as_deref()),
        TargetFact::Credentials { why } | TargetFact::Silent { why } => gone_or_waiting(s, why),
        TargetFact::Answers(answer) => {
            if !same_box(s, answer) {
                return another_box(s, Some(&answer.hardware_uuid));
            }
            if !teardown && s.machine.is_control_plane() {
                if s.etcd
                    .as_ref()
                    .is_none_or(|e| matches!(e, LiveEtcd::NoList { .. }))
                {
                    return match listed_members(s) {
                        Err(step) => step,
                        // Not reached: there is no list.
                        Ok(_) => Step::AcquireLock,
                    };
                }
                let rebooted = s
                    .machine
                    .leave_boot_id
                    .as_ref()
                    .is_some_and(|boot| *boot != answer.boot_id);
                if rebooted && !etcd_cannot_start(answer) {
                    return stand(
                        StandstillReason::Rejoining,
                        "the box rebooted after it left etcd, so Talos is about to join it again; when it is listed it leaves again, then the removal goes on by itself",
                    );
                }
            }
            if answer.partitions.is_empty() {
                return stand(
                    StandstillReason::NodeUnreachable,
                    "the machine does not report its partitions, so a reset could not name what to wipe. See what it says (talosctl get volumestatus); this goes on by itself when it reports them",
                );
            }
            Step::Send(Call::Reset {
                wipe: answer.partitions.clone(),
                reboot: !answer.platform_config,
            })
        }
    }
}

fn etcd_cannot_start(answer: &Answer) -> bool {
    answer.etcd_service == "Failed"
}

/// The box does not answer before its reset was sent.
fn gone_or_waiting(s: &Snapshot, why: &str) -> Step {
    if !s.dead {
        return stand(
            StandstillReason::NodeUnreachable,
            format!(
                "the machine is to be wiped, but does not answer ({why}). Power it on or repair its Talos API: this goes on by itself then. Or power it off for good"
            ),
        );
    }
    if s.machine.consent.skip_reset {
        return Step::Wiped {
            confirmed: false,
            not_wiped: true,
        };
    }
    stand(
        StandstillReason::SkipResetNeeded,
        format!(
            "the machine is dead and was not wiped: it could come back with its old data. Power it on so that it is wiped, \
             or consent to let it go un-wiped: kubectl annotate tm {} {}=true",
            s.machine.name,
            names::SKIP_RESET
        ),
    )
}

/// Settling (spec section 4): what became of a call whose outcome is not recorded.
fn settle(s: &Snapshot, intent: &IntentFacts) -> Step {
    if intent.never_sent {
        return Step::WithdrawIntent {
            leave_by_id: s.machine.leave_by_id,
            why: "it was never sent".into(),
        };
    }
    match intent.call {
        IntentCall::Leave => settle_leave(s, intent),
        IntentCall::Reset => settle_reset(s, intent),
        // The removal has taken it over; what it did changes nothing for it.
        IntentCall::Other if intent.settle_due && !intent.sender_may_live => Step::WithdrawIntent {
            leave_by_id: s.machine.leave_by_id,
            why: "another operation's call has had its deadline and the settling time".into(),
        },
        IntentCall::Other => stand(
            StandstillReason::OutcomeUnknown,
            "another operation's call to this machine is not settled yet; this goes on by itself when its deadline and the settling time have passed",
        ),
    }
}

fn settle_leave(s: &Snapshot, intent: &IntentFacts) -> Step {
    let members = match listed_members(s) {
        Ok(members) => members,
        // Its etcd goes with the cluster and may never list anybody again.
        Err(_) if is_teardown(s) && intent.settle_due => {
            return Step::WithdrawIntent {
                leave_by_id: true,
                why: "the cluster is being torn down and its etcd lists nobody".into(),
            };
        }
        Err(step) => return step,
    };
    let id = intent.member_id.or_else(|| s.machine.member_id());
    let listed = id.is_some_and(|id| members.by_id(id).is_some());
    if !listed {
        // Gone by ID. A member of its name or address is the target joined again.
        if let Some(member) = own_member(s, members) {
            return joined_again(s, members, member);
        }
        return Step::LeaveConfirmed {
            boot_id: intent.boot_id.clone().or_else(|| boot_id(s)),
        };
    }
    let new_boot = match &s.target {
        TargetFact::Answers(answer) if same_box(s, answer) => intent
            .boot_id
            .as_ref()
            .is_some_and(|boot| *boot != answer.boot_id),
        _ => false,
    };
    if intent.accepted && !intent.settle_due {
        return Step::Wait {
            step: RemovalStep::LeaveEtcd,
            message:
                "the leave was answered; waiting until the survivors no longer list the member"
                    .into(),
        };
    }
    if intent.settle_due && (!intent.sender_may_live || new_boot) {
        return Step::WithdrawIntent {
            leave_by_id: true,
            why: "the member is still listed after the call's deadline and the settling time"
                .into(),
        };
    }
    stand(
        StandstillReason::OutcomeUnknown,
        "the leave was sent and its answer is not known; the member is still listed. Nothing else is begun until it is gone, or its deadline and the settling time have passed: this goes on by itself then",
    )
}

fn settle_reset(s: &Snapshot, intent: &IntentFacts) -> Step {
    let recorded = s.machine.identity.hardware_uuid.as_deref();
    match &s.target {
        TargetFact::Maintenance { hardware_uuid } if hardware_uuid.as_deref() == recorded => {
            Step::Wiped {
                confirmed: true,
                not_wiped: false,
            }
        }
        TargetFact::Answers(answer) if same_box(s, answer) => settle_answering(s, intent, answer),
        TargetFact::Credentials { why } | TargetFact::Silent { why } => {
            settle_silent(s, intent, why)
        }
        // Its own box does not answer here, so consent counts.
        TargetFact::Maintenance { .. } | TargetFact::Answers(_) if s.machine.consent.skip_reset => {
            Step::Wiped {
                confirmed: false,
                not_wiped: true,
            }
        }
        TargetFact::Maintenance { hardware_uuid } => another_box(s, hardware_uuid.as_deref()),
        TargetFact::Answers(answer) => another_box(s, Some(&answer.hardware_uuid)),
    }
}

fn settle_answering(s: &Snapshot, intent: &IntentFacts, answer: &Answer) -> Step {
    let same_node = intent.node_id.as_deref() == Some(answer.node_id.as_str());
    let same_boot = intent.boot_id.as_deref() == Some(answer.boot_id.as_str());
    if !same_node {
        return configured_again(s, answer);
    }
    if !same_boot {
        return Step::WithdrawIntent {
            leave_by_id: s.machine.leave_by_id,
            why: "the box rebooted and was not wiped: the reset failed".into(),
        };
    }
    if intent.locked {
        return Step::WithdrawIntent {
            leave_by_id: s.machine.leave_by_id,
            why: "Talos did not start the reset: another sequence is running".into(),
        };
    }
    if answer.running
        && s.waits
            .still_running
            .is_some_and(|d| d >= s.limits.reset_not_started)
    {
        return Step::WithdrawIntent {
            leave_by_id: s.machine.leave_by_id,
            why: "the box runs on as if no reset had been asked for: it did not start".into(),
        };
    }
    Step::Wait {
        step: RemovalStep::Confirm,
        message: format!(
            "the reset was sent; the box is at stage {}{}",
            answer.stage,
            skip_reset_ignored(s)
        ),
    }
}

/// Said while the recorded box answers: consent to leave it un-wiped is for boxes that do not.
fn skip_reset_ignored(s: &Snapshot) -> String {
    if s.machine.consent.skip_reset {
        format!(
            ". Annotation {} is ignored while the box answers",
            names::SKIP_RESET
        )
    } else {
        String::new()
    }
}

/// The recorded box answers our credentials with another node ID (spec section 5, step 6).
fn configured_again(s: &Snapshot, answer: &Answer) -> Step {
    let listed = match &s.etcd {
        Some(LiveEtcd::Listed(members)) => own_member(s, members).map(ToString::to_string),
        _ => None,
    };
    if s.machine.consent.accept_rejoin && listed.is_none() && (s.etcd_told() || is_teardown(s)) {
        return Step::Wiped {
            confirmed: false,
            not_wiped: false,
        };
    }
    stand(
        StandstillReason::Rejoined,
        format!(
            "the box was wiped and configured again into this cluster (Talos node ID {}){}. Reset it by hand so that it is found in maintenance mode, \
             or, while etcd lists no member of it, finish the removal and leave the node to a new TalosMachine: kubectl annotate tm {} {}=true{}",
            answer.node_id,
            listed
                .map(|m| format!(", and etcd lists {m}"))
                .unwrap_or_default(),
            s.machine.name,
            names::ACCEPT_REJOIN,
            skip_reset_ignored(s)
        ),
    )
}

fn settle_silent(s: &Snapshot, intent: &IntentFacts, why: &str) -> Step {
    let silent = s.waits.silent.unwrap_or_default();
    if !intent.reboots && intent.seen_stopping && silent >= s.limits.power_off_wait {
        return Step::Wiped {
            confirmed: false,
            not_wiped: false,
        };
    }
    if silent < s.limits.wipe_wait {
        return Step::Wait {
            step: RemovalStep::Confirm,
            message: format!(
                "the reset was sent; waiting for the box to come back in maintenance mode ({why})"
            ),
        };
    }
    if s.machine.consent.skip_reset {
        return Step::Wiped {
            confirmed: false,
            not_wiped: true,
        };
    }
    stand(
        StandstillReason::AwaitingWipe,
        format!(
            "the reset was sent, and the box has not been seen since ({why}). Power it on and look at its console, \
             or let it go without having seen it wiped: kubectl annotate tm {} {}=true",
            s.machine.name,
            names::SKIP_RESET
        ),
    )
}

/// The last look before the object goes: a member of the target listed again is removed first.
fn finish(s: &Snapshot) -> Step {
    if s.machine.is_control_plane()
        && !matches!(
            s.governing,
            Governing::TeardownReset { .. } | Governing::TeardownOrphan { .. }
        )
    {
        let (members, etcd) = match (listed_members(s), &s.etcd) {
            (Ok(members), Some(etcd)) => (members, etcd),
            (Err(step), _) => return step,
            (Ok(_), None) => return Step::Finish,
        };
        if let Some(member) = own_member(s, members)
            && owned_by_another(s, members, member).is_none()
        {
            return last_leave(s, etcd, member.id);
        }
    }
    Step::Finish
}

/// Removes a member that the target made after its leave; it votes, so etcd is asked.
fn last_leave(s: &Snapshot, etcd: &LiveEtcd, member_id: u64) -> Step {
    if let Some(step) = shared_hardware(s) {
        return step;
    }
    let target = Target {
        machine: &s.machine.name,
        member_id: Some(member_id),
        unhealthy_long: false,
    };
    // The declared count was met when the machine first left.
    let check = live_etcd(etcd, target, 0);
    if !check.passes() {
        return stand(
            check.reason.unwrap_or(StandstillReason::EtcdUnhealthy),
            check.to_string(),
        );
    }
    if !s.lock_held {
        return Step::AcquireLock;
    }
    Step::Send(Call::RemoveMember { member_id })
}

impl Snapshot {
    /// Whether a member list was had, or the machine's role makes one needless.
    fn etcd_told(&self) -> bool {
        !self.machine.is_control_plane() || matches!(self.etcd, Some(LiveEtcd::Listed(_)))
    }
}
