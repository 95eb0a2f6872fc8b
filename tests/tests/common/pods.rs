//! Pods on the machines, and budgets over them, in a namespace of their own.

use ichor_tests::bed::Bed;
use k8s_openapi::api::core::v1::{ConfigMap, Namespace, Pod, ServiceAccount};
use k8s_openapi::api::policy::v1::PodDisruptionBudget;
use kube::api::{DeleteParams, ListParams, PostParams};
use kube::{Api, Client, Resource as _};
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use super::{SOON, Stage};

/// The namespace of the pods.
pub const WORK: &str = "work";

impl Stage {
    pub fn pods(&self) -> Api<Pod> {
        Api::namespaced(self.admin.clone(), WORK)
    }

    pub fn budgets(&self) -> Api<PodDisruptionBudget> {
        Api::namespaced(self.admin.clone(), WORK)
    }

    /// A pod with label `app` on a Node; its controller makes no other in its place.
    pub async fn pod(&self, name: &str, app: &str, node: &str) -> Value {
        let owners: Api<ConfigMap> = Api::namespaced(self.admin.clone(), WORK);
        let owner = owners.get("owner").await.unwrap();
        json!({
            "metadata": {
                "name": name,
                "labels": {"app": app},
                "ownerReferences": [owner.controller_owner_ref(&()).unwrap()],
            },
            "spec": {
                "nodeName": node,
                "terminationGracePeriodSeconds": 0,
                "containers": [{"name": "main", "image": "none"}],
            },
        })
    }

    /// Creates a pod and waits until it is ready.
    pub async fn run(&self, pod: Value) {
        let name = pod["metadata"]["name"].as_str().unwrap().to_owned();
        let api = self.pods();
        api.create(&PostParams::default(), &read(pod))
            .await
            .unwrap();
        self.wait(&format!("pod {name} to be ready"), async || {
            let pod = api.get(&name).await.map_err(|e| e.to_string())?;
            let conditions = pod.status.and_then(|s| s.conditions).unwrap_or_default();
            if conditions
                .iter()
                .any(|c| c.type_ == "Ready" && c.status == "True")
            {
                Ok(())
            } else {
                Err(format!("{conditions:?}"))
            }
        })
        .await;
    }

    /// A pod on `node` under a budget that allows no disruption.
    pub async fn blocked_pod(&self, node: &str) {
        let name = format!("on-{node}");
        self.run(self.pod(&name, &name, node).await).await;
        self.budget(&format!("budget-{node}"), &name, 1).await;
    }

    /// A budget over the pods labelled `app`, worked out.
    pub async fn budget(&self, name: &str, app: &str, min_available: i32) {
        let api = self.budgets();
        let budget = json!({
            "metadata": {"name": name},
            "spec": {
                "minAvailable": min_available,
                "selector": {"matchLabels": {"app": app}},
            },
        });
        api.create(&PostParams::default(), &read(budget))
            .await
            .unwrap();
        self.wait(&format!("budget {name} to be worked out"), async || {
            let status = api.get(name).await.map_err(|e| e.to_string())?.status;
            match status {
                Some(s) if s.observed_generation.is_some() && s.expected_pods > 0 => Ok(()),
                other => Err(format!("{other:?}")),
            }
        })
        .await;
    }

    /// Takes the budget of [`blocked_pod`](Self::blocked_pod) away.
    pub async fn free(&self, node: &str) {
        self.budgets()
            .delete(&format!("budget-{node}"), &DeleteParams::default())
            .await
            .unwrap();
    }
}

/// Makes the namespace where there is none, else empties it.
pub(super) async fn clear(bed: &Bed, client: &Client) {
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let budgets: Api<PodDisruptionBudget> = Api::namespaced(client.clone(), WORK);
    let pods: Api<Pod> = Api::namespaced(client.clone(), WORK);
    if namespaces.get_opt(WORK).await.unwrap().is_none() {
        let namespace: Namespace = read(json!({"metadata": {"name": WORK}}));
        namespaces
            .create(&PostParams::default(), &namespace)
            .await
            .unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), WORK);
        ichor_tests::wait::until(
            SOON,
            "the namespace's ServiceAccount",
            async || match accounts.get_opt("default").await {
                Ok(Some(_)) => Ok(()),
                other => Err(format!("{other:?}")),
            },
        )
        .await
        .unwrap();
        let owners: Api<ConfigMap> = Api::namespaced(client.clone(), WORK);
        owners
            .create(
                &PostParams::default(),
                &read(json!({"metadata": {"name": "owner"}})),
            )
            .await
            .unwrap();
        return;
    }
    let all = ListParams::default();
    let found = budgets.list(&all).await.unwrap();
    for budget in found {
        let name = budget.metadata.name.unwrap_or_default();
        let _ = budgets.delete(&name, &DeleteParams::default()).await;
    }
    let now = DeleteParams {
        grace_period_seconds: Some(0),
        ..DeleteParams::default()
    };
    for pod in pods.list(&all).await.unwrap() {
        let name = pod.metadata.name.unwrap_or_default();
        let _ = pods.delete(&name, &now).await;
    }
    let _ = bed;
}

fn read<T: DeserializeOwned>(value: Value) -> T {
    serde_json::from_value(value).unwrap()
}
