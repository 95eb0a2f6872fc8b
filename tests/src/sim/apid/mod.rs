//! Talos' API on a simulated machine: who may call what, and what is written down of it.

mod answers;
mod cosi;
mod lifecycle;
mod machine;
mod requests;
mod storage;

use std::future::Future;
use std::net::Ipv4Addr;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use ichor_talos::proto::cosi::state_server::StateServer;
use ichor_talos::proto::machine::image_service_server::ImageServiceServer;
use ichor_talos::proto::machine::lifecycle_service_server::LifecycleServiceServer;
use ichor_talos::proto::machine::machine_service_server::MachineServiceServer;
use ichor_talos::proto::storage::storage_service_server::StorageServiceServer;
use rustls::ServerConfig;
use serde_json::Value;
use tokio::time::sleep;
use tokio_util::sync::CancellationToken;
use tonic::{Code, Request, Response, Status};

use super::node::{Fault, Node};
use super::wire::{self, Peer};
use super::{TALOS_PORT, lock};
use crate::error::Result;

/// A stream of answers.
type Answers<T> = std::pin::Pin<Box<dyn Stream<Item = Result<T, Status>> + Send>>;

/// Opens the API at `address`. It ends, connections and all, with `gone`.
pub(super) async fn serve(
    node: &Arc<Node>,
    address: Ipv4Addr,
    tls: Arc<ServerConfig>,
    configured: bool,
    gone: CancellationToken,
) -> Result<()> {
    let incoming = wire::listen(address, TALOS_PORT, tls, &node.cut.subscribe(), &gone).await?;
    let apid = Apid {
        node: Arc::clone(node),
        configured,
    };
    let server = tonic::transport::Server::builder()
        .add_service(MachineServiceServer::new(apid.clone()))
        .add_service(LifecycleServiceServer::new(apid.clone()))
        .add_service(ImageServiceServer::new(apid.clone()))
        .add_service(StorageServiceServer::new(apid.clone()))
        .add_service(StateServer::new(apid))
        .serve_with_incoming(incoming);
    tokio::spawn(async move {
        tokio::select! {
            ended = server => if let Err(error) = ended {
                tracing::warn!(%error, "a simulated API ended");
            },
            () = gone.cancelled() => {}
        }
    });
    Ok(())
}

/// The API of one machine, as it was opened.
#[derive(Clone)]
struct Apid {
    node: Arc<Node>,
    configured: bool,
}

/// Who may call a method (facts: talos.md 2.3).
#[derive(Clone, Copy)]
enum Access {
    Read,
    EtcdRead,
    Snapshot,
    Operate,
    Admin,
    /// Anybody in maintenance, then only administrators.
    Apply,
}

impl Access {
    fn allows(self, role: &str) -> bool {
        match self {
            Self::Read => matches!(role, "os:admin" | "os:operator" | "os:reader"),
            Self::EtcdRead => matches!(
                role,
                "os:admin" | "os:operator" | "os:reader" | "os:etcd:backup"
            ),
            Self::Snapshot => matches!(role, "os:admin" | "os:operator" | "os:etcd:backup"),
            Self::Operate => matches!(role, "os:admin" | "os:operator"),
            Self::Admin | Self::Apply => role == "os:admin",
        }
    }
}

/// A call that may go on.
struct Caller {
    node: Arc<Node>,
    configured: bool,
    admin: bool,
}

impl Caller {
    /// etcd's calls exist only on control planes that have a configuration.
    fn control_plane(&self) -> Result<&Arc<Node>, Status> {
        if self.configured && self.node.is_control_plane() {
            Ok(&self.node)
        } else {
            Err(Status::unimplemented(
                "method is only available on control plane nodes",
            ))
        }
    }
}

