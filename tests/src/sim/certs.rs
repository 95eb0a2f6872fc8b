//! Certificates as Talos makes them: an Ed25519 authority, server certificates that are made anew
//! at each boot, and a client certificate whose organisations are its roles.

use std::fmt::Write as _;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use base64::Engine as _;
use jiff::Timestamp;
use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DistinguishedName, DnType,
    ExtendedKeyUsagePurpose, IsCa, KeyPair, KeyUsagePurpose, PKCS_ED25519, SanType, date_time_ymd,
};
use rustls::RootCertStore;
use rustls::ServerConfig;
use rustls::server::WebPkiClientVerifier;
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::{BedError, Result};

/// One cluster's authority.
pub(super) struct TalosCa {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl TalosCa {
    pub(super) fn new() -> Result<Self> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::OrganizationName, "talos")]);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
        ];
        params.extended_key_usages = vec![
            ExtendedKeyUsagePurpose::ServerAuth,
            ExtendedKeyUsagePurpose::ClientAuth,
        ];
        Ok(Self {
            issuer: CertifiedIssuer::self_signed(params, key)?,
        })
    }

    fn server(
        &self,
        host: &str,
        address: Ipv4Addr,
    ) -> Result<(Vec<CertificateDer<'static>>, PrivateKeyDer<'static>)> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::CommonName, host)]);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        params.subject_alt_names = vec![
            SanType::IpAddress(address.into()),
            SanType::IpAddress(Ipv4Addr::LOCALHOST.into()),
            SanType::DnsName(host.try_into()?),
        ];
        let certificate = params.signed_by(&key, &self.issuer)?;
        let key = PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(key.serialize_der()));
        Ok((vec![certificate.der().clone()], key))
    }

    /// TLS of a configured node: both sides show a certificate of this authority.
    pub(super) fn configured(&self, host: &str, address: Ipv4Addr) -> Result<Arc<ServerConfig>> {
        let mut roots = RootCertStore::empty();
        roots.add(self.issuer.der().clone())?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let verifier =
            WebPkiClientVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
                .build()
                .map_err(|e| BedError::Refused(format!("no client verifier: {e}")))?;
        let (chain, key) = self.server(host, address)?;
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_client_cert_verifier(verifier)
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(tls))
    }

    /// TLS of a machine in maintenance: an authority of its own, and no certificate asked for.
    pub(super) fn maintenance(host: &str, address: Ipv4Addr) -> Result<Arc<ServerConfig>> {
        let (chain, key) = Self::new()?.server(host, address)?;
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let mut tls = ServerConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_single_cert(chain, key)?;
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Arc::new(tls))
    }

    /// A talosconfig with this role, whose certificate ends at `until`.
    pub(super) fn talosconfig(
        &self,
        context: &str,
        role: &str,
        endpoints: &[String],
        until: Timestamp,
    ) -> Result<String> {
        let key = KeyPair::generate_for(&PKCS_ED25519)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(&[(DnType::OrganizationName, role)]);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        // apid wants exactly this one usage.
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        params.not_before = date_time_ymd(2020, 1, 1);
        params.not_after = date_time_ymd(1970, 1, 1)
            + Duration::from_secs(u64::try_from(until.as_second()).unwrap_or_default());
        let certificate = params.signed_by(&key, &self.issuer)?;
        let base64 = |text: &str| base64::engine::general_purpose::STANDARD.encode(text);
        // Talos' own label, which TLS libraries refuse as it stands.
        let key = key
            .serialize_pem()
            .replace("PRIVATE KEY", "ED25519 PRIVATE KEY");
        let mut text =
            format!("context: {context}\ncontexts:\n    {context}:\n        endpoints:\n");
        for endpoint in endpoints {
            let _ = writeln!(text, "            - {endpoint}");
        }
        let _ = writeln!(
            text,
            "        ca: {}\n        crt: {}\n        key: {}",
            base64(&self.issuer.pem()),
            base64(&certificate.pem()),
            base64(&key)
        );
        Ok(text)
    }
}

fn name(parts: &[(DnType, &str)]) -> DistinguishedName {
    let mut name = DistinguishedName::new();
    for (kind, value) in parts {
        name.push(kind.clone(), *value);
    }
    name
}
