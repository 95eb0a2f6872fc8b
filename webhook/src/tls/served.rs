//! The certificate that is being served, swapped without a restart.

use std::sync::Arc;

use arc_swap::{ArcSwap, ArcSwapOption};
use jiff::Timestamp;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use x509_parser::extensions::GeneralName;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::metrics::{CertificateLabels, Metrics};
use crate::tls::TlsError;

/// A chain with its key that has been looked at.
#[derive(Debug)]
pub struct Served {
    key: Arc<CertifiedKey>,
    /// When it becomes valid.
    pub not_before: Timestamp,
    /// When it expires.
    pub not_after: Timestamp,
}

/// When a certificate is valid.
pub(crate) fn validity(certificate: &X509Certificate<'_>) -> (Timestamp, Timestamp) {
    let at = |time: x509_parser::time::ASN1Time| {
        Timestamp::from_second(time.timestamp()).unwrap_or(Timestamp::MIN)
    };
    let validity = certificate.validity();
    (at(validity.not_before), at(validity.not_after))
}

impl Served {
    /// Looks at a chain and its key before they are served: both parse, they belong
    /// together, the leaf is made out for `server_name`, and it is valid at `now`.
    ///
    /// `what`: where they come from, for the error.
    pub fn check(
        what: &str,
        chain_pem: &[u8],
        key_pem: &[u8],
        server_name: &str,
        now: Timestamp,
    ) -> Result<Self, TlsError> {
        let unusable = |why: String| TlsError::Unusable {
            what: what.to_owned(),
            why,
        };
        let chain = CertificateDer::pem_slice_iter(chain_pem)
            .collect::<Result<Vec<_>, _>>()
            .map_err(|e| unusable(format!("the certificate chain is no PEM: {e}")))?;
        let key = PrivateKeyDer::from_pem_slice(key_pem)
            .map_err(|e| unusable(format!("the private key is no PEM: {e}")))?;
        let Some(leaf) = chain.first() else {
            return Err(unusable("there is no certificate in it".into()));
        };
        let (_, leaf) = X509Certificate::from_der(leaf)
            .map_err(|e| unusable(format!("the certificate is none: {e}")))?;
        let names: Vec<&str> = leaf
            .subject_alternative_name()
            .ok()
            .flatten()
            .into_iter()
            .flat_map(|san| &san.value.general_names)
            .filter_map(|name| match name {
                GeneralName::DNSName(name) => Some(*name),
                _ => None,
            })
            .collect();
        if !names.contains(&server_name) {
            return Err(unusable(format!(
                "it is not made out for {server_name} but for {}",
                if names.is_empty() {
                    "no name".to_owned()
                } else {
                    names.join(", ")
                }
            )));
        }
        let (not_before, not_after) = validity(&leaf);
        if now < not_before || now >= not_after {
            return Err(unusable(format!(
                "it is valid from {not_before} to {not_after}, and it is {now} now"
            )));
        }
        let provider = rustls::crypto::ring::default_provider();
        let key = CertifiedKey::from_der(chain, key, &provider)
            .map_err(|e| unusable(format!("certificate and key do not belong together: {e}")))?;
        Ok(Self {
            key: Arc::new(key),
            not_before,
            not_after,
        })
    }

    /// The leaf.
    pub fn leaf(&self) -> &CertificateDer<'static> {
        &self.key.cert[0]
    }
}

/// What handshakes are answered with, and how the last look at it went.
pub struct Certificates {
    served: ArcSwapOption<Served>,
    trouble: ArcSwap<Option<String>>,
    metrics: Metrics,
}

impl std::fmt::Debug for Certificates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Certificates").finish_non_exhaustive()
    }
}

impl Certificates {
    /// None yet: handshakes fail until there is one.
    pub fn new(metrics: Metrics) -> Self {
        Self {
            served: ArcSwapOption::empty(),
            trouble: ArcSwap::from_pointee(None),
            metrics,
        }
    }

    /// The one that is being served.
    pub fn current(&self) -> Option<Arc<Served>> {
        self.served.load_full()
    }

    /// Serves `next` from the next handshake on.
    #[allow(clippy::cast_precision_loss)] // seconds since 1970 fit
    pub fn swap(&self, next: Served) {
        tracing::info!(not_after = %next.not_after, "serving a new certificate");
        self.metrics
            .certificate_expiry
            .set(next.not_after.as_second() as f64);
        self.count("swapped");
        self.served.store(Some(Arc::new(next)));
    }

    /// Notes how a look went.
    pub fn note(&self, passed: &Result<(), TlsError>) {
        if passed.is_err() {
            self.count("failed");
        }
        self.trouble
            .store(Arc::new(passed.as_ref().err().map(ToString::to_string)));
    }

    fn count(&self, result: &'static str) {
        self.metrics
            .certificate_loads
            .get_or_create(&CertificateLabels { result })
            .inc();
    }
}

impl ResolvesServerCert for Certificates {
    fn resolve(&self, _: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        self.served.load().as_ref().map(|served| served.key.clone())
    }
}

/// Whether the webhook can be reached over TLS.
#[derive(Clone, Debug)]
pub struct Readiness {
    certificates: Arc<Certificates>,
}

impl Readiness {
    pub(crate) fn new(certificates: Arc<Certificates>) -> Self {
        Self { certificates }
    }

    /// Fails only while there is no certificate, or the served one has expired: a
    /// renewal that fails in time is no reason to stop serving.
    ///
    /// Errors: a sentence that says what is wrong.
    pub fn check(&self) -> Result<(), String> {
        self.check_at(Timestamp::now())
    }

    /// As [`Readiness::check`], at another time.
    pub fn check_at(&self, now: Timestamp) -> Result<(), String> {
        let trouble = self.certificates.trouble.load();
        let why = || {
            trouble
                .as_ref()
                .as_ref()
                .map_or_else(String::new, |why| format!(": {why}"))
        };
        match self.certificates.current() {
            None => Err(format!("the webhook has no certificate yet{}", why())),
            Some(served) if now >= served.not_after => Err(format!(
                "the webhook's certificate expired at {}{}",
                served.not_after,
                why()
            )),
            Some(_) => Ok(()),
        }
    }
}
