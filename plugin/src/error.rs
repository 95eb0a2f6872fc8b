//! What can go wrong, told once: what failed, why, what to do next, and the exit code.

use ichor_rules::connect::ConnectError;
use ichor_rules::reader::ReadError;

/// Exit codes (`interfaces.md`, "The plugin").
pub mod exit {
    /// Done; for `plan`: would complete.
    pub const DONE: u8 = 0;
    /// Something failed.
    pub const ERROR: u8 = 1;
    /// The command line cannot be understood, or a question cannot be asked.
    pub const USAGE: u8 = 2;
    /// Refused by a rule or by RBAC.
    pub const REFUSED: u8 = 3;
    /// It would wait.
    pub const WAIT: u8 = 4;
    /// Broken off with Ctrl-C.
    pub const INTERRUPTED: u8 = 130;
}

/// What was asked of the API server: the words that RBAC knows it by.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// RBAC verb.
    pub verb: &'static str,
    /// RBAC resource with its group, as in `talosmachines.ichor.maesh.dev`.
    pub resource: &'static str,
    /// Namespace; `None`: all, or none.
    pub namespace: Option<String>,
    /// Name of the object; `None`: many.
    pub name: Option<String>,
}

impl Request {
    /// A request about many objects.
    pub fn many(verb: &'static str, resource: &'static str, namespace: Option<&str>) -> Self {
        Self {
            verb,
            resource,
            namespace: namespace.map(str::to_owned),
            name: None,
        }
    }

    /// A request about one object.
    pub fn one(verb: &'static str, resource: &'static str, namespace: &str, name: &str) -> Self {
        Self {
            name: Some(name.to_owned()),
            ..Self::many(verb, resource, Some(namespace))
        }
    }
}

impl std::fmt::Display for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        match &self.namespace {
            Some(namespace) => write!(f, " in namespace {namespace}"),
            None => Ok(()),
        }
    }
}

/// Every failure of a command.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The command line makes no sense, or what it asks needs an answer that nobody can give.
    #[error("{0}")]
    Usage(String),
    /// The kubeconfig cannot be used.
    #[error("{what}")]
    Kubeconfig {
        /// What is wrong.
        what: String,
        /// What to do.
        next: String,
    },
    /// No client could be made from the kubeconfig.
    #[error(transparent)]
    Connect(#[from] ConnectError),
    /// The API server answered with a failure, or not at all.
    #[error("failed to {request}: {}", why(.source))]
    Api {
        /// What was asked.
        request: Request,
        /// The answer.
        #[source]
        source: Box<kube::Error>,
    },
    /// The API server did not answer in time.
    #[error("failed to {request}: the API server did not answer within {seconds} s")]
    Timeout {
        /// What was asked.
        request: Request,
        /// The limit, in seconds.
        seconds: u64,
    },
    /// A direct read failed.
    #[error("{}", read_failure(.0))]
    Read(#[from] ReadError),
    /// There is no such object.
    #[error("{what} not found in namespace {namespace}")]
    NotFound {
        /// Kind and name.
        what: String,
        /// Where it was looked for.
        namespace: String,
        /// What else may help.
        hint: Option<String>,
    },
    /// A rule refuses.
    #[error("{0}")]
    Refused(String),
    /// It would be admitted and then stand still.
    #[error("{0}")]
    WouldWait(String),
    /// It did not come to what was asked for.
    #[error("{what}")]
    Failed {
        /// What failed.
        what: String,
        /// What to do.
        next: String,
    },
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
}

/// Why the API server said no.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Denial {
    /// The caller lacks the right.
    Rbac,
    /// Admission refused: a webhook, a policy, or the schema.
    Admission,
}

fn denial(error: &kube::Error) -> Option<Denial> {
    let kube::Error::Api(status) = error else {
        return None;
    };
    let admission = status.message.contains("admission webhook")
        || status.message.contains("ValidatingAdmissionPolicy");
    match status.code {
        403 if admission => Some(Denial::Admission),
        403 => Some(Denial::Rbac),
        // A webhook may answer 4xx of its own; the schema's CEL rules answer 422.
        400..=499 if admission => Some(Denial::Admission),
        422 => Some(Denial::Admission),
        _ => None,
    }
}

