//! The one way that every part connects to the API server.
//!
//! kube's own constructors leave Nagle's algorithm on (some 40 ms on every fresh
//! connection) and retry 429, 503 and 504 by themselves, where a 429 is a budget's
//! answer and a 503 the webhook's. Here neither happens unasked.

use http::HeaderValue;
use http::header::USER_AGENT;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::proxy::{SocksV5, Tunnel};
use hyper_util::client::legacy::connect::{Connection, HttpConnector};
use hyper_util::rt::TokioExecutor;
use kube::client::{Body, ConfigExt};
use kube::{Client, Config};
use tower::{BoxError, Service, ServiceBuilder};

/// Who asks, in the API server's audit log; a `User-Agent` in the config goes before it.
const AGENT: &str = concat!("ichor/", env!("CARGO_PKG_VERSION"));

/// A client that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// TLS material or credentials that cannot be used.
    #[error("failed to set up the connection to the API server: {0}")]
    Config(#[source] Box<kube::Error>),
    /// A proxy of a kind that is not spoken.
    #[error("the proxy {0} cannot be used: http:// and socks5:// proxies can")]
    Proxy(String),
}

impl From<kube::Error> for ConnectError {
    fn from(error: kube::Error) -> Self {
        Self::Config(Box::new(error))
    }
}

/// A client from `config`, without Nagle's delay and without retries: a 429 is a
/// budget's answer, a 503 the webhook's, and a repeated write may be a second one.
///
/// Errors: TLS material, credentials or a proxy in `config` that cannot be used.
pub fn client(mut config: Config) -> Result<Client, ConnectError> {
    if !config.headers.iter().any(|(name, _)| name == USER_AGENT) {
        config
            .headers
            .push((USER_AGENT, HeaderValue::from_static(AGENT)));
    }
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    http.set_keepalive(Some(std::time::Duration::from_secs(30)));
    http.set_connect_timeout(config.connect_timeout);
    match config.proxy_url.clone() {
        None => stack(config, http),
        Some(proxy) if proxy.scheme_str() == Some("socks5") => {
            stack(config, SocksV5::new(proxy, http))
        }
        Some(proxy) if proxy.scheme_str() == Some("http") => {
            stack(config, Tunnel::new(proxy, http))
        }
        Some(proxy) => Err(ConnectError::Proxy(proxy.to_string())),
    }
}

fn stack<C>(config: Config, connector: C) -> Result<Client, ConnectError>
where
    C: Service<http::Uri> + Clone + Send + Sync + 'static,
    C::Response: Connection + hyper::rt::Read + hyper::rt::Write + Send + Unpin + 'static,
    C::Future: Send + 'static,
    C::Error: std::error::Error + Send + Sync + 'static,
{
    let namespace = config.default_namespace.clone();
    let https = config.rustls_https_connector_with_connector(connector)?;
    let http = HttpClient::builder(TokioExecutor::new()).build::<_, Body>(https);
    let service = ServiceBuilder::new()
        .layer(config.base_uri_layer())
        .option_layer(config.auth_layer()?)
        .layer(config.extra_headers_layer()?)
        .map_err(BoxError::from)
        .service(http);
    Ok(Client::new(service, namespace))
}
