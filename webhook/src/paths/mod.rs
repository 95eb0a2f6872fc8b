//! One module per path (spec section 7), each the same shape: read what is needed, ask
//! the rules, answer.

pub mod cluster;
pub mod machine;
pub mod namespace;
pub mod override_gate;

use crate::answer::{Admitted, Refusal};
use crate::judge::Judge;
use crate::review::Request;

/// A path of the server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Concern {
    /// Who may cross what only `override` opens.
    Override,
    /// What may be done to a TalosMachine.
    Machine,
    /// What may be done to a TalosCluster.
    Cluster,
    /// Which Namespace may be deleted.
    Namespace,
}

impl Concern {
    /// Every path.
    pub const ALL: [Self; 4] = [
        Self::Override,
        Self::Machine,
        Self::Cluster,
        Self::Namespace,
    ];

    /// The path in the URL.
    pub fn path(self) -> &'static str {
        match self {
            Self::Override => "/validate-ichor-maesh-dev-v1alpha1-override",
            Self::Machine => "/validate-ichor-maesh-dev-v1alpha1-talosmachine",
            Self::Cluster => "/validate-ichor-maesh-dev-v1alpha1-taloscluster",
            Self::Namespace => "/validate-ichor-maesh-dev-namespace",
        }
    }

    /// The word in metrics and logs.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Override => "override",
            Self::Machine => "talosmachine",
            Self::Cluster => "taloscluster",
            Self::Namespace => "namespace",
        }
    }

    fn judges(self, group: &str, resource: &str) -> bool {
        let ours = group == ichor_api::names::GROUP;
        match self {
            Self::Override => ours && matches!(resource, "talosmachines" | "talosclusters"),
            Self::Machine => ours && resource == "talosmachines",
            Self::Cluster => ours && resource == "talosclusters",
            Self::Namespace => group.is_empty() && resource == "namespaces",
        }
    }

    /// Judges `request`.
    pub async fn judge(self, judge: &Judge, request: &Request) -> Result<Admitted, Refusal> {
        let resource = &request.resource;
        if !self.judges(&resource.group, &resource.resource) {
            return Err(Refusal::Unreadable {
                message: format!(
                    "the webhook configuration sends {}.{} to {}, which does not judge it: apply the shipped configuration again",
                    resource.resource,
                    resource.group,
                    self.path()
                ),
            });
        }
        // Rules speak of objects; what may be written to a status is RBAC's business.
        if !request.sub_resource.is_empty() {
            return Ok(Admitted::exempt("subresource"));
        }
        match self {
            Self::Override => override_gate::judge(judge, request).await,
            Self::Machine => machine::judge(judge, request).await,
            Self::Cluster => cluster::judge(judge, request).await,
            Self::Namespace => namespace::judge(judge, request).await,
        }
    }
}
