//! What the webhook needs to know about its surroundings.

use std::net::SocketAddr;
use std::time::Duration;

use crate::tls::TlsSource;
use crate::users::Users;

/// Name of the Service in front of the webhook, in the agent's namespace.
pub const SERVICE: &str = "ichor-webhook";
/// Name of the ValidatingWebhookConfiguration.
pub const CONFIGURATION: &str = "ichor";
/// Name of the Secret with the webhook's own certificate authority.
pub const SECRET: &str = "ichor-webhook-tls";

/// Bounds on one request. They all lie inside the webhook's `timeoutSeconds` of 3, so
/// that what hangs is answered with its cause instead of a timeout.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// How long one lookup may take.
    pub lookup: Duration,
    /// How long one review may take altogether.
    pub review: Duration,
    /// How many reviews are judged at once; more wait, within `review`.
    pub in_flight: usize,
    /// The largest body that is read, in bytes. A review holds the object twice, and
    /// the API server takes objects of 3 MiB.
    pub body: usize,
    /// How long a write that crossed a gate is watched until it has persisted.
    pub persisted_within: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            lookup: Duration::from_secs(1),
            review: Duration::from_millis(2500),
            in_flight: 128,
            body: 8 * 1024 * 1024,
            persisted_within: Duration::from_secs(15),
        }
    }
}

/// How the webhook is set up. [`WebhookConfig::new`] has what the shipped manifests use.
#[derive(Clone, Debug)]
pub struct WebhookConfig {
    /// Where it listens; port 0 takes a free one.
    pub listen: SocketAddr,
    /// The agent's namespace: its Service and its Secret are there.
    pub namespace: String,
    /// The pod that this is, for the Events it writes.
    pub pod_name: String,
    /// Name of the Service, part of the certificate's names.
    pub service: String,
    /// Name of the ValidatingWebhookConfiguration whose CA bundle is kept.
    pub configuration: String,
    /// Where the serving certificate comes from.
    pub tls: TlsSource,
    /// Who is known by name.
    pub users: Users,
    /// Bounds on one request.
    pub limits: Limits,
}

impl WebhookConfig {
    /// The shipped names, port 9443, and a certificate authority of its own.
    pub fn new(namespace: &str, pod_name: &str, users: Users) -> Self {
        Self {
            listen: SocketAddr::from(([0, 0, 0, 0], 9443)),
            namespace: namespace.to_owned(),
            pod_name: pod_name.to_owned(),
            service: SERVICE.to_owned(),
            configuration: CONFIGURATION.to_owned(),
            tls: TlsSource::own(),
            users,
            limits: Limits::default(),
        }
    }

    /// The name that the API server asks the certificate for.
    pub fn server_name(&self) -> String {
        format!("{}.{}.svc", self.service, self.namespace)
    }
}
