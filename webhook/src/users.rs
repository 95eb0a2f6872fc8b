//! Who is known by name: always the exact user name, never a group or a namespace
//! (spec section 7; ADR 0065, decision 8).

use std::collections::BTreeSet;

/// Environment variable: the namespace of Argo CD, `argocd` by default.
pub const ARGOCD_NAMESPACE_ENV: &str = "ICHOR_ARGOCD_NAMESPACE";
/// Environment variable: further exempt user names, separated by commas.
pub const EXEMPT_USERS_ENV: &str = "ICHOR_OVERRIDE_EXEMPT_USERS";

/// The controllers of Kubernetes that delete what a deleted owner or namespace leaves.
const CASCADE: [&str; 3] = [
    "system:serviceaccount:kube-system:namespace-controller",
    "system:serviceaccount:kube-system:generic-garbage-collector",
    // Where the controller manager runs without an account per controller.
    "system:kube-controller-manager",
];

/// User names that rules treat differently.
#[derive(Clone, Debug)]
pub struct Users {
    agent: String,
    exempt: BTreeSet<String>,
}

fn service_account(namespace: &str, name: &str) -> String {
    format!("system:serviceaccount:{namespace}:{name}")
}

impl Users {
    /// `namespace` and `service_account`: the agent's own (`POD_NAMESPACE`,
    /// `POD_SERVICE_ACCOUNT`). `argocd_namespace`: [`ARGOCD_NAMESPACE_ENV`], empty means
    /// `argocd`. `more`: [`EXEMPT_USERS_ENV`].
    pub fn new(namespace: &str, account: &str, argocd_namespace: &str, more: &str) -> Self {
        let argocd = match argocd_namespace.trim() {
            "" => "argocd",
            namespace => namespace,
        };
        let agent = service_account(namespace, account);
        let mut exempt: BTreeSet<String> = CASCADE.iter().map(|&user| user.to_owned()).collect();
        exempt.insert(agent.clone());
        exempt.insert(service_account(argocd, "argocd-application-controller"));
        exempt.insert(service_account("flux-system", "kustomize-controller"));
        exempt.insert(service_account("flux-system", "helm-controller"));
        exempt.extend(
            more.split(',')
                .map(str::trim)
                .filter(|user| !user.is_empty())
                .map(str::to_owned),
        );
        Self { agent, exempt }
    }

    /// Whether it is the agent itself: its writes pass on identity, never on state that
    /// it just wrote.
    pub fn is_agent(&self, user: &str) -> bool {
        user == self.agent
    }

    /// Whether it deletes what a deleted owner or namespace leaves behind. Such a
    /// DELETE needs no allow-delete annotation; quorum holds for it all the same.
    pub fn is_cascade(&self, user: &str) -> bool {
        CASCADE.contains(&user)
    }

    /// Whether the override gate lets it pass unasked.
    pub fn is_exempt(&self, user: &str) -> bool {
        self.exempt.contains(user)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_exact_names_are_exempt() {
        let users = Users::new(
            "ichor-system",
            "ichor-agent",
            "",
            " alice , ,system:serviceaccount:x:y",
        );
        for exempt in [
            "system:serviceaccount:ichor-system:ichor-agent",
            "system:serviceaccount:argocd:argocd-application-controller",
            "system:serviceaccount:flux-system:kustomize-controller",
            "system:serviceaccount:flux-system:helm-controller",
            "system:serviceaccount:kube-system:namespace-controller",
            "system:serviceaccount:kube-system:generic-garbage-collector",
            "system:kube-controller-manager",
            "alice",
            "system:serviceaccount:x:y",
        ] {
            assert!(users.is_exempt(exempt), "{exempt}");
        }
        for person in [
            "",
            "Alice",
            "system:serviceaccount:argocd:argocd-server",
            "system:serviceaccount:default:ichor-agent",
            "system:serviceaccount:ichor-system:ichor-agent-2",
            "system:serviceaccount:kube-system:job-controller",
        ] {
            assert!(!users.is_exempt(person), "{person}");
            assert!(
                !users.is_agent(person) && !users.is_cascade(person),
                "{person}"
            );
        }
    }

    #[test]
    fn argo_cd_is_exempt_where_it_lives_only() {
        let users = Users::new("ichor-system", "ichor-agent", "gitops", "");
        assert!(users.is_exempt("system:serviceaccount:gitops:argocd-application-controller"));
        assert!(!users.is_exempt("system:serviceaccount:argocd:argocd-application-controller"));
    }

    #[test]
    fn the_agent_is_no_cascade_and_exempt_users_are_neither() {
        let users = Users::new("ichor-system", "ichor-agent", "", "bob");
        assert!(!users.is_cascade("system:serviceaccount:ichor-system:ichor-agent"));
        assert!(!users.is_agent("bob") && !users.is_cascade("bob"));
    }
}
