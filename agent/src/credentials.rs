//! Talos credentials and the kubeconfig of a remote cluster, from Secrets of the
//! cluster's own namespace. Kept for a minute, so that a pass costs no read; dropped
//! at once when a node does not accept them.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::Duration;

use ichor_api::TalosCluster;
use ichor_lock::clock::Clock;
use ichor_rules::DirectReader;
use ichor_talos::config::{ConfigError, TalosConfig};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Secret;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use tokio::sync::Mutex;

/// How long credentials are used before their Secret is read again.
const KEPT: Duration = Duration::from_mins(1);

/// Credentials that cannot be used. Each text says what is wrong and where.
#[derive(Clone, Debug, thiserror::Error)]
pub enum CredentialsError {
    /// The Secret could not be read.
    #[error(
        "Secret {secret} cannot be read: {why}. The agent reads Secrets only in the namespaces that its Roles list"
    )]
    Unreadable {
        /// `namespace/name`.
        secret: String,
        /// Why.
        why: String,
    },
    /// There is no such Secret, or it lacks the key.
    #[error("{0}")]
    Missing(String),
    /// What it holds is not usable.
    #[error("the talosconfig in Secret {secret} cannot be used: {why}")]
    Talos {
        /// `namespace/name`.
        secret: String,
        /// Why.
        why: ConfigError,
    },
    /// What it holds is no kubeconfig.
    #[error("the kubeconfig in Secret {secret} cannot be used: {why}")]
    Kubeconfig {
        /// `namespace/name`.
        secret: String,
        /// Why.
        why: String,
    },
}

struct Kept<T> {
    at: Duration,
    value: T,
}

/// By namespace and name of the Secret.
type BySecret<T> = HashMap<(String, String), Kept<T>>;

/// The credentials of every cluster, as last read.
pub struct Credentials {
    reader: DirectReader,
    own: Client,
    clock: Arc<dyn Clock>,
    talos: Mutex<BySecret<Arc<TalosConfig>>>,
    kubernetes: Mutex<BySecret<Client>>,
}

impl Credentials {
    /// Reads Secrets through `reader`; `own` is the cluster that the agent runs in.
    pub fn new(reader: DirectReader, own: Client, clock: Arc<dyn Clock>) -> Self {
        Self {
            reader,
            own,
            clock,
            talos: Mutex::default(),
            kubernetes: Mutex::default(),
        }
    }

    /// The talosconfig of `cluster`.
    pub async fn talos(
        &self,
        cluster: &TalosCluster,
    ) -> Result<Arc<TalosConfig>, CredentialsError> {
        let namespace = cluster.metadata.namespace.clone().unwrap_or_default();
        let name = cluster.spec.talos.credentials_secret_ref.name.clone();
        let key = (namespace, name);
        let mut talos = self.talos.lock().await;
        let now = self.clock.now();
        if let Some(kept) = talos.get(&key)
            && now.saturating_sub(kept.at) < KEPT
        {
            return Ok(kept.value.clone());
        }
        let text = self
            .read(&key.0, &key.1, &["talosconfig", "config"])
            .await?;
        let config =
            TalosConfig::parse(&text, Timestamp::now()).map_err(|why| CredentialsError::Talos {
                secret: format!("{}/{}", key.0, key.1),
                why,
            })?;
        let config = Arc::new(config);
        talos.insert(
            key,
            Kept {
                at: now,
                value: config.clone(),
            },
        );
        Ok(config)
    }

    /// Forgets the talosconfig of `cluster`: the next use reads it again.
    pub async fn forget_talos(&self, cluster: &TalosCluster) {
        let key = (
            cluster.metadata.namespace.clone().unwrap_or_default(),
            cluster.spec.talos.credentials_secret_ref.name.clone(),
        );
        self.talos.lock().await.remove(&key);
    }

    /// A client of the Kubernetes cluster whose Nodes `cluster`'s machines are.
    pub async fn kubernetes(&self, cluster: &TalosCluster) -> Result<Client, CredentialsError> {
        let Some(secret) = cluster
            .spec
            .kubernetes
            .as_ref()
            .and_then(|k| k.credentials_secret_ref.as_ref())
        else {
            return Ok(self.own.clone());
        };
        let key = (
            cluster.metadata.namespace.clone().unwrap_or_default(),
            secret.name.clone(),
        );
        let mut kubernetes = self.kubernetes.lock().await;
        let now = self.clock.now();
        if let Some(kept) = kubernetes.get(&key)
            && now.saturating_sub(kept.at) < KEPT
        {
            return Ok(kept.value.clone());
        }
        let text = self.read(&key.0, &key.1, &["kubeconfig", "value"]).await?;
        let bad = |why: String| CredentialsError::Kubeconfig {
            secret: format!("{}/{}", key.0, key.1),
            why,
        };
        let kubeconfig = Kubeconfig::from_yaml(&text).map_err(|e| bad(e.to_string()))?;
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
            .await
            .map_err(|e| bad(e.to_string()))?;
        let client = ichor_rules::connect::client(config).map_err(|e| bad(e.to_string()))?;
        kubernetes.insert(
            key,
            Kept {
                at: now,
                value: client.clone(),
            },
        );
        Ok(client)
    }

    async fn read(
        &self,
        namespace: &str,
        name: &str,
        keys: &[&str],
    ) -> Result<String, CredentialsError> {
        let secret = self
            .reader
            .get::<Secret>(namespace, name)
            .await
            .map_err(|e| CredentialsError::Unreadable {
                secret: format!("{namespace}/{name}"),
                why: crate::errors::chain(&e),
            })?
            .ok_or_else(|| {
                CredentialsError::Missing(format!(
                    "there is no Secret {namespace}/{name}; create it with key {}",
                    keys[0]
                ))
            })?;
        let data = secret.data.unwrap_or_default();
        let bytes = keys.iter().find_map(|key| data.get(*key)).ok_or_else(|| {
            CredentialsError::Missing(format!(
                "Secret {namespace}/{name} has no key {}; it has: {}",
                keys.join(" and no key "),
                if data.is_empty() {
                    "nothing".to_owned()
                } else {
                    data.keys().cloned().collect::<Vec<_>>().join(", ")
                }
            ))
        })?;
        String::from_utf8(bytes.0.clone()).map_err(|_| {
            CredentialsError::Missing(format!("Secret {namespace}/{name}: the value is no text"))
        })
    }
}
