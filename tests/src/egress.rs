//! The cluster network, as far as the API server needs it: an HTTP CONNECT proxy on a
//! Unix socket, through which webhooks behind a Service's ClusterIP are reached.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpStream, UnixListener, UnixStream};
use tokio_util::task::AbortOnDropHandle;

use crate::error::{BedError, Result};

/// The addresses behind each `ClusterIP:port`.
#[derive(Debug, Default)]
pub struct Endpoints {
    services: Mutex<HashMap<String, (usize, Vec<SocketAddr>)>>,
}

impl Endpoints {
    /// Puts `addresses` behind `target` (`ClusterIP:port`), in place of what was there.
    pub fn set(&self, target: &str, addresses: Vec<SocketAddr>) {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        services.entry(target.to_owned()).or_default().1 = addresses;
    }

    /// The addresses behind `target`, the next one first.
    fn next(&self, target: &str) -> Vec<SocketAddr> {
        let mut services = self.services.lock().unwrap_or_else(PoisonError::into_inner);
        let Some((turn, addresses)) = services.get_mut(target) else {
            return Vec::new();
        };
        let mut addresses = addresses.clone();
        if let Some(first) = turn.checked_rem(addresses.len()) {
            addresses.rotate_left(first);
            *turn = turn.wrapping_add(1);
        }
        addresses
    }
}

/// The running proxy. Dropping it closes it.
#[derive(Debug)]
pub struct Egress {
    socket: PathBuf,
    endpoints: Arc<Endpoints>,
    _task: AbortOnDropHandle<()>,
}

impl Egress {
    /// Starts one on the Unix socket `socket` (a short path: the system allows some 100 bytes).
    pub fn start(socket: &Path) -> Result<Self> {
        let listener = UnixListener::bind(socket).map_err(|e| BedError::file(socket, e))?;
        let endpoints = Arc::new(Endpoints::default());
        let shared = Arc::clone(&endpoints);
        let task = tokio::spawn(async move {
            let mut connections = tokio::task::JoinSet::new();
            loop {
                tokio::select! {
                    accepted = listener.accept() => match accepted {
                        Ok((stream, _)) => {
                            let endpoints = Arc::clone(&shared);
                            connections.spawn(async move {
                                if let Err(error) = tunnel(stream, &endpoints).await {
                                    tracing::debug!(%error, "a connection to a webhook ended");
                                }
                            });
                        }
                        Err(error) => {
                            tracing::warn!(%error, "the egress proxy failed to accept");
                            tokio::time::sleep(Duration::from_millis(50)).await;
                        }
                    },
                    Some(_) = connections.join_next() => {}
                }
            }
        });
        Ok(Self {
            socket: socket.to_owned(),
            endpoints,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Its socket.
    pub fn socket(&self) -> &Path {
        &self.socket
    }

    /// What is behind each Service.
    pub fn endpoints(&self) -> Arc<Endpoints> {
        Arc::clone(&self.endpoints)
    }
}

async fn tunnel(mut client: UnixStream, endpoints: &Endpoints) -> std::io::Result<()> {
    let head = read_head(&mut client).await?;
    let target = head
        .strip_prefix("CONNECT ")
        .and_then(|rest| rest.split(' ').next())
        .unwrap_or_default();
    let mut refusal = format!("nothing is behind {target}");
    for address in endpoints.next(target) {
        match TcpStream::connect(address).await {
            Ok(mut server) => {
                server.set_nodelay(true)?;
                client
                    .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
                    .await?;
                tokio::io::copy_bidirectional(&mut client, &mut server).await?;
                return Ok(());
            }
            Err(error) => refusal = format!("{address}: {error}"),
        }
    }
    tracing::debug!(target, refusal, "no webhook to reach");
    let answer = format!(
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{refusal}",
        refusal.len()
    );
    client.write_all(answer.as_bytes()).await
}

/// Reads a request's head, byte by byte so that nothing of what follows is taken.
async fn read_head(client: &mut UnixStream) -> std::io::Result<String> {
    const LIMIT: usize = 8192;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        if head.len() >= LIMIT {
            return Err(std::io::ErrorKind::InvalidData.into());
        }
        head.push(client.read_u8().await?);
    }
    Ok(String::from_utf8_lossy(&head).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_take_turns_and_an_unknown_service_has_none() {
        let endpoints = Endpoints::default();
        let [one, two]: [SocketAddr; 2] =
            [1, 2].map(|port| SocketAddr::from(([127, 0, 0, 1], port)));
        endpoints.set("10.96.0.7:443", vec![one, two]);
        let firsts: Vec<_> = (0..4).map(|_| endpoints.next("10.96.0.7:443")[0]).collect();
        assert_eq!(firsts, [one, two, one, two]);
        // The other one is tried where the first does not answer.
        assert_eq!(endpoints.next("10.96.0.7:443").len(), 2);
        assert!(endpoints.next("10.96.0.8:443").is_empty());
    }
}
