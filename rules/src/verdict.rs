//! What a rule answers.

use ichor_api::conditions::StandstillReason;
use serde::Serialize;

/// The rules by name (spec section 3), as they stand in `plan -o json` and in refusals.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Rule {
    /// Deleting needs the annotation.
    AllowDelete,
    /// Those left must be a majority of those there are.
    Quorum,
    /// Not below `spec.controlPlane.count`.
    DeclaredCount,
    /// etcd itself, asked through several nodes.
    LiveEtcd,
    /// Every listed member belongs to a machine.
    MemberOwners,
    /// A control plane that is away for a while.
    Away,
    /// The cluster is between two stable sizes.
    Transitioning,
    /// The last machine that may run workloads.
    LastWorker,
    /// A control plane without its finalizer.
    Adopted,
    /// The cluster lock.
    Lock,
}

impl Rule {
    /// The rule's name in texts.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::AllowDelete => "allow-delete",
            Self::Quorum => "quorum",
            Self::DeclaredCount => "declared-count",
            Self::LiveEtcd => "live-etcd",
            Self::MemberOwners => "member-owners",
            Self::Away => "away",
            Self::Transitioning => "transitioning",
            Self::LastWorker => "last-worker",
            Self::Adopted => "adopted",
            Self::Lock => "lock",
        }
    }
}

impl std::fmt::Display for Rule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What comes of a removal as far as one rule can tell.
///
/// `Refuse` outranks `Wait`, which outranks `Proceed`: the verdict of a plan is the
/// highest of its checks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub enum Verdict {
    /// Nothing stands in the way.
    Proceed,
    /// It is admitted and then stands still until something changes.
    Wait,
    /// It is refused.
    Refuse,
}

/// One rule's answer, with its numbers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// Which rule.
    pub rule: Rule,
    /// Its answer.
    pub verdict: Verdict,
    /// The condition reason while it stands in the way.
    #[serde(skip)]
    pub reason: Option<StandstillReason>,
    /// The number the rule is about, as it is now. `null` where a rule has none.
    pub before: Option<i64>,
    /// The same, if the removal went ahead.
    pub after: Option<i64>,
    /// What happened, the numbers, what to do next.
    pub message: String,
}

impl Check {
    /// Nothing stands in the way.
    pub fn proceed(rule: Rule, numbers: Option<(i64, i64)>, message: impl Into<String>) -> Self {
        Self {
            rule,
            verdict: Verdict::Proceed,
            reason: None,
            before: numbers.map(|n| n.0),
            after: numbers.map(|n| n.1),
            message: message.into(),
        }
    }

    /// It is admitted and stands still.
    pub fn wait(
        rule: Rule,
        reason: StandstillReason,
        numbers: Option<(i64, i64)>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Wait,
            reason: Some(reason),
            ..Self::proceed(rule, numbers, message)
        }
    }

    /// It is refused.
    pub fn refuse(
        rule: Rule,
        reason: StandstillReason,
        numbers: Option<(i64, i64)>,
        message: impl Into<String>,
    ) -> Self {
        Self {
            verdict: Verdict::Refuse,
            reason: Some(reason),
            ..Self::proceed(rule, numbers, message)
        }
    }

    /// Whether nothing stands in the way.
    pub fn passes(&self) -> bool {
        self.verdict == Verdict::Proceed
    }
}

impl std::fmt::Display for Check {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} [rule: {}]", self.message, self.rule)
    }
}

/// The highest verdict of `checks`; `Proceed` for none.
pub fn overall(checks: &[Check]) -> Verdict {
    checks
        .iter()
        .map(|c| c.verdict)
        .max()
        .unwrap_or(Verdict::Proceed)
}