impl Apid {
    /// One call: routed, written down, allowed or not, made to suffer where a test wants it, and
    /// carried out to its end whether or not the caller waits for it.
    async fn call<Q, T, F>(
        &self,
        method: &'static str,
        access: Access,
        request: &Request<Q>,
        written: Value,
        act: impl FnOnce(Caller) -> F + Send + 'static,
    ) -> Result<Response<T>, Status>
    where
        T: Send + 'static,
        F: Future<Output = Result<T, Status>> + Send + 'static,
    {
        let roles = match request.extensions().get::<Peer>() {
            Some(peer) if self.configured => peer.roles.as_ref().clone(),
            _ => vec!["os:reader".to_owned()],
        };
        let node = self.route(request)?;
        let (life, slow, fault) = {
            let mut inner = lock(&node.inner);
            (inner.life.clone(), inner.slow, inner.faults.remove(method))
        };
        sleep(slow).await;
        let open = node
            .cluster()
            .map(|cluster| cluster.calls.begin(&node.name, method, written));
        let allowed = roles.iter().any(|role| access.allows(role))
            || (!self.configured && matches!(access, Access::Apply));
        let caller = Caller {
            node,
            configured: self.configured,
            admin: roles.iter().any(|role| role == "os:admin"),
        };
        let patience = deadline(request);
        let work = async move {
            if let Some(Fault::ActLate(by)) = fault {
                sleep(by).await;
            }
            let result = if !allowed {
                Err(Status::permission_denied("not authorized"))
            } else if fault == Some(Fault::UnhealthyCluster) {
                Err(Status::unknown("etcdserver: unhealthy cluster"))
            } else {
                act(caller).await
            };
            if let Some(open) = open {
                open.answered(result.as_ref().err().map_or(Code::Ok, Status::code));
            }
            if fault == Some(Fault::AnswerLate) {
                sleep(patience + Duration::from_millis(500)).await;
            }
            result
        };
        // By itself, so that it goes on when the caller hangs up; but not beyond the machine's own end.
        let work = tokio::spawn(async move {
            tokio::select! {
                result = work => result,
                () = life.cancelled() => Err(Status::unavailable("the machine went down")),
            }
        });
        match work.await {
            Ok(result) => result.map(Response::new),
            Err(panic) => Err(Status::internal(panic.to_string())),
        }
    }

    /// A call that names another node is handed on, as Talos does (facts: talos.md 2.8).
    fn route<Q>(&self, request: &Request<Q>) -> Result<Arc<Node>, Status> {
        if request.metadata().contains_key("nodes") {
            return Err(Status::unimplemented(
                "the simulation does not fan out: one node per call",
            ));
        }
        let mut named = request.metadata().get_all("node").iter();
        let Some(target) = named.next() else {
            return Ok(Arc::clone(&self.node));
        };
        if named.next().is_some() {
            return Err(Status::invalid_argument("only one node can be named"));
        }
        let target = target.to_str().unwrap_or_default();
        if !self.configured {
            return Ok(Arc::clone(&self.node));
        }
        if !self.node.is_control_plane() {
            return Err(Status::permission_denied("no request forwarding"));
        }
        let found = self.node.cluster().and_then(|cluster| {
            let by_name =
                |node: &&Arc<Node>| node.name == target || node.address().to_string() == target;
            cluster.nodes.iter().find(by_name).cloned()
        });
        match found {
            Some(node)
                if node.now().powered
                    && !node.is_cut()
                    && node.is_configured()
                    && !lock(&node.inner).api.is_cancelled() =>
            {
                Ok(node)
            }
            _ => Err(Status::unavailable(format!(
                "error dialing {target}: connection refused"
            ))),
        }
    }
}

/// How long the caller says that it waits.
fn deadline<Q>(request: &Request<Q>) -> Duration {
    let told = request
        .metadata()
        .get("grpc-timeout")
        .and_then(|value| value.to_str().ok());
    told.and_then(|text| {
        let (number, unit) = text.split_at_checked(text.len().checked_sub(1)?)?;
        let number: u64 = number.parse().ok()?;
        Some(match unit {
            "H" => Duration::from_secs(number * 3600),
            "M" => Duration::from_secs(number * 60),
            "S" => Duration::from_secs(number),
            "m" => Duration::from_millis(number),
            "u" => Duration::from_micros(number),
            "n" => Duration::from_nanos(number),
            _ => return None,
        })
    })
    .unwrap_or(Duration::from_secs(30))
}
