//! What stands in the cluster: the shipped manifests, rights for the bed's users, and
//! the cluster `demo` with its machines.

use std::path::{Path, PathBuf};
use std::time::Duration;

use ichor_api::{TalosCluster, TalosMachine, names};
use k8s_openapi::api::apps::v1::Deployment;
use k8s_openapi::api::core::v1::{Secret, Service};
use k8s_openapi::api::rbac::v1::RoleBinding;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::{Api, Client};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::error::{BedError, Result};
use crate::wait::until;

/// Name of the TalosCluster.
pub const CLUSTER: &str = "demo";
/// Its namespace.
pub const NAMESPACE: &str = "default";
/// Name of the Secret with its talosconfig.
pub const TALOSCONFIG: &str = "demo-talosconfig";

/// A machine to declare.
#[derive(Clone, Debug)]
pub struct Machine {
    /// Its name, and that of its Node.
    pub name: String,
    /// `controlplane` or `worker`.
    pub role: &'static str,
    /// Where its Talos API answers.
    pub address: String,
    /// Whether it is approved.
    pub approved: bool,
}

/// Applies the manifests as they are shipped, with kubectl, as an administrator would.
pub async fn apply_manifests(kubectl: &Path, kubeconfig: &Path) -> Result<()> {
    let overlay = crate::assets::workspace_root().join("deploy/overlays/default-namespace");
    let output = tokio::process::Command::new(kubectl)
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(["apply", "--server-side", "--validate=false", "-k"])
        .arg(&overlay)
        .kill_on_drop(true)
        .output()
        .await
        .map_err(|e| BedError::io("failed to run kubectl apply", e))?;
    if output.status.success() {
        return Ok(());
    }
    Err(BedError::Refused(format!(
        "kubectl apply -k {} failed:\n{}",
        overlay.display(),
        String::from_utf8_lossy(&output.stderr)
    )))
}

/// Sets how many pods the agent's Deployment has.
pub async fn scale_agent(client: &Client, replicas: usize) -> Result<()> {
    let api: Api<Deployment> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
    let patch = Patch::Merge(json!({"spec": {"replicas": replicas}}));
    api.patch(names::AGENT_APP, &PatchParams::default(), &patch)
        .await
        .map(drop)
        .map_err(|e| BedError::api("failed to scale the agent's Deployment", e))
}

/// Takes the webhook configuration away: in a bed without agents every write to Ichor's
/// resources would be refused.
pub async fn remove_webhooks(client: &Client) -> Result<()> {
    use k8s_openapi::api::admissionregistration::v1::ValidatingWebhookConfiguration;
    let api: Api<ValidatingWebhookConfiguration> = Api::all(client.clone());
    match api.delete("ichor", &DeleteParams::default()).await {
        Err(kube::Error::Api(status)) if status.is_not_found() => Ok(()),
        Err(error) => Err(BedError::api(
            "failed to delete the webhook configuration",
            error,
        )),
        Ok(_) => Ok(()),
    }
}

/// `ClusterIP:443` of the webhook's Service.
pub async fn webhook_service(client: &Client) -> Result<String> {
    let api: Api<Service> = Api::namespaced(client.clone(), names::AGENT_NAMESPACE);
    let service = api
        .get("ichor-webhook")
        .await
        .map_err(|e| BedError::api("failed to read the webhook's Service", e))?;
    service
        .spec
        .and_then(|s| s.cluster_ip)
        .map(|ip| format!("{ip}:443"))
        .ok_or_else(|| BedError::Refused("the webhook's Service has no ClusterIP".to_owned()))
}

/// Gives `editor` and `viewer` the shipped roles in the cluster's namespace, and nothing else.
pub async fn bind_users(client: &Client) -> Result<()> {
    let api: Api<RoleBinding> = Api::namespaced(client.clone(), NAMESPACE);
    for (user, role) in [("editor", "ichor-editor"), ("viewer", "ichor-viewer")] {
        let binding = json!({
            "metadata": {"name": format!("bed-{user}")},
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
        });
        create(&api, binding, &format!("RoleBinding of {user}")).await?;
    }
    Ok(())
}

/// Creates the Secret with the talosconfig.
pub async fn create_talosconfig(client: &Client, talosconfig: &str) -> Result<()> {
    let api: Api<Secret> = Api::namespaced(client.clone(), NAMESPACE);
    let secret = json!({
        "metadata": {"name": TALOSCONFIG},
        "stringData": {"talosconfig": talosconfig},
    });
    create(&api, secret, "Secret with the talosconfig").await
}

/// Creates the TalosCluster and its machines. Where a webhook is configured this waits
/// until it answers.
pub async fn create_cluster(client: &Client, count: i32, machines: &[Machine]) -> Result<()> {
    let clusters: Api<TalosCluster> = Api::namespaced(client.clone(), NAMESPACE);
    let cluster = json!({
        "apiVersion": "ichor.maesh.dev/v1alpha1",
        "kind": "TalosCluster",
        "metadata": {"name": CLUSTER},
        "spec": {
            "controlPlane": {"count": count},
            "talos": {"credentialsSecretRef": {"name": TALOSCONFIG}},
        },
    });
    create(&clusters, cluster, "TalosCluster").await?;
    let api: Api<TalosMachine> = Api::namespaced(client.clone(), NAMESPACE);
    for machine in machines {
        create(
            &api,
            machine.object(),
            &format!("TalosMachine {}", machine.name),
        )
        .await?;
    }
    Ok(())
}

impl Machine {
    /// The TalosMachine.
    pub fn object(&self) -> Value {
        json!({
            "apiVersion": "ichor.maesh.dev/v1alpha1",
            "kind": "TalosMachine",
            "metadata": {"name": self.name},
            "spec": {
                "clusterRef": {"name": CLUSTER},
                "role": self.role,
                "approved": self.approved,
                "address": self.address,
            },
        })
    }
}

/// Creates an object. A refusal for want of something that is still coming up (a
/// webhook, a definition, a namespace's controller) is tried again for a minute.
async fn create<K>(api: &Api<K>, object: Value, what: &str) -> Result<()>
where
    K: kube::Resource + Clone + std::fmt::Debug + DeserializeOwned + serde::Serialize,
{
    let object: K = serde_json::from_value(object)
        .map_err(|e| BedError::Refused(format!("failed to describe the {what}: {e}")))?;
    let what = format!("the {what} to be created");
    until(Duration::from_mins(1), &what, async || {
        match api.create(&PostParams::default(), &object).await {
            Ok(_) => Ok(Ok(())),
            Err(kube::Error::Api(status)) if status.is_already_exists() => Ok(Ok(())),
            Err(kube::Error::Api(status)) if status.is_invalid() => {
                Ok(Err(kube::Error::Api(status)))
            }
            Err(error) => Err(error.to_string()),
        }
    })
    .await?
    .map_err(|e| BedError::api(format!("failed to create {what}"), e))
}

/// Writes the kubeconfig of a bed.
pub fn write_kubeconfig(state: &Path, text: &str) -> Result<PathBuf> {
    let path = state.join("kubeconfig");
    crate::agents::write_private(&path, text)?;
    Ok(path)
}
