//! What can go wrong while the bed is put up or changed.

use std::path::{Path, PathBuf};

/// Result of the bed's functions.
pub type Result<T, E = BedError> = std::result::Result<T, E>;

/// The bed could not do what was asked.
#[derive(Debug, thiserror::Error)]
pub enum BedError {
    /// A file or folder that could not be read or written.
    #[error("{path}: {source}", path = path.display())]
    File {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// Any other failure of the operating system.
    #[error("{what}: {source}")]
    Io {
        /// What was tried.
        what: String,
        /// What the system said.
        source: std::io::Error,
    },
    /// A program that could not be built.
    #[error("failed to build {0}")]
    Build(String),
    /// A program that ended by itself.
    #[error("{name} ended by itself ({status}); the end of its log:\n{log}")]
    Ended {
        /// Name of the process in this bed.
        name: String,
        /// Its exit status.
        status: String,
        /// The last lines that it wrote.
        log: String,
    },
    /// Something did not come about in time.
    #[error("waited {seconds} s for {what}{}", if detail.is_empty() { String::new() } else { format!(": {detail}") })]
    Timeout {
        /// What was waited for.
        what: String,
        /// For how long.
        seconds: u64,
        /// What stood in the way at the end.
        detail: String,
    },
    /// An answer of the API server.
    #[error("{what}: {source}")]
    Api {
        /// What was asked.
        what: String,
        /// The answer.
        source: Box<kube::Error>,
    },
    /// A certificate that could not be made.
    #[error("failed to make a certificate: {0}")]
    Certificate(#[from] rcgen::Error),
    /// A TLS configuration that could not be made.
    #[error("failed to set up TLS: {0}")]
    Tls(#[from] rustls::Error),
    /// A client that could not be made.
    #[error(transparent)]
    Connect(#[from] ichor_rules::connect::ConnectError),
    /// A name that nothing in this bed has.
    #[error("there is no {kind} named {name}; there are: {known}")]
    Unknown {
        /// What was looked for.
        kind: &'static str,
        /// The name.
        name: String,
        /// The names that there are.
        known: String,
    },
    /// Something that cannot be done as things stand.
    #[error("{0}")]
    Refused(String),
}

impl BedError {
    /// An error of the file system at `path`.
    pub fn file(path: impl AsRef<Path>, source: std::io::Error) -> Self {
        Self::File {
            path: path.as_ref().to_owned(),
            source,
        }
    }

    /// An error of the operating system while `what` was tried.
    pub fn io(what: impl Into<String>, source: std::io::Error) -> Self {
        Self::Io {
            what: what.into(),
            source,
        }
    }

    /// An answer of the API server to `what`.
    pub fn api(what: impl Into<String>, source: kube::Error) -> Self {
        Self::Api {
            what: what.into(),
            source: Box::new(source),
        }
    }
}
