//! What comes of a request: admitted, with what the caller should know, or refused.

use ichor_rules::reader::ReadError;
use ichor_rules::{Check, Verdict};

use crate::record::Crossing;

/// A request that may go ahead.
#[derive(Debug, Default)]
pub struct Admitted {
    /// Lines that kubectl shows the caller.
    pub warnings: Vec<String>,
    /// The gate that the verb `override` opened, where one was crossed.
    pub crossing: Option<Crossing>,
    /// The exemption that let it pass, where one did; for the audit log.
    pub exemption: Option<&'static str>,
}

impl Admitted {
    /// Admitted because of who asks or what is asked, with no rule judged.
    pub fn exempt(exemption: &'static str) -> Self {
        Self {
            exemption: Some(exemption),
            ..Self::default()
        }
    }

    /// The word for the audit log, where there is something to say.
    pub fn rule(&self) -> Option<String> {
        match (&self.crossing, self.exemption) {
            (Some(crossing), _) => Some(format!("override of {}", crossing.gate)),
            (None, exemption) => exemption.map(str::to_owned),
        }
    }
}

/// A request that may not.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// A rule says no: 403.
    #[error("{message} [rule: {rule}]")]
    Rule {
        /// The rule's name.
        rule: &'static str,
        /// The numbers, and what to do next.
        message: String,
    },
    /// What was sent is not what this path judges, or cannot be read: 400.
    #[error("{message}")]
    Unreadable {
        /// What is wrong with it.
        message: String,
    },
    /// What the answer stands on could not be had: 503. Never read as a yes.
    #[error(
        "cannot tell whether this is safe, so it is refused: {cause}. Nothing was changed; try again, and see the agent's log if it lasts"
    )]
    CannotTell {
        /// Why.
        cause: String,
    },
}

impl Refusal {
    /// A rule's refusal.
    pub fn rule(rule: &'static str, message: impl Into<String>) -> Self {
        Self::Rule {
            rule,
            message: message.into(),
        }
    }

    /// The HTTP code that the API server passes on.
    pub fn code(&self) -> u16 {
        match self {
            Self::Rule { .. } => 403,
            Self::Unreadable { .. } => 400,
            Self::CannotTell { .. } => 503,
        }
    }

    /// The reason, in the API's words.
    pub fn reason(&self) -> &'static str {
        match self {
            Self::Rule { .. } => "Forbidden",
            Self::Unreadable { .. } => "BadRequest",
            Self::CannotTell { .. } => "ServiceUnavailable",
        }
    }

    /// The word for the audit log and the metrics.
    pub fn rule_name(&self) -> &'static str {
        match self {
            Self::Rule { rule, .. } => rule,
            Self::Unreadable { .. } => "unreadable",
            Self::CannotTell { .. } => "cannot-tell",
        }
    }
}

/// What the API server said, without the debug form that kube prints it in.
pub(crate) fn said(error: &kube::Error) -> String {
    match error {
        kube::Error::Api(status) if status.reason.is_empty() => {
            format!("{} ({})", status.message, status.code)
        }
        kube::Error::Api(status) => {
            format!("{} ({} {})", status.message, status.code, status.reason)
        }
        other => other.to_string(),
    }
}

impl From<ReadError> for Refusal {
    fn from(error: ReadError) -> Self {
        let cause = match &error {
            ReadError::Api { what, source } => {
                format!("failed to read {what}: {}", said(source))
            }
            ReadError::Timeout { .. } => error.to_string(),
        };
        Self::CannotTell { cause }
    }
}

/// Ends the judgement where `check` refuses; what merely waits is admitted.
pub fn require(check: &Check) -> Result<(), Refusal> {
    if check.verdict == Verdict::Refuse {
        return Err(Refusal::rule(check.rule.as_str(), check.message.clone()));
    }
    Ok(())
}