fn code(error: &kube::Error) -> Option<u16> {
    match error {
        kube::Error::Api(status) => Some(status.code),
        _ => None,
    }
}

/// The cause, down to the first one: "client error (Connect)" alone helps nobody.
fn why(error: &kube::Error) -> String {
    if let kube::Error::Api(status) = error {
        return if status.message.is_empty() {
            format!("HTTP {} {}", status.code, status.reason)
        } else {
            status.message.clone()
        };
    }
    chain(error)
}

fn read_failure(error: &ReadError) -> String {
    match error {
        ReadError::Api { what, source } => format!("failed to read {what}: {}", why(source)),
        timeout @ ReadError::Timeout { .. } => timeout.to_string(),
    }
}

/// An error and its causes, each said once.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let said = cause.to_string();
        if !text.contains(&said) {
            text.push_str(": ");
            text.push_str(&said);
        }
        source = cause.source();
    }
    text
}

impl Error {
    /// An answer of the API server to `request`.
    pub fn api(request: Request, source: kube::Error) -> Self {
        Self::Api {
            request,
            source: Box::new(source),
        }
    }

    fn kube(&self) -> Option<&kube::Error> {
        match self {
            Self::Api { source, .. } | Self::Read(ReadError::Api { source, .. }) => Some(source),
            _ => None,
        }
    }

    /// Whether the caller lacks a right.
    pub fn is_forbidden(&self) -> bool {
        self.kube().and_then(denial) == Some(Denial::Rbac)
    }

    /// Whether the object (or the whole resource) is not there.
    pub fn is_not_found(&self) -> bool {
        matches!(self, Self::NotFound { .. }) || self.kube().and_then(code) == Some(404)
    }

    /// Whether the object has changed since it was read.
    pub fn is_conflict(&self) -> bool {
        self.kube().and_then(code) == Some(409)
    }

    /// Whether a write may have happened although no answer came.
    pub fn is_unknown_outcome(&self) -> bool {
        match self {
            Self::Timeout { .. } => true,
            _ => match self.kube() {
                Some(kube::Error::Api(status)) => status.code == 504 || status.code == 502,
                Some(_) => true,
                None => false,
            },
        }
    }

    /// The exit code of a command that ends so.
    pub fn exit_code(&self) -> u8 {
        match self {
            Self::Usage(_) => exit::USAGE,
            Self::Refused(_) => exit::REFUSED,
            Self::WouldWait(_) => exit::WAIT,
            Self::Interrupted => exit::INTERRUPTED,
            _ if self.kube().and_then(denial).is_some() => exit::REFUSED,
            _ => exit::ERROR,
        }
    }

    /// What to do next, where something can be said.
    fn next(&self) -> Option<String> {
        match self {
            Self::Kubeconfig { next, .. } | Self::Failed { next, .. } => Some(next.clone()),
            Self::NotFound {
                namespace, hint, ..
            } => Some(hint.clone().unwrap_or_else(|| {
                format!("Only namespace {namespace} was asked: name another with -n NAMESPACE.")
            })),
            Self::Connect(_) => Some(
                "Check the cluster and the user of this context: kubectl config view --minify"
                    .to_owned(),
            ),
            Self::Timeout { .. } | Self::Read(ReadError::Timeout { .. }) => {
                Some("Try again, or give it longer with --request-timeout.".to_owned())
            }
            Self::Api { request, source } => next_for(Some(request), source),
            Self::Read(ReadError::Api { source, .. }) => next_for(None, source),
            _ => None,
        }
    }

    /// The whole of it for a person, on one or two lines.
    pub fn render(&self) -> String {
        let head = match self {
            Self::Api { request, source } if denial(source) == Some(Denial::Rbac) => {
                format!("you may not {request}: {}", why(source))
            }
            // As the API server said it: the rule's own text is the message.
            Self::Api { source, .. } if denial(source) == Some(Denial::Admission) => why(source),
            other => other.to_string(),
        };
        match self.next() {
            Some(next) => format!("error: {head}\n{next}"),
            None => format!("error: {head}"),
        }
    }
}

