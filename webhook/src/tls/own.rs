//! Keeping a certificate authority of our own: in a Secret that replicas share, its
//! bundle published before anything is signed by it, every write on the version read.

use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::Client;
use kube::api::{Api, ObjectMeta, PostParams};
use rustls::client::danger::ServerCertVerifier;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, ServerName, UnixTime};
use tokio::time::Instant;

use crate::tls::authority::{Authorities, Lifetimes};
use crate::tls::publish::Publisher;
use crate::tls::served::{Certificates, Served};
use crate::tls::{TlsError, ask};

/// Label that makes the Secret ours to replace.
const MANAGED_BY: &str = "app.kubernetes.io/managed-by";
/// Its value.
const OURS: &str = "ichor-agent";

/// Tells the time; tests bring their own.
pub type Now = Arc<dyn Fn() -> Timestamp + Send + Sync>;

/// The authority's keeper.
pub struct OwnAuthority {
    secrets: Api<Secret>,
    namespace: String,
    name: String,
    server_name: String,
    lifetimes: Lifetimes,
    publisher: Publisher,
    now: Now,
    /// The successor that is published, and since when by our own watching.
    watched: Option<(String, Instant)>,
    /// Certificate of the authority that our leaf is signed by.
    signed_by: Option<String>,
}

/// The authorities as they are stored, and the Secret they were read from.
struct Stored {
    authorities: Authorities,
    secret: Secret,
}

impl OwnAuthority {
    /// Keeps the authority in Secret `namespace`/`name`, for a server that is asked for
    /// by `server_name`.
    pub fn new(
        client: Client,
        namespace: &str,
        name: &str,
        server_name: String,
        lifetimes: Lifetimes,
        publisher: Publisher,
    ) -> Self {
        Self {
            secrets: Api::namespaced(client, namespace),
            namespace: namespace.to_owned(),
            name: name.to_owned(),
            server_name,
            lifetimes,
            publisher,
            now: Arc::new(Timestamp::now),
            watched: None,
            signed_by: None,
        }
    }

    /// Takes the time from `now`.
    #[must_use]
    pub fn with_time(mut self, now: Now) -> Self {
        self.now = now;
        self
    }

    /// One look: makes or renews what is due, publishes, then swaps the leaf.
    pub async fn pass(&mut self, certificates: &Certificates) -> Result<(), TlsError> {
        let now = (self.now)();
        let mut stored = self.load(now).await?;
        if stored.authorities.next.is_none() && stored.authorities.active.ages(now) {
            tracing::info!(expires = %stored.authorities.active.not_after(), "making the next certificate authority");
            let mut authorities = stored.authorities.clone();
            authorities.next = Some(crate::tls::authority::Authority::generate(
                now,
                self.lifetimes.authority,
            )?);
            stored = self.store(stored, authorities, now).await?;
        }
        // Published first, signed with later: whoever verifies knows both.
        let published = self
            .publisher
            .publish(stored.authorities.bundle().as_bytes())
            .await;
        if published.is_ok() {
            if self.is_due_for_promotion(&stored.authorities) {
                tracing::info!("the next certificate authority takes over");
                let promoted = stored.authorities.clone().promoted();
                stored = self.store(stored, promoted, now).await?;
            }
        } else {
            self.watched = None;
        }
        self.renew_leaf(&stored.authorities, certificates, now)?;
        published
    }

    /// Whether the successor has stood published for long enough, by our own watching.
    fn is_due_for_promotion(&mut self, authorities: &Authorities) -> bool {
        let Some(next) = &authorities.next else {
            self.watched = None;
            return false;
        };
        match &self.watched {
            Some((certificate, since)) if certificate == next.certificate() => {
                since.elapsed() >= self.lifetimes.overlap
            }
            _ => {
                self.watched = Some((next.certificate().to_owned(), Instant::now()));
                self.lifetimes.overlap == Duration::ZERO
            }
        }
    }

    fn renew_leaf(
        &mut self,
        authorities: &Authorities,
        certificates: &Certificates,
        now: Timestamp,
    ) -> Result<(), TlsError> {
        let active = authorities.active.certificate();
        let fresh = certificates.current().is_some_and(|served| {
            let life = served.not_after.duration_since(served.not_before);
            served.not_after.duration_since(now) > life / 2
        });
        if fresh && self.signed_by.as_deref() == Some(active) {
            return Ok(());
        }
        let (chain, key) = authorities
            .active
            .leaf(&self.server_name, now, self.lifetimes.leaf)?;
        let what = "a new serving certificate";
        let served = Served::check(
            what,
            chain.as_bytes(),
            key.as_bytes(),
            &self.server_name,
            now,
        )?;
        verify(&served, &authorities.bundle(), &self.server_name, now)?;
        certificates.swap(served);
        self.signed_by = Some(active.to_owned());
        Ok(())
    }

