//! A certificate authority of our own: what it consists of, and when what is due.
//! Pure: times come in, nothing is read or written.

use std::collections::BTreeMap;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::ByteString;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use x509_parser::prelude::{FromDer, X509Certificate};

use crate::tls::TlsError;
use crate::tls::served::validity;

/// Certificates are made out from this long ago: the API server's clock may be behind.
const BACKDATED: Duration = Duration::from_hours(24);

/// How long certificates live.
#[derive(Clone, Copy, Debug)]
pub struct Lifetimes {
    /// The authority's. Its successor is made when a third of it is left.
    pub authority: Duration,
    /// A leaf's, of which every replica has its own. Renewed when half of it is left.
    pub leaf: Duration,
    /// How long a successor must have been published, by this process's own watching,
    /// before leaves are signed by it.
    pub overlap: Duration,
}

impl Default for Lifetimes {
    fn default() -> Self {
        Self {
            authority: Duration::from_hours(365 * 24),
            leaf: Duration::from_hours(14 * 24),
            overlap: Duration::from_mins(10),
        }
    }
}

fn unusable(what: &str, why: impl std::fmt::Display) -> TlsError {
    TlsError::Unusable {
        what: what.to_owned(),
        why: why.to_string(),
    }
}

/// Makes `params` valid for `lifetime` from `now`, backdated.
fn set_validity(params: &mut CertificateParams, now: Timestamp, lifetime: Duration) {
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let epoch = rcgen::date_time_ymd(1970, 1, 1);
    params.not_before = epoch + Duration::from_secs(seconds.saturating_sub(BACKDATED.as_secs()));
    params.not_after = epoch + Duration::from_secs(seconds) + lifetime;
}

/// One certificate authority.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authority {
    certificate: String,
    key: String,
    not_before: Timestamp,
    not_after: Timestamp,
}

impl Authority {
    /// A new one.
    pub fn generate(now: Timestamp, lifetime: Duration) -> Result<Self, TlsError> {
        let failed = |e: rcgen::Error| unusable("a new certificate authority", e);
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::default();
        set_validity(&mut params, now, lifetime);
        params.distinguished_name.push(
            DnType::CommonName,
            format!("ichor-webhook-ca-{}", now.as_second()),
        );
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::CrlSign];
        let certificate = params.self_signed(&key).map_err(failed)?.pem();
        Self::parse(
            "a new certificate authority",
            &certificate,
            &key.serialize_pem(),
        )
    }

    /// Reads one: certificate and key parse, belong together, and it may sign.
    pub fn parse(what: &str, certificate: &str, key: &str) -> Result<Self, TlsError> {
        let der = CertificateDer::from_pem_slice(certificate.as_bytes())
            .map_err(|e| unusable(what, format!("its certificate is no PEM: {e}")))?;
        let (_, parsed) = X509Certificate::from_der(&der)
            .map_err(|e| unusable(what, format!("its certificate is none: {e}")))?;
        let pair = KeyPair::from_pem(key).map_err(|e| unusable(what, format!("its key: {e}")))?;
        if !parsed.is_ca() {
            return Err(unusable(what, "its certificate may not sign others"));
        }
        if parsed.public_key().subject_public_key.data.as_ref() != pair.public_key_raw() {
            return Err(unusable(what, "certificate and key do not belong together"));
        }
        let (not_before, not_after) = validity(&parsed);
        Ok(Self {
            certificate: certificate.to_owned(),
            key: key.to_owned(),
            not_before,
            not_after,
        })
    }

    /// Its certificate, as PEM.
    pub fn certificate(&self) -> &str {
        &self.certificate
    }

    /// When it expires.
    pub fn not_after(&self) -> Timestamp {
        self.not_after
    }

    /// Whether less than a third of its life is left.
    pub fn ages(&self, now: Timestamp) -> bool {
        let life = self.not_after.duration_since(self.not_before);
        self.not_after.duration_since(now) < life / 3
    }

    /// A leaf for `server_name` with a key of its own: chain and key, as PEM. It never
    /// outlives the authority.
    pub fn leaf(
        &self,
        server_name: &str,
        now: Timestamp,
        lifetime: Duration,
    ) -> Result<(String, String), TlsError> {
        let failed = |e: rcgen::Error| unusable("a new serving certificate", e);
        if now < self.not_before {
            return Err(unusable(
                "the certificate authority",
                format!(
                    "it is valid from {}, and by this machine's clock it is {now}: the clock is behind",
                    self.not_before
                ),
            ));
        }
        let signing = KeyPair::from_pem(&self.key).map_err(failed)?;
        let issuer = Issuer::from_ca_cert_pem(&self.certificate, signing).map_err(failed)?;
        let key = KeyPair::generate().map_err(failed)?;
        let mut params = CertificateParams::new(vec![
            server_name.to_owned(),
            format!("{server_name}.cluster.local"),
        ])
        .map_err(failed)?;
        let left = Duration::try_from(self.not_after.duration_since(now)).unwrap_or_default();
        set_validity(&mut params, now, lifetime.min(left));
        params
            .distinguished_name
            .push(DnType::CommonName, "ichor-webhook");
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.use_authority_key_identifier_extension = true;
        let leaf = params.signed_by(&key, &issuer).map_err(failed)?;
        Ok((leaf.pem(), key.serialize_pem()))
    }
}

