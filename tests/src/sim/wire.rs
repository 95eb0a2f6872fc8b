//! The line to a simulated machine: it can be cut (nothing passes, nobody is told), it dies with
//! the machine's power, and it is where TLS is spoken.

use std::io;
use std::net::{Ipv4Addr, SocketAddr};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use rustls::ServerConfig;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::{mpsc, watch};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;
use tokio_stream::Stream;
use tokio_stream::wrappers::{ReceiverStream, WatchStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::error::Result;
use crate::wait;

/// A TCP stream through which nothing passes while the line is cut, and which breaks when the
/// API of the machine goes.
pub(super) struct Wire {
    tcp: TcpStream,
    cut: watch::Receiver<bool>,
    // Wakes a waiting reader or writer when the line is cut or healed.
    changes_read: WatchStream<bool>,
    changes_write: WatchStream<bool>,
    gone: Pin<Box<WaitForCancellationFutureOwned>>,
    gone_token: CancellationToken,
}

impl Wire {
    fn new(tcp: TcpStream, cut: &watch::Receiver<bool>, gone: &CancellationToken) -> Self {
        Self {
            tcp,
            changes_read: WatchStream::from_changes(cut.clone()),
            changes_write: WatchStream::from_changes(cut.clone()),
            cut: cut.clone(),
            gone: Box::pin(gone.clone().cancelled_owned()),
            gone_token: gone.clone(),
        }
    }

    /// Ready when something may pass.
    fn passable(&mut self, cx: &mut Context<'_>, write: bool) -> Poll<io::Result<()>> {
        let broken = || Err(io::Error::from(io::ErrorKind::ConnectionReset));
        if self.gone_token.is_cancelled() {
            return Poll::Ready(broken());
        }
        if !write {
            // The reader is the one that always waits: it is told of the end.
            use std::future::Future as _;
            if self.gone.as_mut().poll(cx).is_ready() {
                return Poll::Ready(broken());
            }
        }
        let changes = if write {
            &mut self.changes_write
        } else {
            &mut self.changes_read
        };
        // Drained to pending, so that this task is woken at the next change.
        while let Poll::Ready(change) = Pin::new(&mut *changes).poll_next(cx) {
            if change.is_none() {
                return Poll::Ready(broken());
            }
        }
        if *self.cut.borrow() {
            Poll::Pending
        } else {
            Poll::Ready(Ok(()))
        }
    }
}

impl AsyncRead for Wire {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        ready!(self.passable(cx, false))?;
        Pin::new(&mut self.tcp).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Wire {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        ready!(self.passable(cx, true))?;
        Pin::new(&mut self.tcp).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.passable(cx, true))?;
        Pin::new(&mut self.tcp).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.passable(cx, true))?;
        Pin::new(&mut self.tcp).poll_shutdown(cx)
    }
}

/// A TLS connection whose handshake is done.
pub(super) struct Connection(TlsStream<Wire>);

/// Who is at the other end: the roles in its certificate; none without one.
#[derive(Clone, Debug, Default)]
pub(super) struct Peer {
    pub(super) roles: Arc<Vec<String>>,
}

impl Connected for Connection {
    type ConnectInfo = Peer;

    fn connect_info(&self) -> Peer {
        let certificates = self.0.get_ref().1.peer_certificates().unwrap_or_default();
        let roles = certificates
            .first()
            .map(|leaf| roles(leaf))
            .unwrap_or_default();
        Peer {
            roles: Arc::new(roles),
        }
    }
}

/// The organisations of a client certificate; none where it is for anything but clients.
fn roles(certificate: &[u8]) -> Vec<String> {
    let Ok((_, certificate)) = x509_parser::parse_x509_certificate(certificate) else {
        return Vec::new();
    };
    match certificate.extended_key_usage() {
        Ok(Some(usage))
            if usage.value.client_auth && !usage.value.server_auth && !usage.value.any => {}
        _ => return Vec::new(),
    }
    certificate
        .subject()
        .iter_organization()
        .filter_map(|organization| organization.as_str().ok().map(str::to_owned))
        .collect()
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_read(cx, buffer)
    }
}

impl AsyncWrite for Connection {
    fn poll_write(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.0).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.0).poll_shutdown(cx)
    }
}

/// Listens at a machine's address, and hands over the connections whose TLS handshake succeeded.
/// All of it ends with `gone`.
pub(super) async fn listen(
    address: Ipv4Addr,
    port: u16,
    tls: Arc<ServerConfig>,
    cut: &watch::Receiver<bool>,
    gone: &CancellationToken,
) -> Result<ReceiverStream<io::Result<Connection>>> {
    // The listener before this one may still be on its way out.
    let listener = wait::until(
        Duration::from_secs(5),
        "the address to be free",
        async || bind(address, port).map_err(|e| e.to_string()),
    )
    .await?;
    let (sender, receiver) = mpsc::channel(16);
    let (cut, gone) = (cut.clone(), gone.clone());
    let acceptor = TlsAcceptor::from(tls);
    tokio::spawn(async move {
        loop {
            let tcp = tokio::select! {
                accepted = listener.accept() => match accepted {
                    Ok((tcp, _)) => tcp,
                    Err(_) => continue,
                },
                () = gone.cancelled() => return,
            };
            let _ = tcp.set_nodelay(true);
            let wire = Wire::new(tcp, &cut, &gone);
            let (acceptor, sender) = (acceptor.clone(), sender.clone());
            // Each handshake by itself: one silent client must not hold up the others.
            tokio::spawn(async move {
                if let Ok(stream) = acceptor.accept(wire).await {
                    let _ = sender.send(Ok(Connection(stream))).await;
                }
            });
        }
    });
    Ok(ReceiverStream::new(receiver))
}

fn bind(address: Ipv4Addr, port: u16) -> io::Result<TcpListener> {
    let socket = TcpSocket::new_v4()?;
    socket.set_reuseaddr(true)?;
    socket.bind(SocketAddr::from((address, port)))?;
    socket.listen(128)
}

/// Are all of these free for a simulated machine?
pub(super) fn free(address: Ipv4Addr, ports: &[u16]) -> bool {
    ports
        .iter()
        .all(|port| std::net::TcpListener::bind((address, *port)).is_ok())
}