fn next_for(request: Option<&Request>, source: &kube::Error) -> Option<String> {
    let what = |request: &Request| {
        format!(
            "verb {:?} on {:?}{}",
            request.verb,
            request.resource,
            request
                .namespace
                .as_deref()
                .map_or_else(String::new, |n| format!(" in namespace {n:?}"))
        )
    };
    match source {
        kube::Error::Api(_) if denial(source) == Some(Denial::Rbac) => Some(match request {
            Some(request) => format!(
                "Missing right: {}. Ask whoever grants roles in this cluster, or act as somebody who has it (--as).",
                what(request)
            ),
            None => "Ask whoever grants roles in this cluster for the right that is named.".to_owned(),
        }),
        kube::Error::Api(status) => match status.code {
            401 => Some(
                "The API server does not accept these credentials: log in again, or choose another context (--context)."
                    .to_owned(),
            ),
            404 if status.message.contains("the server could not find the requested resource")
                || status.message.contains("page not found") =>
            {
                Some("Ichor's resources are not installed in this cluster, or this is the wrong one (--context).".to_owned())
            }
            409 => Some("It was changed meanwhile: run the command again.".to_owned()),
            500 | 503 if status.message.contains("webhook") => Some(
                "A webhook could not be asked. See whether the agent runs: kubectl -n ichor-system get pods".to_owned(),
            ),
            429 | 500..=599 => Some("The API server is in trouble or busy: try again.".to_owned()),
            _ => None,
        },
        kube::Error::SerdeError(_) => Some(
            "The answer has a shape that this version does not know: compare with kubectl ichor version.".to_owned(),
        ),
        kube::Error::Auth(_) => Some(
            "The credentials of this context could not be had: kubectl config view --minify shows how they are made."
                .to_owned(),
        ),
        _ => Some(
            "Is the API server up, and is this the right context? kubectl config current-context"
                .to_owned(),
        ),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use kube::core::Status;

    fn answered(code: u16, message: &str) -> Error {
        let status = Status {
            code,
            message: message.to_owned(),
            ..Status::default()
        };
        Error::api(
            Request::one("delete", "talosmachines.ichor.maesh.dev", "default", "cp-1"),
            kube::Error::Api(Box::new(status)),
        )
    }

    #[test]
    fn a_right_that_is_missing_is_named_and_exits_3() {
        let error = answered(
            403,
            "talosmachines.ichor.maesh.dev \"cp-1\" is forbidden: User \"eve\" cannot delete resource",
        );
        assert_eq!(error.exit_code(), exit::REFUSED);
        assert!(error.is_forbidden());
        let text = error.render();
        assert!(
            text.contains(
                "verb \"delete\" on \"talosmachines.ichor.maesh.dev\" in namespace \"default\""
            ),
            "{text}"
        );
    }

    #[test]
    fn a_rules_refusal_is_passed_on_as_it_was_said() {
        let said = "admission webhook \"talosmachine.ichor.maesh.dev\" denied the request: cp-1 is the last control plane [rule: quorum]";
        let error = answered(403, said);
        assert_eq!(error.exit_code(), exit::REFUSED);
        assert!(!error.is_forbidden());
        assert_eq!(error.render(), format!("error: {said}"));
        assert_eq!(
            answered(422, "spec: Invalid value").exit_code(),
            exit::REFUSED
        );
    }

    #[test]
    fn a_webhook_that_cannot_be_asked_is_a_failure_not_a_refusal() {
        let error = answered(
            500,
            "Internal error occurred: failed calling webhook \"x\": connection refused",
        );
        assert_eq!(error.exit_code(), exit::ERROR);
        assert!(error.render().contains("ichor-system"));
    }

    #[test]
    fn only_an_answer_tells_that_a_write_did_not_happen() {
        assert!(!answered(409, "conflict").is_unknown_outcome());
        assert!(!answered(403, "no").is_unknown_outcome());
        assert!(answered(504, "timeout").is_unknown_outcome());
        assert!(
            Error::Timeout {
                request: Request::many("list", "pods", None),
                seconds: 1
            }
            .is_unknown_outcome()
        );
    }
}