/// The authority that signs, its successor while there is one, and its predecessor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Authorities {
    /// The one that signs leaves.
    pub active: Authority,
    /// Published already, not signing yet.
    pub next: Option<Authority>,
    /// Certificate of the one before: leaves of other replicas may still be its.
    pub previous: Option<String>,
}

/// Keys of the Secret.
mod keys {
    pub(super) const ACTIVE: (&str, &str) = ("ca.crt", "ca.key");
    pub(super) const NEXT: (&str, &str) = ("next-ca.crt", "next-ca.key");
    pub(super) const PREVIOUS: &str = "previous-ca.crt";
}

impl Authorities {
    /// A single new one.
    pub fn generate(now: Timestamp, lifetimes: Lifetimes) -> Result<Self, TlsError> {
        Ok(Self {
            active: Authority::generate(now, lifetimes.authority)?,
            next: None,
            previous: None,
        })
    }

    /// Reads them from a Secret's data. A broken successor counts as none.
    ///
    /// Errors: the active one is missing, broken or expired at `now`. One that is not
    /// valid yet is none: it is this machine's clock that is behind, and no reason to
    /// make another.
    pub fn read(data: &BTreeMap<String, ByteString>, now: Timestamp) -> Result<Self, TlsError> {
        let text = |key: &str| {
            data.get(key)
                .and_then(|bytes| std::str::from_utf8(&bytes.0).ok())
                .unwrap_or_default()
        };
        let pair = |what: &str, (certificate, key): (&str, &str)| {
            Authority::parse(what, text(certificate), text(key))
        };
        let next = pair("the next certificate authority", keys::NEXT).ok();
        let active = pair("the certificate authority", keys::ACTIVE)?;
        if now >= active.not_after {
            return Err(unusable(
                "the certificate authority",
                format!("it expired at {}, and it is {now} now", active.not_after),
            ));
        }
        Ok(Self {
            active,
            next: next.filter(|next| now < next.not_after),
            previous: Some(text(keys::PREVIOUS).to_owned())
                .filter(|pem| certificate_is_valid(pem, now)),
        })
    }

    /// As a Secret's data.
    pub fn write(&self) -> BTreeMap<String, ByteString> {
        let mut data = BTreeMap::new();
        let mut put = |key: &str, text: &str| {
            data.insert(key.to_owned(), ByteString(text.as_bytes().to_vec()));
        };
        put(keys::ACTIVE.0, &self.active.certificate);
        put(keys::ACTIVE.1, &self.active.key);
        if let Some(next) = &self.next {
            put(keys::NEXT.0, &next.certificate);
            put(keys::NEXT.1, &next.key);
        }
        if let Some(previous) = &self.previous {
            put(keys::PREVIOUS, previous);
        }
        data
    }

    /// Every certificate that a served leaf may be signed by, as PEM: the CA bundle.
    pub fn bundle(&self) -> String {
        let mut bundle = self.active.certificate.clone();
        let more = self
            .next
            .iter()
            .map(|next| next.certificate.as_str())
            .chain(self.previous.as_deref());
        for certificate in more {
            if !bundle.ends_with('\n') {
                bundle.push('\n');
            }
            bundle.push_str(certificate);
        }
        bundle
    }

    /// The successor takes over; the one before stays published until it expires.
    #[must_use]
    pub fn promoted(self) -> Self {
        match self.next {
            None => self,
            Some(next) => Self {
                active: next,
                next: None,
                previous: Some(self.active.certificate),
            },
        }
    }
}

fn certificate_is_valid(pem: &str, now: Timestamp) -> bool {
    let Ok(der) = CertificateDer::from_pem_slice(pem.as_bytes()) else {
        return false;
    };
    let Ok((_, parsed)) = X509Certificate::from_der(&der) else {
        return false;
    };
    let (not_before, not_after) = validity(&parsed);
    parsed.is_ca() && not_before <= now && now < not_after
}
