//! A talosconfig: where a cluster's nodes are and the credentials for them.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use base64::Engine as _;
use jiff::Timestamp;
use rustls::{ClientConfig, RootCertStore};
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde::Deserialize;

/// The label that Talos gives its keys. Their body is PKCS#8, which TLS libraries only accept under
/// the standard label (facts: talos.md 1.8).
const TALOS_KEY_LABEL: &str = "ED25519 PRIVATE KEY";
const STANDARD_KEY_LABEL: &str = "PRIVATE KEY";

/// Why a talosconfig cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// There is none, or it names no context.
    #[error(
        "the talosconfig is missing or empty: put one into the Secret under the key `talosconfig`"
    )]
    Missing,
    /// It cannot be read.
    #[error("the talosconfig is malformed: {0}")]
    Malformed(String),
    /// The client certificate is past its end.
    #[error(
        "the talosconfig's client certificate expired at {0}: make a new one (`talosctl config new`) and put it into the Secret"
    )]
    Expired(Timestamp),
}

/// One context of a talosconfig, checked: the certificates and the key parse and belong together.
#[derive(Clone)]
pub struct TalosConfig {
    /// Addresses that the context names; may be empty. Ichor dials machines by their own addresses.
    pub endpoints: Vec<String>,
    /// The authority that signed the nodes' certificates, PEM.
    pub ca_pem: String,
    /// The client certificate, PEM.
    pub cert_pem: String,
    /// The client key, PEM, under the standard label. Secret.
    pub key_pem: String,
    /// When the client certificate stops being valid.
    pub expires_at: Timestamp,
    tls: Arc<ClientConfig>,
}

impl fmt::Debug for TalosConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TalosConfig")
            .field("endpoints", &self.endpoints)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

#[derive(Deserialize)]
struct File {
    #[serde(default)]
    context: Option<String>,
    #[serde(default)]
    contexts: Option<BTreeMap<String, Option<Context>>>,
}

#[derive(Deserialize)]
struct Context {
    #[serde(default)]
    endpoints: Option<Vec<String>>,
    #[serde(default)]
    ca: Option<String>,
    #[serde(default)]
    crt: Option<String>,
    #[serde(default)]
    key: Option<String>,
}

impl TalosConfig {
    /// Reads the current context of a talosconfig (YAML). Where none is named as current, a single
    /// one is taken. `now` is what the client certificate's end is compared with.
    pub fn parse(text: &str, now: Timestamp) -> Result<Self, ConfigError> {
        let malformed = |why: String| ConfigError::Malformed(why);
        if text.trim().is_empty() {
            return Err(ConfigError::Missing);
        }
        // The library's own message would quote the file, and the file holds a key.
        let file: File = serde_saphyr::from_str(text)
            .map_err(|_| malformed("it is no YAML of the form `context: NAME, contexts: {NAME: {endpoints, ca, crt, key}}`".to_owned()))?;
        let mut contexts = file.contexts.unwrap_or_default();
        let name = match file.context.filter(|name| !name.is_empty()) {
            Some(name) => name,
            None if contexts.len() > 1 => {
                return Err(malformed(
                    "it has several contexts and names none as the current one".to_owned(),
                ));
            }
            None => contexts
                .keys()
                .next()
                .cloned()
                .ok_or(ConfigError::Missing)?,
        };
        let context = contexts
            .remove(&name)
            .ok_or_else(|| {
                malformed(format!(
                    "its current context {name:?} is not among its contexts"
                ))
            })?
            .ok_or_else(|| malformed(format!("its context {name:?} is empty")))?;

        let ca_pem = pem(context.ca.as_deref(), "ca")?;
        let cert_pem = pem(context.crt.as_deref(), "crt")?;
        let key_pem =
            pem(context.key.as_deref(), "key")?.replace(TALOS_KEY_LABEL, STANDARD_KEY_LABEL);
        let expires_at = expiry(&cert_pem)?;
        let tls = Arc::new(client_tls(&ca_pem, &cert_pem, &key_pem)?);
        let config = Self {
            endpoints: context.endpoints.unwrap_or_default(),
            ca_pem,
            cert_pem,
            key_pem,
            expires_at,
            tls,
        };
        config.check(now)?;
        Ok(config)
    }

    /// Is the client certificate still valid at `now`? Talos' own ServiceAccounts get one for six hours.
    pub fn check(&self, now: Timestamp) -> Result<(), ConfigError> {
        if now >= self.expires_at {
            Err(ConfigError::Expired(self.expires_at))
        } else {
            Ok(())
        }
    }

    pub(crate) fn tls(&self) -> ClientConfig {
        self.tls.as_ref().clone()
    }
}

fn pem(field: Option<&str>, name: &str) -> Result<String, ConfigError> {
    let field = field
        .map(str::trim)
        .filter(|field| !field.is_empty())
        .ok_or_else(|| ConfigError::Malformed(format!("its context has no `{name}`")))?;
    let bytes = base64::engine::general_purpose::STANDARD
        .decode(field.split_whitespace().collect::<String>())
        .map_err(|_| ConfigError::Malformed(format!("`{name}` is not base64")))?;
    String::from_utf8(bytes)
        .map_err(|_| ConfigError::Malformed(format!("`{name}` is not base64 of PEM")))
}

fn expiry(cert_pem: &str) -> Result<Timestamp, ConfigError> {
    let malformed = |why: &str| ConfigError::Malformed(format!("`crt` {why}"));
    let der = CertificateDer::from_pem_slice(cert_pem.as_bytes())
        .map_err(|_| malformed("holds no PEM certificate"))?;
    let (_, certificate) = x509_parser::parse_x509_certificate(&der)
        .map_err(|_| malformed("holds no X.509 certificate"))?;
    Timestamp::from_second(certificate.validity().not_after.timestamp())
        .map_err(|_| malformed("ends at a time that does not exist"))
}

fn client_tls(ca_pem: &str, cert_pem: &str, key_pem: &str) -> Result<ClientConfig, ConfigError> {
    let malformed = |why: String| ConfigError::Malformed(why);
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(ca_pem.as_bytes()) {
        let certificate = certificate.map_err(|_| {
            malformed("`ca` holds something other than PEM certificates".to_owned())
        })?;
        roots
            .add(certificate)
            .map_err(|error| malformed(format!("`ca` holds no usable certificate: {error}")))?;
    }
    if roots.is_empty() {
        return Err(malformed("`ca` holds no PEM certificate".to_owned()));
    }
    let chain = CertificateDer::pem_slice_iter(cert_pem.as_bytes())
        .collect::<Result<Vec<_>, _>>()
        .map_err(|_| malformed("`crt` holds something other than PEM certificates".to_owned()))?;
    let key = PrivateKeyDer::from_pem_slice(key_pem.as_bytes())
        .map_err(|_| malformed("`key` holds no PEM private key".to_owned()))?;
    let mut tls = tls_builder()
        .with_root_certificates(roots)
        .with_client_auth_cert(chain, key)
        .map_err(|error| malformed(format!("`crt` and `key` cannot be used together: {error}")))?;
    tls.alpn_protocols = vec![b"h2".to_vec()];
    Ok(tls)
}

/// TLS with the ring provider, whatever the process has installed.
pub(crate) fn tls_builder() -> rustls::ConfigBuilder<ClientConfig, rustls::WantsVerifier> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    match ClientConfig::builder_with_provider(provider).with_safe_default_protocol_versions() {
        Ok(builder) => builder,
        // ring supports TLS 1.2 and 1.3; only a provider with neither could refuse.
        Err(_) => ClientConfig::builder(),
    }
}
