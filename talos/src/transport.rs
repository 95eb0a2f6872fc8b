//! The connection to one node.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use hyper_util::rt::TokioIo;
use rustls::ClientConfig;
use rustls_pki_types::ServerName;
use tokio::io::AsyncBufReadExt as _;
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tonic::transport::{Channel, Endpoint, Uri};

use crate::address::NodeAddress;
use crate::error::CallError;

/// Talos' limit for a message, both ways.
pub(crate) const MAX_MESSAGE: usize = 32 * 1024 * 1024;

/// How long an idle connection may be silent before it is asked for a sign of life, and how long
/// that may take: a node that reboots leaves half-open connections behind.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(5);

/// How long a node may take to speak after the handshake.
const FIRST_WORD: Duration = Duration::from_secs(1);

/// Why no connection came about. Nothing was sent over it.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DialError {
    #[error("cannot connect")]
    Tcp(#[source] io::Error),
    #[error("the TLS handshake failed")]
    Tls(#[source] io::Error),
    #[error("no connection within {0:?}")]
    Late(Duration),
}

impl DialError {
    /// Was it a certificate that one side did not like (rather than a broken connection)?
    pub(crate) fn is_credentials(&self) -> bool {
        let Self::Tls(error) = self else { return false };
        matches!(
            error
                .get_ref()
                .and_then(|inner| inner.downcast_ref::<rustls::Error>()),
            Some(
                rustls::Error::InvalidCertificate(_)
                    | rustls::Error::AlertReceived(_)
                    | rustls::Error::NoCertificatesPresented
            )
        )
    }
}

/// A channel that connects at its first call, and anew after the connection was lost.
pub(crate) fn channel(
    address: &NodeAddress,
    tls: ClientConfig,
    connect_timeout: Duration,
) -> Result<Channel, CallError> {
    let bad = |why: String| CallError::Unreachable(format!("{address}: {why}"));
    let name = address
        .server_name()
        .ok_or_else(|| bad("neither a DNS name nor an IP address".to_owned()))?;
    // The connector below does TLS itself, so that a failed handshake stays a typed error and so
    // that the same code serves the unverified maintenance probe: tonic is told "http" and sends "https".
    let endpoint = Endpoint::from_shared(format!("http://{address}"))
        .map_err(|error| bad(error.to_string()))?
        .origin(
            Uri::try_from(format!("https://{address}")).map_err(|error| bad(error.to_string()))?,
        )
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        .keep_alive_while_idle(true);
    let target = (address.host.clone(), address.port);
    let tls = Arc::new(tls);
    Ok(
        endpoint.connect_with_connector_lazy(tower::service_fn(move |_: Uri| {
            let (target, name, tls) = (target.clone(), name.clone(), Arc::clone(&tls));
            async move {
                timeout(connect_timeout, dial(target, name, tls))
                    .await
                    .unwrap_or(Err(DialError::Late(connect_timeout)))
            }
        })),
    )
}

async fn dial(
    target: (String, u16),
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
) -> Result<TokioIo<tokio_rustls::client::TlsStream<TcpStream>>, DialError> {
    let tcp = TcpStream::connect(target).await.map_err(DialError::Tcp)?;
    tcp.set_nodelay(true).map_err(DialError::Tcp)?;
    // A connection that is given up takes its unsent bytes with it: else the kernel would go on
    // delivering a call whose outcome was already written down as unknown.
    tcp.set_zero_linger().map_err(DialError::Tcp)?;
    let mut stream = TlsConnector::from(tls)
        .connect(name, tcp)
        .await
        .map_err(DialError::Tls)?;
    // In TLS 1.3 the client is done before the server has judged its certificate. A server speaks
    // first in HTTP/2, so its first byte says that we are let in; a refusal is read here, before
    // any call has left, and is not lost in a write that fails. One that says nothing is tried anyway.
    match timeout(FIRST_WORD, stream.fill_buf()).await {
        Ok(Ok([])) => Err(DialError::Tls(io::ErrorKind::UnexpectedEof.into())),
        Ok(Err(error)) => Err(DialError::Tls(error)),
        Ok(Ok(_)) | Err(_) => Ok(TokioIo::new(stream)),
    }
}
