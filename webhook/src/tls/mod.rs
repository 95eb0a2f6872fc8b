//! The serving certificate: made, shared between replicas, published and rotated by the
//! webhook itself, or read from a folder (spec section 11).

pub mod authority;
pub mod folder;
pub mod own;
pub mod publish;
pub mod served;

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use kube::Client;
use tokio_util::sync::CancellationToken;

pub use authority::Lifetimes;
pub use served::{Certificates, Readiness};

use crate::answer::said;
use crate::config::{SECRET, WebhookConfig};

/// Something wrong with certificates. What is served already goes on being served.
#[derive(Debug, thiserror::Error)]
pub enum TlsError {
    /// A certificate or key that cannot be served or signed with.
    #[error("{what} cannot be used: {why}")]
    Unusable {
        /// Which one, by where it comes from.
        what: String,
        /// What is wrong with it.
        why: String,
    },
    /// A Secret of the name we use that is not ours to replace.
    #[error(
        "Secret {namespace}/{name} is not Ichor's (label {label}) and cannot be used as it is: {why}. \
         Delete or rename it, and a new one is made"
    )]
    Foreign {
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The label that would make it ours.
        label: &'static str,
        /// What is wrong with it.
        why: String,
    },
    /// A file that cannot be read.
    #[error("failed to read {path}: {source}")]
    File {
        /// The file.
        path: PathBuf,
        /// Why.
        #[source]
        source: std::io::Error,
    },
    /// The API server did not do as it was asked.
    #[error("failed to {what}: {}", said(source))]
    Api {
        /// What was asked of it.
        what: String,
        /// Why not.
        #[source]
        source: Box<kube::Error>,
    },
    /// It did not answer.
    #[error("failed to {what}: no answer within {} s", API_DEADLINE.as_secs())]
    Silent {
        /// What was asked of it.
        what: String,
    },
}

/// How long one call to the API server may take while certificates are kept.
const API_DEADLINE: Duration = Duration::from_secs(10);

/// Bounds a call by [`API_DEADLINE`] and says what it was for.
pub(crate) async fn ask<T>(
    what: impl FnOnce() -> String,
    call: impl Future<Output = kube::Result<T>>,
) -> Result<T, TlsError> {
    match tokio::time::timeout(API_DEADLINE, call).await {
        Ok(Ok(value)) => Ok(value),
        Ok(Err(source)) => Err(TlsError::Api {
            what: what(),
            source: Box::new(source),
        }),
        Err(_) => Err(TlsError::Silent { what: what() }),
    }
}

/// Where the serving certificate comes from.
#[derive(Clone, Debug)]
pub enum TlsSource {
    /// A folder with `tls.crt` and `tls.key`, and `ca.crt` where the CA bundle is to be
    /// published too (not where cert-manager injects it). Read again by its content,
    /// since Secret volumes are swapped by symbolic links.
    Folder(PathBuf),
    /// A certificate authority of our own, kept in a Secret that the replicas share.
    Own {
        /// Name of the Secret, in the agent's namespace.
        secret: String,
        /// How long certificates live.
        lifetimes: Lifetimes,
    },
}

impl TlsSource {
    /// An authority of our own, in the shipped Secret with the shipped lifetimes.
    pub fn own() -> Self {
        Self::Own {
            secret: SECRET.to_owned(),
            lifetimes: Lifetimes::default(),
        }
    }
}

/// Keeps the certificate valid and the CA bundle published for as long as it runs.
pub struct Keeper {
    source: Source,
    /// How often it looks.
    every: Duration,
    certificates: Arc<Certificates>,
}

enum Source {
    Folder(Box<folder::Folder>),
    Own(Box<own::OwnAuthority>),
}

impl Keeper {
    /// Keeps what `certificates` serve.
    pub fn new(config: &WebhookConfig, client: Client, certificates: Arc<Certificates>) -> Self {
        let publisher = publish::Publisher::new(config, client.clone());
        let source = match &config.tls {
            TlsSource::Folder(path) => Source::Folder(Box::new(folder::Folder::new(
                path.clone(),
                config.server_name(),
                publisher,
            ))),
            TlsSource::Own { secret, lifetimes } => Source::Own(Box::new(own::OwnAuthority::new(
                client,
                &config.namespace,
                secret,
                config.server_name(),
                *lifetimes,
                publisher,
            ))),
        };
        Self {
            source,
            every: Duration::from_secs(45),
            certificates,
        }
    }

    /// One look: renews, publishes and swaps what is due.
    ///
    /// Errors: something could not be had or done. What is served stays.
    pub async fn pass(&mut self) -> Result<(), TlsError> {
        let passed = match &mut self.source {
            Source::Folder(folder) => folder.pass(&self.certificates).await,
            Source::Own(own) => own.pass(&self.certificates).await,
        };
        self.certificates.note(&passed);
        passed
    }

    /// Looks again and again until `shutdown`; sooner while something is wrong.
    pub async fn run(mut self, shutdown: CancellationToken) {
        loop {
            let pause = match self.pass().await {
                Ok(()) => self.every,
                Err(error) => {
                    tracing::warn!(%error, "the webhook's certificate needs attention");
                    self.every.min(Duration::from_secs(5))
                }
            };
            tokio::select! {
                () = shutdown.cancelled() => return,
                () = tokio::time::sleep(pause) => {}
            }
        }
    }
}