    /// The shared authorities; made where there are none, made anew where they are ours
    /// and broken.
    async fn load(&self, now: Timestamp) -> Result<Stored, TlsError> {
        let what = || format!("read Secret {}/{}", self.namespace, self.name);
        let Some(secret) = ask(what, self.secrets.get_opt(&self.name)).await? else {
            return self.create(now).await;
        };
        match Authorities::read(&secret.data.clone().unwrap_or_default(), now) {
            Ok(authorities) => Ok(Stored {
                authorities,
                secret,
            }),
            Err(error) if is_ours(&secret) => {
                tracing::error!(%error, "Secret {}/{} is made anew", self.namespace, self.name);
                let authorities = Authorities::generate(now, self.lifetimes)?;
                let stored = Stored {
                    authorities: authorities.clone(),
                    secret,
                };
                self.store(stored, authorities, now).await
            }
            Err(error) => Err(TlsError::Foreign {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                label: "app.kubernetes.io/managed-by: ichor-agent",
                why: error.to_string(),
            }),
        }
    }

    /// Creates the Secret if it is absent still; else takes what another replica made.
    async fn create(&self, now: Timestamp) -> Result<Stored, TlsError> {
        let authorities = Authorities::generate(now, self.lifetimes)?;
        let secret = Secret {
            metadata: ObjectMeta {
                name: Some(self.name.clone()),
                labels: Some([(MANAGED_BY.to_owned(), OURS.to_owned())].into()),
                ..ObjectMeta::default()
            },
            data: Some(authorities.write()),
            type_: Some("Opaque".into()),
            ..Secret::default()
        };
        let what = || format!("create Secret {}/{}", self.namespace, self.name);
        match ask(what, self.secrets.create(&PostParams::default(), &secret)).await {
            Ok(secret) => Ok(Stored {
                authorities,
                secret,
            }),
            Err(TlsError::Api { source, .. }) if matches!(source.as_ref(), kube::Error::Api(s) if s.is_already_exists()) =>
            {
                let what = || format!("read Secret {}/{}", self.namespace, self.name);
                let secret = ask(what, self.secrets.get(&self.name)).await?;
                let authorities = Authorities::read(&secret.data.clone().unwrap_or_default(), now)?;
                Ok(Stored {
                    authorities,
                    secret,
                })
            }
            Err(other) => Err(other),
        }
    }

    /// Stores `authorities` on the version that was read. Where another replica was
    /// faster, what it stored counts.
    async fn store(
        &self,
        stored: Stored,
        authorities: Authorities,
        now: Timestamp,
    ) -> Result<Stored, TlsError> {
        if !is_ours(&stored.secret) {
            return Err(TlsError::Foreign {
                namespace: self.namespace.clone(),
                name: self.name.clone(),
                label: "app.kubernetes.io/managed-by: ichor-agent",
                why: format!(
                    "it has to be renewed (it expires at {})",
                    stored.authorities.active.not_after()
                ),
            });
        }
        let mut secret = stored.secret;
        secret.data = Some(authorities.write());
        let what = || format!("write Secret {}/{}", self.namespace, self.name);
        let params = PostParams::default();
        let write = self.secrets.replace(&self.name, &params, &secret);
        match ask(what, write).await {
            Ok(secret) => Ok(Stored {
                authorities,
                secret,
            }),
            Err(TlsError::Api { source, .. }) if matches!(source.as_ref(), kube::Error::Api(s) if s.is_conflict()) =>
            {
                let what = || format!("read Secret {}/{}", self.namespace, self.name);
                let secret = ask(what, self.secrets.get(&self.name)).await?;
                let authorities = Authorities::read(&secret.data.clone().unwrap_or_default(), now)?;
                Ok(Stored {
                    authorities,
                    secret,
                })
            }
            Err(other) => Err(other),
        }
    }
}

fn is_ours(secret: &Secret) -> bool {
    secret
        .metadata
        .labels
        .as_ref()
        .and_then(|labels| labels.get(MANAGED_BY))
        .is_some_and(|value| value == OURS)
}

/// Verifies the leaf as the API server will: against the bundle, by name, at `now`.
fn verify(
    served: &Served,
    bundle: &str,
    server_name: &str,
    now: Timestamp,
) -> Result<(), TlsError> {
    let failed = |why: String| TlsError::Unusable {
        what: "a new serving certificate".into(),
        why,
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in CertificateDer::pem_slice_iter(bundle.as_bytes()) {
        let certificate = certificate.map_err(|e| failed(e.to_string()))?;
        roots.add(certificate).map_err(|e| failed(e.to_string()))?;
    }
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let verifier =
        rustls::client::WebPkiServerVerifier::builder_with_provider(Arc::new(roots), provider)
            .build()
            .map_err(|e| failed(e.to_string()))?;
    let name = ServerName::try_from(server_name).map_err(|e| failed(e.to_string()))?;
    let seconds = u64::try_from(now.as_second()).unwrap_or_default();
    let at = UnixTime::since_unix_epoch(Duration::from_secs(seconds));
    verifier
        .verify_server_cert(served.leaf(), &[], &name, &[], at)
        .map(|_| ())
        .map_err(|e| failed(format!("it does not verify against the CA bundle: {e}")))
}
