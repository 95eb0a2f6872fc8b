//! Who holds a lock: an operation, carried out by an agent instance (spec section 4).

use std::fmt;

/// Stands for the instance in a holder identity that its agent left to whichever agent leads
/// next (graceful shutdown with no call in flight).
pub const HANDED_OVER: &str = "handed-over";

/// One thing that is being done to a cluster, for example the removal of a machine.
///
/// Parts are Kubernetes names, kinds and UIDs and so hold neither `/` nor `@`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Operation {
    /// Kind of the object that asks for it: `TalosMachine`, `TalosOperation`, `TalosCluster`.
    pub kind: String,
    /// Name of that object.
    pub name: String,
    /// Namespace of that object, which is its cluster's and the Lease's.
    pub namespace: String,
    /// UID of that object: one re-created under the same name is another operation.
    pub uid: String,
    /// What is done: `removal`, `reboot`, `restore`, …
    pub purpose: String,
}

impl Operation {
    /// Whether both are the same operation in the same lock.
    ///
    /// The namespace is not compared: a Lease does not say it, its holder's is its own.
    #[must_use]
    pub fn same(&self, other: &Self) -> bool {
        (&self.kind, &self.name, &self.uid, &self.purpose)
            == (&other.kind, &other.name, &other.uid, &other.purpose)
    }

    /// Reads what [`Display`](fmt::Display) writes, for an object in `namespace`.
    #[must_use]
    pub fn parse(text: &str, namespace: &str) -> Option<Self> {
        let mut parts = text.split('/');
        let [purpose, kind, name, uid] = [(); 4].map(|()| parts.next().unwrap_or_default());
        let whole = parts.next().is_none()
            && [purpose, kind, name, uid]
                .iter()
                .all(|part| !part.is_empty() && !part.contains('@'));
        whole.then(|| Self {
            kind: kind.to_owned(),
            name: name.to_owned(),
            namespace: namespace.to_owned(),
            uid: uid.to_owned(),
            purpose: purpose.to_owned(),
        })
    }
}

/// `<purpose>/<kind>/<name>/<uid>`, as in a holder identity and in a machine's `status.intent`.
impl fmt::Display for Operation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            purpose,
            kind,
            name,
            uid,
            ..
        } = self;
        write!(f, "{purpose}/{kind}/{name}/{uid}")
    }
}

/// An operation and the agent instance that carries it out.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Holder {
    /// What is being done.
    pub operation: Operation,
    /// UID of the agent's pod, or [`HANDED_OVER`].
    pub instance: String,
}

impl Holder {
    /// Reads a Lease's `holderIdentity`; `namespace` is the Lease's.
    ///
    /// `None` for anything that this crate would not have written: somebody unknown holds the
    /// lock then, and it can only expire.
    #[must_use]
    pub fn parse(identity: &str, namespace: &str) -> Option<Self> {
        let (operation, instance) = identity.rsplit_once('@')?;
        if instance.is_empty() || instance.contains('/') {
            return None;
        }
        Some(Self {
            operation: Operation::parse(operation, namespace)?,
            instance: instance.to_owned(),
        })
    }

    /// The identity under which this operation waits for whichever agent leads next.
    #[must_use]
    pub fn handed_over(&self) -> Self {
        Self {
            operation: self.operation.clone(),
            instance: HANDED_OVER.to_owned(),
        }
    }
}

/// `<purpose>/<kind>/<name>/<uid>@<instance>`: the Lease's `holderIdentity`.
impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.operation, self.instance)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_written_is_read_back(
            purpose in "[a-z-]{1,12}", kind in "[A-Za-z]{1,20}", name in "[a-z0-9.-]{1,253}",
            uid in "[0-9a-f-]{1,36}", instance in "[0-9a-f-]{1,36}",
        ) {
            let holder = Holder {
                operation: Operation { kind, name, namespace: "prod".into(), uid, purpose },
                instance,
            };
            prop_assert_eq!(Holder::parse(&holder.to_string(), "prod"), Some(holder));
        }

        #[test]
        fn no_text_breaks_the_reader(text in "\\PC{0,80}") {
            if let Some(holder) = Holder::parse(&text, "prod") {
                prop_assert_eq!(holder.to_string(), text);
            }
        }
    }

    #[test]
    fn foreign_identities_are_nobodys_operation() {
        for text in [
            "",
            "@",
            "a@b",
            "removal/TalosMachine/cp-1@pod",
            "removal/TalosMachine/cp-1/uid",
            "removal/TalosMachine/cp-1/uid@",
            "removal//cp-1/uid@pod",
            "a/b/c/d/e@pod",
            "cluster-autoscaler-7d9_4f1c",
            "a/b/c/d@e@f",
        ] {
            assert_eq!(Holder::parse(text, "prod"), None, "{text:?}");
        }
    }
}
