//! What looks at certificates the way an API server does.
#![allow(dead_code, clippy::expect_used)] // each test uses a part of it

use std::sync::Arc;
use std::time::Duration;

use ichor_webhook::metrics::Metrics;
use ichor_webhook::tls::Certificates;
use ichor_webhook::tls::authority::Lifetimes;
use ichor_webhook::tls::own::OwnAuthority;
use ichor_webhook::tls::publish::Publisher;
use ichor_webhook::{Users, WebhookConfig};
use jiff::Timestamp;
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use rustls::{ClientConfig, RootCertStore};
use serde_json::{Value, json};

use super::support::FakeApi;

pub const NAME: &str = "ichor-webhook.ichor-system.svc";
pub const SECRET: &str = "/api/v1/namespaces/ichor-system/secrets/ichor-webhook-tls";
pub const CONFIGURATION: &str =
    "/apis/admissionregistration.k8s.io/v1/validatingwebhookconfigurations/ichor";

pub fn config() -> WebhookConfig {
    let users = Users::new("ichor-system", "ichor-agent", "", "");
    WebhookConfig {
        listen: ([127, 0, 0, 1], 0).into(),
        ..WebhookConfig::new("ichor-system", "ichor-agent-0", users)
    }
}

/// The shipped configuration in short, with a stranger's webhook in it.
pub fn configuration() -> Value {
    let webhook = |name: &str, namespace: &str| {
        json!({"name": name, "sideEffects": "None", "admissionReviewVersions": ["v1"],
            "clientConfig": {"service": {"name": "ichor-webhook", "namespace": namespace, "path": "/x"}}})
    };
    json!({"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration",
    "metadata": {"name": "ichor"},
    "webhooks": [
        webhook("talosmachine.ichor.maesh.dev", "ichor-system"),
        webhook("stranger.example.org", "elsewhere"),
        webhook("override.ichor.maesh.dev", "ichor-system"),
    ]})
}

pub fn api() -> FakeApi {
    let api = FakeApi::demo();
    api.put(CONFIGURATION, configuration());
    api
}

/// The bundle as it is published, per webhook.
pub fn bundles(api: &FakeApi) -> Vec<Option<Vec<u8>>> {
    use base64::Engine as _;
    let configuration = api.get(CONFIGURATION).expect("the configuration");
    let webhooks = configuration["webhooks"]
        .as_array()
        .expect("webhooks")
        .clone();
    let bundle = |w: &Value| {
        let text = w["clientConfig"]["caBundle"].as_str()?;
        Some(
            base64::engine::general_purpose::STANDARD
                .decode(text)
                .expect("base64"),
        )
    };
    webhooks.iter().map(bundle).collect()
}

pub fn published(api: &FakeApi) -> Vec<u8> {
    bundles(api)[0].clone().expect("a bundle is published")
}

pub fn certificates_in(bundle: &[u8]) -> usize {
    CertificateDer::pem_slice_iter(bundle).count()
}

pub fn roots(bundle: &[u8]) -> RootCertStore {
    let mut roots = RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle) {
        roots
            .add(certificate.expect("PEM"))
            .expect("a certificate authority");
    }
    roots
}

/// Verifies what is served against what is published, as an API server at `now` would.
pub fn verifies(
    api: &FakeApi,
    certificates: &Certificates,
    now: Timestamp,
) -> Result<(), rustls::Error> {
    let served = certificates.current().expect("a certificate is served");
    let verifier = rustls::client::WebPkiServerVerifier::builder_with_provider(
        Arc::new(roots(&published(api))),
        Arc::new(rustls::crypto::ring::default_provider()),
    )
    .build()
    .expect("a verifier");
    let name = ServerName::try_from(NAME).expect("a name");
    let seconds = u64::try_from(now.as_second()).expect("after 1970");
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    verifier
        .verify_server_cert(served.leaf(), &[], &name, &[], at)
        .map(|_| ())
}

pub fn client(bundle: &[u8]) -> ClientConfig {
    ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_root_certificates(roots(bundle))
        .with_no_client_auth()
}

/// One replica's certificate, with a clock that the test moves.
pub struct Replica {
    pub authority: OwnAuthority,
    pub certificates: Arc<Certificates>,
    clock: Arc<std::sync::Mutex<Timestamp>>,
}

impl Replica {
    pub fn new(api: &FakeApi, now: Timestamp) -> Self {
        Self::with(api, now, Lifetimes::default())
    }

    pub fn with(api: &FakeApi, now: Timestamp, lifetimes: Lifetimes) -> Self {
        let config = config();
        let clock = Arc::new(std::sync::Mutex::new(now));
        let read = clock.clone();
        Self {
            authority: OwnAuthority::new(
                api.client(),
                "ichor-system",
                "ichor-webhook-tls",
                config.server_name(),
                lifetimes,
                Publisher::new(&config, api.client()),
            )
            .with_time(Arc::new(move || *read.lock().expect("lock"))),
            certificates: Arc::new(Certificates::new(Metrics::default())),
            clock,
        }
    }

    pub fn now(&self) -> Timestamp {
        *self.clock.lock().expect("lock")
    }

    pub fn goes_to(&self, now: Timestamp) {
        *self.clock.lock().expect("lock") = now;
    }

    pub async fn pass(&mut self) -> Result<(), String> {
        let passed = self.authority.pass(&self.certificates).await;
        self.certificates.note(&passed);
        passed.map_err(|e| e.to_string())
    }
}
