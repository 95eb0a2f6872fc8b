//! Direct reads: what a decision stands on comes from the API server, never from a cache.

use futures::FutureExt;
use futures::future::BoxFuture;
use kube::api::{Api, ListParams};
use kube::core::NamespaceResourceScope;
use kube::{Client, Resource};
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// A read that failed.
#[derive(Debug, thiserror::Error)]
pub enum ReadError {
    /// The API server did not answer as it should.
    #[error("failed to read {what} from the API server: {source}")]
    Api {
        /// What was read.
        what: String,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// It did not answer in time.
    #[error("the API server did not answer within {seconds} s when asked for {what}")]
    Timeout {
        /// What was read.
        what: String,
        /// The deadline, in seconds.
        seconds: u64,
    },
}

/// Gets and lists straight from the API server, and can do nothing else.
///
/// A cached store cannot become one: the client is private, and every list leaves
/// `resourceVersion` unset, which the API server answers with a consistent read.
/// (Architecture, "What the types enforce".)
#[derive(Clone)]
pub struct DirectReader {
    client: Client,
    deadline: std::time::Duration,
}

impl Debug for DirectReader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("DirectReader")
            .field("deadline", &self.deadline)
            .finish_non_exhaustive()
    }
}

impl DirectReader {
    /// Reads through `client`, each read ended after 10 s.
    pub fn new(client: Client) -> Self {
        Self::with_deadline(client, std::time::Duration::from_secs(10))
    }

    /// Reads through `client`, each read ended after `deadline`.
    pub fn with_deadline(client: Client, deadline: std::time::Duration) -> Self {
        Self { client, deadline }
    }

    async fn bounded<T>(
        deadline: std::time::Duration,
        what: String,
        read: BoxFuture<'_, Result<T, kube::Error>>,
    ) -> Result<T, ReadError> {
        match tokio::time::timeout(deadline, read).await {
            Err(_) => Err(ReadError::Timeout {
                what,
                seconds: deadline.as_secs(),
            }),
            Ok(Err(source)) => Err(ReadError::Api {
                what,
                source: Box::new(source),
            }),
            Ok(Ok(value)) => Ok(value),
        }
    }

    /// The object, or `None` where there is none.
    pub async fn get<K>(&self, namespace: &str, name: &str) -> Result<Option<K>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        let what = format!("{} {namespace}/{name}", K::kind(&()));
        Self::bounded(self.deadline, what, api.get_opt(name).boxed()).await
    }

    /// The cluster-scoped object, or `None` where there is none.
    pub async fn get_cluster<K>(&self, name: &str) -> Result<Option<K>, ReadError>
    where
        K: Resource<Scope = kube::core::ClusterResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let api: Api<K> = Api::all(self.client.clone());
        let what = format!("{} {name}", K::kind(&()));
        Self::bounded(self.deadline, what, api.get_opt(name).boxed()).await
    }

    /// Every object of the namespace that `selector` (a field selector) matches.
    pub async fn list<K>(
        &self,
        namespace: &str,
        selector: Option<&str>,
    ) -> Result<Vec<K>, ReadError>
    where
        K: Resource<Scope = NamespaceResourceScope, DynamicType = ()>
            + Clone
            + DeserializeOwned
            + Debug
            + Send
            + 'static,
    {
        let api: Api<K> = Api::namespaced(self.client.clone(), namespace);
        self.pages(&api, format!("{} in {namespace}", K::plural(&())), selector)
            .await
    }

    /// Every object of all namespaces.
    pub async fn list_all<K>(&self) -> Result<Vec<K>, ReadError>
    where
        K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let api: Api<K> = Api::all(self.client.clone());
        self.pages(&api, format!("all {}", K::plural(&())), None)
            .await
    }

    async fn pages<K>(
        &self,
        api: &Api<K>,
        what: String,
        selector: Option<&str>,
    ) -> Result<Vec<K>, ReadError>
    where
        K: Clone + DeserializeOwned + Debug + Send + 'static,
    {
        let mut params = ListParams::default().limit(500);
        if let Some(selector) = selector {
            params = params.fields(selector);
        }
        let mut items = Vec::new();
        loop {
            let page =
                Self::bounded(self.deadline, what.clone(), api.list(&params).boxed()).await?;
            items.extend(page.items);
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => params.continue_token = Some(token),
                None => return Ok(items),
            }
        }
    }

    /// The machines of `cluster`, by name. The spec's selectable field keeps other
    /// clusters' machines on the server.
    pub async fn machines_of(
        &self,
        namespace: &str,
        cluster: &str,
    ) -> Result<FreshMachines, ReadError> {
        let mut machines = self
            .list::<ichor_api::TalosMachine>(
                namespace,
                Some(&format!("spec.clusterRef.name={cluster}")),
            )
            .await?;
        machines.sort_by(|a, b| a.metadata.name.cmp(&b.metadata.name));
        Ok(FreshMachines(machines))
    }
}

/// The machines of one cluster, by name, as a direct read gave them a moment ago.
///
/// Made by [`DirectReader::machines_of`] alone, so that what is counted from it
/// ([`crate::count::count`]) never comes from a cache.
#[derive(Debug)]
pub struct FreshMachines(Vec<ichor_api::TalosMachine>);

impl std::ops::Deref for FreshMachines {
    type Target = [ichor_api::TalosMachine];

    fn deref(&self) -> &Self::Target {
        &self.0
    }
}

#[cfg(test)]
impl FreshMachines {
    /// For unit tests of this crate only.
    pub(crate) fn of(machines: &[ichor_api::TalosMachine]) -> Self {
        Self(machines.to_vec())
    }
}
