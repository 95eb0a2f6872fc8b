//! The certificates of the control plane and of the proxy in front of it.

use rcgen::{
    BasicConstraints, CertificateParams, CertifiedIssuer, DnType, ExtendedKeyUsagePurpose, IsCa,
    KeyPair, KeyUsagePurpose,
};
use rustls_pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};

use crate::error::Result;

/// A certificate authority of one bed.
#[derive(Debug)]
pub struct Authority {
    issuer: CertifiedIssuer<'static, KeyPair>,
}

/// A certificate with its key, in PEM.
#[derive(Clone, Debug)]
pub struct KeyAndCertificate {
    /// The certificate.
    pub certificate: String,
    /// The private key, PKCS #8.
    pub key: String,
    der: CertificateDer<'static>,
    key_der: Vec<u8>,
}

impl Authority {
    /// A new authority with the common name `name`.
    pub fn new(name: &str) -> Result<Self> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate()?)?;
        Ok(Self { issuer })
    }

    /// Its own certificate, in PEM.
    pub fn pem(&self) -> String {
        self.issuer.pem()
    }

    /// Its own certificate, in DER.
    pub fn der(&self) -> &CertificateDer<'static> {
        self.issuer.der()
    }

    /// A server's certificate for `names` (host names or IP addresses).
    pub fn server(&self, names: &[&str]) -> Result<KeyAndCertificate> {
        let names: Vec<String> = names.iter().map(ToString::to_string).collect();
        let mut params = CertificateParams::new(names.clone())?;
        let name = names.first().map_or("server", String::as_str);
        params.distinguished_name.push(DnType::CommonName, name);
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params)
    }

    /// A client's certificate, as Kubernetes reads it: the common name is the user, the
    /// organizations are the groups.
    pub fn client(&self, user: &str, groups: &[&str]) -> Result<KeyAndCertificate> {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, user);
        // A name holds one value a type here; further groups go by the token file.
        if let Some(group) = groups.first() {
            params
                .distinguished_name
                .push(DnType::OrganizationName, *group);
        }
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(params)
    }

    fn sign(&self, mut params: CertificateParams) -> Result<KeyAndCertificate> {
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        Ok(KeyAndCertificate {
            certificate: certificate.pem(),
            key: key.serialize_pem(),
            der: certificate.der().clone(),
            key_der: key.serialize_der(),
        })
    }
}

impl KeyAndCertificate {
    /// The chain, for rustls.
    pub fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.der.clone()]
    }

    /// The key, for rustls.
    pub fn private_key(&self) -> PrivateKeyDer<'static> {
        PrivateKeyDer::Pkcs8(PrivatePkcs8KeyDer::from(self.key_der.clone()))
    }
}

/// A key pair for signing ServiceAccount tokens: private and public key, in PEM.
pub fn signing_key() -> Result<(String, String)> {
    let key = KeyPair::generate()?;
    Ok((key.serialize_pem(), key.public_key_pem()))
}
