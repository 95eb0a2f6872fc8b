//! `kubectl ichor status [CLUSTER] [-w] [-A]`.

use std::collections::BTreeMap;

use futures::StreamExt as _;
use futures::stream::select;
use ichor_api::{TalosCluster, TalosMachine};
use kube::Resource;
use kube::api::Api;
use kube::runtime::watcher;

use crate::cli::{Output, StatusArgs};
use crate::error::{Error, exit};
use crate::follow::{self, Change, Frame};
use crate::io::Io;
use crate::output;
use crate::resources::{self, CLUSTERS, MACHINES, name_of, namespace_of};
use crate::session::Session;
use crate::view::status;

/// Runs it.
pub async fn run(
    session: &Session,
    args: &StatusArgs,
    output: Option<Output>,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let namespace = (!args.all_namespaces).then(|| session.namespace.clone());
    if args.watch {
        output::only(output, &[Output::Wide], "status --watch")?;
        return Box::pin(watch(
            session,
            args,
            namespace.as_deref(),
            output.is_some(),
            io,
        ))
        .await;
    }
    let only = args.cluster.as_deref();
    // Two lists at once, on two connections: one round trip in all.
    let (clusters, machines) = tokio::join!(
        resources::clusters(session, namespace.as_deref(), only),
        resources::machines(session, namespace.as_deref(), only),
    );
    session.tell(io);
    let (clusters, machines) = (clusters?, machines?);
    let groups = status::group(&clusters, &machines, only);
    if groups.iter().all(|g| g.cluster.is_none())
        && let Some(name) = only
    {
        return Err(not_found(name, namespace.as_deref()));
    }
    match output {
        Some(form @ (Output::Json | Output::Yaml)) => {
            output::document(io, form, &status::report(&groups))?;
        }
        Some(Output::Name) => io.out_lines(status::name_lines(&groups)),
        _ if groups.is_empty() => io.note(&none_found(namespace.as_deref())),
        _ => io.out_lines(status::lines(
            &groups,
            session.clock(),
            output == Some(Output::Wide),
        )),
    }
    Ok(exit::DONE)
}

fn not_found(name: &str, namespace: Option<&str>) -> Error {
    Error::NotFound {
        what: format!("TalosCluster {name}"),
        namespace: namespace.unwrap_or("<all>").to_owned(),
        hint: match namespace {
            Some(namespace) => Some(format!(
                "Only namespace {namespace} was asked: name another with -n NAMESPACE, or all with -A."
            )),
            None => Some("See which there are: kubectl ichor status -A".to_owned()),
        },
    }
}

fn none_found(namespace: Option<&str>) -> String {
    match namespace {
        Some(namespace) => format!(
            "No TalosClusters found in namespace {namespace}. Name another with -n NAMESPACE, or all with -A."
        ),
        None => "No TalosClusters found in any namespace.".to_owned(),
    }
}

type Key = (String, String);

fn key(object: &impl Resource) -> Key {
    (
        namespace_of(object.meta()).to_owned(),
        name_of(object.meta()).to_owned(),
    )
}

/// What a watch has told so far; `None` before its first list.
#[derive(Debug)]
struct Known<K>(Option<BTreeMap<Key, K>>);

impl<K: Resource> Known<K> {
    fn take(&mut self, change: Change<K>) {
        match change {
            Change::All(all) => {
                self.0 = Some(
                    all.into_iter()
                        .map(|object| (key(&object), object))
                        .collect(),
                );
            }
            Change::Applied(object) => {
                self.0.get_or_insert_default().insert(key(&object), object);
            }
            Change::Gone(object) => {
                self.0.get_or_insert_default().remove(&key(&object));
            }
            Change::Trouble(_) => {}
        }
    }
}

/// A change of either resource, so that both watches are one stream.
enum Either {
    Clusters(Box<Change<TalosCluster>>),
    Machines(Box<Change<TalosMachine>>),
}

async fn watch(
    session: &Session,
    args: &StatusArgs,
    namespace: Option<&str>,
    wide: bool,
    io: &mut Io<'_>,
) -> Result<u8, Error> {
    let only = args.cluster.as_deref();
    let (clusters, machines): (Api<TalosCluster>, Api<TalosMachine>) = match namespace {
        Some(namespace) => (
            Api::namespaced(session.client(), namespace),
            Api::namespaced(session.client(), namespace),
        ),
        None => (Api::all(session.client()), Api::all(session.client())),
    };
    let (of_cluster, of_machines) = match only {
        Some(name) => (
            watcher::Config::default().fields(&format!("metadata.name={name}")),
            watcher::Config::default().fields(&format!("spec.clusterRef.name={name}")),
        ),
        None => Default::default(),
    };
    let stream = select(
        follow::changes(clusters, of_cluster, CLUSTERS, namespace)
            .map(|c| c.map(|c| Either::Clusters(Box::new(c)))),
        follow::changes(machines, of_machines, MACHINES, namespace)
            .map(|c| c.map(|c| Either::Machines(Box::new(c)))),
    )
    .map(|change| {
        // Trouble is the follower's to tell, whichever watch it is.
        change.map(|either| {
            let trouble = match &either {
                Either::Clusters(change) => change.trouble(),
                Either::Machines(change) => change.trouble(),
            };
            match trouble {
                Some(why) => Change::Trouble(why.to_owned()),
                None => Change::Applied(either),
            }
        })
    });
    let mut known_clusters = Known(None);
    let mut known_machines = Known(None);
    Box::pin(follow::run(session, io, stream, |change, clock| {
        if let Some(Change::Applied(either)) = change {
            match either {
                Either::Clusters(change) => known_clusters.take(*change),
                Either::Machines(change) => known_machines.take(*change),
            }
        }
        let (Some(clusters), Some(machines)) = (&known_clusters.0, &known_machines.0) else {
            return Frame::NotYet;
        };
        let groups = status::group(clusters.values(), machines.values(), only);
        if groups.is_empty() {
            return Frame::Show(vec![match only {
                Some(name) => format!("TalosCluster {name} is not there."),
                None => none_found(namespace),
            }]);
        }
        Frame::Show(status::lines(&groups, clock, wide))
    }))
    .await?;
    Ok(exit::DONE)
}
