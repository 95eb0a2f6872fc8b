//! The CustomResourceDefinitions, as `deploy/crds` ships them.

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;

use crate::{TalosCluster, TalosMachine};

/// Every CustomResourceDefinition of Ichor, by file name.
pub fn all() -> Vec<(&'static str, CustomResourceDefinition)> {
    vec![
        ("talosclusters.yaml", TalosCluster::crd()),
        ("talosmachines.yaml", TalosMachine::crd()),
    ]
}
