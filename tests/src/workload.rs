//! Pods on a node of their own, for drains: tests and benches make them alike.
//!
//! The pods have a controller that makes none again (a ConfigMap, which no controller acts
//! on): an evicted pod is gone, and nothing lands on a node that somebody else drains.

use std::time::Duration;

use futures::StreamExt as _;
use futures::stream;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{ListParams, PostParams};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config, Resource as _};
use serde_json::{Value, json};

use crate::agents::service_account_token;
use crate::bed::Bed;
use crate::controlplane::users::kubeconfig_with_token;
use crate::error::{BedError, Result};
use crate::kubelet::{NodeIdentity, NodeRole};
use crate::wait::until;

/// How long pods and budgets are waited for.
const SOON: Duration = Duration::from_secs(120);
/// Creations in flight.
const AT_ONCE: usize = 32;

/// A namespace and a node of the same name, with pods.
pub struct Workload {
    client: Client,
    name: String,
    owner: Value,
}

impl Workload {
    /// Makes the namespace and the node `name`, which nothing is scheduled to by itself.
    pub async fn new(bed: &Bed, name: &str) -> Result<Self> {
        Self::with_role(bed, name, NodeRole::Bed).await
    }

    /// Makes the namespace and the node `name`, of this role.
    pub async fn with_role(bed: &Bed, name: &str, role: NodeRole) -> Result<Self> {
        let client = bed.client("admin").await?;
        let namespaces: Api<Namespace> = Api::all(client.clone());
        create(&namespaces, json!({ "metadata": { "name": name } })).await?;
        let identity = NodeIdentity {
            name: name.to_owned(),
            role,
            address: [127, 0, 0, 1].into(),
            system_uuid: uuid(),
            boot_id: uuid(),
            kubelet_version: "v1.36.3".to_owned(),
            os_image: "Talos (v1.14.1)".to_owned(),
        };
        bed.kubelets().run(identity).await?;
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), name);
        until(
            SOON,
            "the namespace's ServiceAccount",
            async || match accounts.get_opt("default").await {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await?;
        let owners: Api<ConfigMap> = Api::namespaced(client.clone(), name);
        let owner = create(&owners, json!({ "metadata": { "name": "owner" } })).await?;
        let owner = owner
            .controller_owner_ref(&())
            .and_then(|reference| serde_json::to_value(reference).ok())
            .unwrap_or_default();
        Ok(Self {
            client,
            name: name.to_owned(),
            owner,
        })
    }

    /// The name of the node and of the namespace.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// An administrator's client.
    pub fn client(&self) -> &Client {
        &self.client
    }

    /// The namespace's objects of one kind.
    pub fn api<K>(&self) -> Api<K>
    where
        K: kube::Resource<Scope = k8s_openapi::NamespaceResourceScope, DynamicType = ()>,
    {
        Api::namespaced(self.client.clone(), &self.name)
    }

    /// A pod on the node, of label `app`, with a controller; it ends at once.
    pub fn pod(&self, name: &str, app: &str) -> Value {
        json!({
            "metadata": {
                "name": name,
                "labels": { "app": app },
                "annotations": {},
                "ownerReferences": [self.owner],
            },
            "spec": {
                "nodeName": self.name,
                "terminationGracePeriodSeconds": 0,
                "containers": [{ "name": "main", "image": "none" }],
            },
        })
    }

    /// Creates `pods` and waits until the kubelet has looked at all: ready, where they may be.
    pub async fn run(&self, pods: impl IntoIterator<Item = Value>) -> Result<()> {
        let api = self.api::<Pod>();
        let created: Vec<Result<Pod>> = stream::iter(pods)
            .map(|pod| {
                let api = api.clone();
                async move { create(&api, pod).await }
            })
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        created.into_iter().collect::<Result<Vec<_>>>()?;
        until(SOON, "the pods to run", async || {
            let list = api.list(&ListParams::default()).await;
            let list = list.map_err(|e| e.to_string())?;
            let waiting = list.iter().filter(|pod| {
                let status = pod.status.as_ref();
                status.and_then(|s| s.phase.as_deref()) == Some("Pending")
            });
            match waiting.count() {
                0 => Ok(()),
                n => Err(format!("{n} of {} have not started", list.items.len())),
            }
        })
        .await
    }

    /// Makes a budget over the pods labelled `app`, and waits until it counts
    /// `healthy` of them.
    pub async fn budget(
        &self,
        name: &str,
        app: &str,
        min_available: i32,
        healthy: i32,
    ) -> Result<()> {
        let api = self.api::<PodDisruptionBudget>();
        let budget = json!({
            "metadata": { "name": name },
            "spec": {
                "minAvailable": min_available,
                "selector": { "matchLabels": { "app": app } },
            },
        });
        create(&api, budget).await?;
        until(SOON, "the budget to be worked out", async || {
            let status = api.get(name).await.map_err(|e| e.to_string())?.status;
            match status {
                Some(s) if s.current_healthy == healthy && s.observed_generation.is_some() => {
                    Ok(())
                }
                other => Err(format!("{other:?}")),
            }
        })
        .await
    }

    /// Names of the pods that are on the node.
    pub async fn pods(&self) -> Result<Vec<String>> {
        let on_node = ListParams::default().fields(&format!("spec.nodeName={}", self.name));
        let list = Api::<Pod>::all(self.client.clone())
            .list(&on_node)
            .await
            .map_err(|e| BedError::api("failed to list pods", e))?;
        Ok(list.into_iter().filter_map(|p| p.metadata.name).collect())
    }
}

