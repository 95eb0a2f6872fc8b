//! Which agent this is: the pod it runs as.

use clap::Args;

/// The pod, as its Deployment tells it through the downward API.
#[derive(Clone, Debug, Args)]
pub struct Instance {
    /// Name of this pod.
    #[arg(long, env = "POD_NAME", default_value = "ichor-agent")]
    pub pod_name: String,
    /// Namespace of this pod.
    #[arg(long, env = "POD_NAMESPACE", default_value = ichor_api::names::AGENT_NAMESPACE)]
    pub pod_namespace: String,
    /// UID of this pod: the instance in the lock's holder. A restarted container keeps
    /// it and resumes its locks; another pod has another one.
    #[arg(long, env = "POD_UID")]
    pub pod_uid: String,
    /// ServiceAccount of this pod.
    #[arg(long, env = "POD_SERVICE_ACCOUNT", default_value = ichor_api::names::AGENT_SERVICE_ACCOUNT)]
    pub pod_service_account: String,
    /// Node of this pod.
    #[arg(long, env = "NODE_NAME", default_value = "")]
    pub node_name: String,
}

impl Instance {
    /// The user name by which the API server knows this agent.
    pub fn user_name(&self) -> String {
        format!(
            "system:serviceaccount:{}:{}",
            self.pod_namespace, self.pod_service_account
        )
    }
}
