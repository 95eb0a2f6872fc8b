//! What can become of a call.

use std::error::Error;
use std::fmt::Write as _;
use std::time::Duration;

use tonic::{Code, Status};

use crate::transport::DialError;

/// Why a call to a node gave no result. Each text says what happened and where.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum CallError {
    /// No answer, and the call changed nothing: it was a read, or it never left this process.
    #[error("the Talos API did not answer: {0}")]
    Unreachable(String),
    /// The node answered, and refused.
    ///
    /// For an irreversible call this alone does not prove that nothing happened: Talos answers an
    /// error that occurs half way through a leave with code `Unknown` too. See [`CallError::nothing_done`].
    #[error("Talos refused the call ({code:?}): {message}")]
    Refused {
        /// The gRPC code; Talos uses `Unknown` for most of its own errors and all of etcd's.
        code: Code,
        /// Talos' words.
        message: String,
    },
    /// The node does not accept our credentials, or its certificate is not of the authority that
    /// the talosconfig names. Nothing was done.
    #[error("the Talos credentials do not fit this node: {0}")]
    Credentials(String),
    /// An irreversible call was sent, and no answer came back. It may have been carried out, or
    /// may still be: look at the node before anything else is done. It is never sent again here.
    #[error("the call was sent, and what became of it is not known: {0}")]
    UnknownOutcome(String),
    /// This release of Talos, or this kind of machine, does not have the call. Nothing was done.
    #[error("the node does not have this call: {0}")]
    NotSupported(String),
    /// The permit for this call was no longer fresh when it was to be sent (spec section 4,
    /// Fencing). Nothing was sent.
    #[error("not sent: {0}")]
    PermitStale(String),
}

impl CallError {
    /// Is it certain that the node did nothing, because the call was not sent, or was refused by a
    /// check that comes before any deed?
    pub fn nothing_done(&self) -> bool {
        match self {
            Self::Unreachable(_)
            | Self::Credentials(_)
            | Self::NotSupported(_)
            | Self::PermitStale(_) => true,
            Self::UnknownOutcome(_) => false,
            Self::Refused { code, .. } => matches!(
                code,
                Code::InvalidArgument
                    | Code::NotFound
                    | Code::AlreadyExists
                    | Code::PermissionDenied
                    | Code::Unauthenticated
                    | Code::FailedPrecondition
            ),
        }
    }

    /// Did etcd itself refuse, since too few members would be left working?
    pub fn is_unhealthy_cluster(&self) -> bool {
        matches!(self, Self::Refused { message, .. }
            if message.contains("unhealthy cluster") || message.contains("not enough started members"))
    }

    /// Does etcd know no such member?
    pub fn is_member_not_found(&self) -> bool {
        matches!(self, Self::Refused { code, message } if *code == Code::NotFound || message.contains("member not found"))
    }
}

/// An error's text with everything under it: tonic's own text is often only "transport error".
pub(crate) fn chain(error: &(dyn Error + 'static)) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.ends_with(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// What kind of call failed: only that of a read, or of one that never left, is harmless.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Read,
    Irreversible,
}

/// No answer within the deadline.
pub(crate) fn late(kind: Kind, what: &str, deadline: Duration) -> CallError {
    let text = format!("{what}: no answer within {deadline:?}");
    match kind {
        Kind::Read => CallError::Unreachable(text),
        Kind::Irreversible => CallError::UnknownOutcome(text),
    }
}

/// Reads a failed call's status: did the node answer, and if not, did the call leave us?
pub(crate) fn classify(kind: Kind, what: &str, status: &Status) -> CallError {
    if let Some(source) = status.source() {
        let text = format!("{what}: {}", chain(source));
        // An alert about certificates ends the handshake on the node's side: it has read no call.
        if is_certificate_problem(&text) {
            return CallError::Credentials(text);
        }
        let mut cause = Some(source);
        while let Some(error) = cause {
            if let Some(dial) = error.downcast_ref::<DialError>() {
                return match dial {
                    DialError::Tls(_) if dial.is_credentials() => CallError::Credentials(text),
                    DialError::Tls(_) | DialError::Tcp(_) | DialError::Late(_) => {
                        CallError::Unreachable(text)
                    }
                };
            }
            cause = error.source();
        }
        return match kind {
            Kind::Read => CallError::Unreachable(text),
            Kind::Irreversible => CallError::UnknownOutcome(text),
        };
    }
    let message = status.message().to_owned();
    // Words of tonic's own for an answer that broke off: the node did not say them.
    let broken_off = message.contains("grpc-status header missing")
        || message.contains("Missing response message");
    match status.code() {
        Code::Unimplemented => CallError::NotSupported(format!("{what}: {message}")),
        Code::Unauthenticated => CallError::Credentials(format!("{what}: {message}")),
        Code::PermissionDenied if message.contains("not authorized") => CallError::Credentials(
            format!("{what}: {message} (the client certificate's roles do not allow it)"),
        ),
        code if broken_off
            || matches!(
                code,
                Code::Cancelled | Code::DeadlineExceeded | Code::Unavailable
            ) =>
        {
            match kind {
                Kind::Read => CallError::Unreachable(format!("{what}: {message}")),
                Kind::Irreversible => CallError::UnknownOutcome(format!("{what}: {message}")),
            }
        }
        code => CallError::Refused { code, message },
    }
}

/// Does the text of a broken connection name a certificate as the reason? The HTTP/2 layer keeps
/// only the words of what TLS said.
pub(crate) fn is_certificate_problem(text: &str) -> bool {
    const ALERTS: [&str; 9] = [
        "CertificateRequired",
        "BadCertificate",
        "UnknownCA",
        "UnknownCa",
        "CertificateExpired",
        "CertificateRevoked",
        "CertificateUnknown",
        "UnsupportedCertificate",
        "AccessDenied",
    ];
    text.contains("fatal alert") && ALERTS.iter().any(|alert| text.contains(alert))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_broke_off_is_an_unknown_outcome_and_not_a_refusal() {
        let status =
            Status::unknown("grpc-status header missing, mapped from HTTP status code 200");
        assert!(matches!(
            classify(Kind::Irreversible, "Reset", &status),
            CallError::UnknownOutcome(_)
        ));
        assert!(matches!(
            classify(Kind::Read, "Version", &status),
            CallError::Unreachable(_)
        ));
    }

    #[test]
    fn a_refusal_half_way_does_not_prove_that_nothing_happened() {
        let etcd = classify(
            Kind::Irreversible,
            "EtcdLeaveCluster",
            &Status::unknown("etcdserver: unhealthy cluster"),
        );
        assert!(etcd.is_unhealthy_cluster());
        assert!(!etcd.nothing_done());
        assert!(
            classify(
                Kind::Irreversible,
                "Reset",
                &Status::permission_denied("not authorized")
            )
            .nothing_done()
        );
        assert!(
            !classify(
                Kind::Irreversible,
                "Reset",
                &Status::unavailable("going down")
            )
            .nothing_done()
        );
    }
}