/// A client with the token of the agent's ServiceAccount, made as the agent makes its own,
/// of the API server (or the proxy before it) at `url`.
pub async fn agent_client(bed: &Bed, url: &str) -> Result<Client> {
    let admin = bed.client("admin").await?;
    let namespace = ichor_api::names::AGENT_NAMESPACE;
    let account = ichor_api::names::AGENT_SERVICE_ACCOUNT;
    let token = service_account_token(&admin, namespace, account).await?;
    let ca = bed.control_plane().authority().pem();
    let text = kubeconfig_with_token(url, &ca, &token, namespace);
    let refused = |error: String| BedError::Refused(format!("no client for the agent: {error}"));
    let kubeconfig = Kubeconfig::from_yaml(&text).map_err(|e| refused(e.to_string()))?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default())
        .await
        .map_err(|e| refused(e.to_string()))?;
    ichor_rules::connect::client(config).map_err(|e| refused(e.to_string()))
}

async fn create<K>(api: &Api<K>, object: Value) -> Result<K>
where
    K: Clone + std::fmt::Debug + serde::Serialize + serde::de::DeserializeOwned,
{
    let what = || format!("failed to create {}", object["metadata"]["name"]);
    let parsed = serde_json::from_value(object.clone())
        .map_err(|e| BedError::Refused(format!("{}: {e}", what())))?;
    api.create(&PostParams::default(), &parsed)
        .await
        .map_err(|e| BedError::api(what(), e))
}

fn uuid() -> String {
    let bits: u128 = rand::random();
    let hex = format!("{bits:032x}");
    format!(
        "{}-{}-{}-{}-{}",
        &hex[..8],
        &hex[8..12],
        &hex[12..16],
        &hex[16..20],
        &hex[20..]
    )
}

/// `pod` with one value set, by JSON pointer.
pub fn set(mut pod: Value, pointer: &str, value: Value) -> Value {
    if let Some((parent, key)) = pointer.rsplit_once('/')
        && let Some(parent) = pod.pointer_mut(parent)
    {
        parent[key] = value;
    }
    pod
}

/// `pod` with an annotation.
pub fn annotated(mut pod: Value, key: &str, value: &str) -> Value {
    pod["metadata"]["annotations"][key] = json!(value);
    pod
}
