//! A fault-injecting proxy in front of the API server.
//!
//! It ends TLS with a certificate of the bed's authority, passes the caller's
//! credentials (bearer tokens; not client certificates) on, and answers, delays or drops
//! as [`Faults`] say. Watches stream through.

pub mod faults;
pub mod log;

use std::net::Ipv4Addr;
use std::sync::Arc;

use bytes::Bytes;
use http::header::{CONTENT_TYPE, RETRY_AFTER, USER_AGENT};
use http::uri::{Authority as HostPort, Scheme};
use http::{Request, Response, StatusCode, Uri};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_rustls::HttpsConnector;
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::{TokioExecutor, TokioIo};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;
use tokio_util::task::AbortOnDropHandle;

use crate::controlplane::certs::Authority;
use crate::error::{BedError, Result};
use crate::net::free_port;

use faults::{Fault, Faults, Plan};
use log::{ApiRequest, RequestLog, verb_and_resource};

type BoxError = Box<dyn std::error::Error + Send + Sync>;
type Body = BoxBody<Bytes, BoxError>;
type Upstream = Client<HttpsConnector<HttpConnector>, Body>;

/// The running proxy. Dropping it closes it.
#[derive(Debug)]
pub struct ApiProxy {
    url: String,
    faults: Arc<Faults>,
    log: Arc<RequestLog>,
    _task: AbortOnDropHandle<()>,
}

struct Shared {
    upstream: Upstream,
    host: HostPort,
    faults: Arc<Faults>,
    log: Arc<RequestLog>,
}

impl ApiProxy {
    /// Starts one in front of the API server at `api_server` (`https://host:port`),
    /// whose certificate `authority` signed.
    pub async fn start(api_server: &str, authority: &Authority) -> Result<Self> {
        let host = api_server
            .parse::<Uri>()
            .ok()
            .and_then(|uri| uri.authority().cloned())
            .ok_or_else(|| BedError::Refused(format!("{api_server} is no URL of a server")))?;
        let acceptor = acceptor(authority)?;
        let port = free_port()?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, port))
            .await
            .map_err(|e| BedError::io(format!("failed to listen on 127.0.0.1:{port}"), e))?;
        let faults = Arc::new(Faults::default());
        let log = Arc::new(RequestLog::default());
        let shared = Arc::new(Shared {
            upstream: upstream(authority)?,
            host,
            faults: Arc::clone(&faults),
            log: Arc::clone(&log),
        });
        let task = tokio::spawn(accept(listener, acceptor, shared));
        Ok(Self {
            url: format!("https://127.0.0.1:{port}"),
            faults,
            log,
            _task: AbortOnDropHandle::new(task),
        })
    }

    /// Its URL.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Its weather.
    pub fn faults(&self) -> &Faults {
        &self.faults
    }

    /// What went through it.
    pub fn log(&self) -> &RequestLog {
        &self.log
    }
}

fn acceptor(authority: &Authority) -> Result<TlsAcceptor> {
    let serving = authority.server(&["127.0.0.1", "localhost", "kubernetes.default.svc"])?;
    let mut config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(serving.chain(), serving.private_key())?;
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok(TlsAcceptor::from(Arc::new(config)))
}

fn upstream(authority: &Authority) -> Result<Upstream> {
    let mut roots = rustls::RootCertStore::empty();
    roots.add(authority.der().clone())?;
    let tls = rustls::ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    let mut http = HttpConnector::new();
    http.set_nodelay(true);
    http.enforce_http(false);
    let connector = hyper_rustls::HttpsConnectorBuilder::new()
        .with_tls_config(tls)
        .https_only()
        .enable_http1()
        .wrap_connector(http);
    Ok(Client::builder(TokioExecutor::new()).build(connector))
}

async fn accept(listener: TcpListener, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    // Its connections end with it.
    let mut connections = tokio::task::JoinSet::new();
    loop {
        tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) if !shared.faults.is_out() => {
                    connections.spawn(serve(stream, acceptor.clone(), Arc::clone(&shared)));
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!(%error, "the proxy of the API server failed to accept");
                    tokio::time::sleep(std::time::Duration::from_millis(50)).await;
                }
            },
            Some(_) = connections.join_next() => {}
        }
    }
}

async fn serve(stream: TcpStream, acceptor: TlsAcceptor, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
    let faults = Arc::clone(&shared.faults);
    let connection = async {
        let Ok(stream) = acceptor.accept(stream).await else {
            return;
        };
        let service = service_fn(move |request| answer(request, Arc::clone(&shared)));
        // An error here is a client that went, or an answer that was dropped on purpose.
        let _ = hyper::server::conn::http1::Builder::new()
            .serve_connection(TokioIo::new(stream), service)
            .await;
    };
    tokio::select! {
        () = connection => {}
        () = faults.outage_begins() => {}
    }
}

/// What becomes of one request. An error closes the connection without an answer.
async fn answer(
    request: Request<Incoming>,
    shared: Arc<Shared>,
) -> Result<Response<Body>, BoxError> {
    let path = request
        .uri()
        .path_and_query()
        .map_or("/", |p| p.as_str())
        .to_owned();
    let plan = shared.faults.take(request.method(), &path);
    if plan == Plan::default() {
        return forward(request.map(boxed), path, plan, shared).await;
    }
    // From here on it goes its way even where its sender gives up: a message that is
    // late arrives all the same.
    let (parts, body) = request.into_parts();
    let body = body.collect().await?.to_bytes();
    let request = Request::from_parts(parts, full(body));
    tokio::spawn(forward(request, path, plan, shared)).await?
}

async fn forward(
    mut request: Request<Body>,
    path: String,
    plan: Plan,
    shared: Arc<Shared>,
) -> Result<Response<Body>, BoxError> {
    let (verb, resource) = verb_and_resource(request.method(), &path);
    let agent = request.headers().get(USER_AGENT);
    let mut record = ApiRequest {
        time: jiff::Timestamp::now(),
        user_agent: agent
            .map(|v| String::from_utf8_lossy(v.as_bytes()).into_owned())
            .unwrap_or_default(),
        method: request.method().to_string(),
        path,
        verb,
        resource,
        code: 0,
        fault: describe(plan),
    };
    if let Some(delay) = plan.delay {
        tokio::time::sleep(delay).await;
    }
    if let Some(Fault::Status { code, after: false }) = plan.end {
        record.time = jiff::Timestamp::now();
        shared.log.record(record);
        return status(code, "before it was applied");
    }
    *request.uri_mut() = Uri::builder()
        .scheme(Scheme::HTTPS)
        .authority(shared.host.clone())
        .path_and_query(record.path.as_str())
        .build()?;
    let watches = record.verb == "watch";
    let response = shared.upstream.request(request).await;
    record.time = jiff::Timestamp::now();
    if let Ok(response) = &response {
        record.code = response.status().as_u16();
    }
    shared.log.record(record);
    let response = response?;
    match plan.end {
        None | Some(Fault::Delay(_)) => Ok(response.map(boxed)),
        Some(end) => {
            // The API server answers once the write is stored; a watch has no end to wait for.
            if !watches {
                response.into_body().collect().await?;
            }
            match end {
                Fault::Status { code, .. } => status(code, "after it was applied"),
                _ => Err("the answer is dropped on purpose".into()),
            }
        }
    }
}

fn describe(plan: Plan) -> Option<String> {
    let delay = plan
        .delay
        .map(|delay| format!("delay {} ms", delay.as_millis()));
    let end = plan.end.map(|end| match end {
        Fault::DropAnswer => "drop-answer".to_owned(),
        Fault::Status { code, after: true } => format!("status {code} after"),
        Fault::Status { code, .. } => format!("status {code}"),
        Fault::Delay(_) => String::new(),
    });
    match (delay, end) {
        (Some(delay), Some(end)) => Some(format!("{delay}, {end}")),
        (delay, end) => delay.or(end),
    }
}

/// An answer in the shape that the API server gives its errors.
fn status(code: u16, when: &str) -> Result<Response<Body>, BoxError> {
    let reason = match code {
        400 => "BadRequest",
        401 => "Unauthorized",
        403 => "Forbidden",
        404 => "NotFound",
        409 => "Conflict",
        410 => "Expired",
        422 => "Invalid",
        429 => "TooManyRequests",
        500 => "InternalError",
        503 => "ServiceUnavailable",
        504 => "Timeout",
        _ => "Unknown",
    };
    let body = serde_json::json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
        "message": format!("the test bed answers {code} to this request, {when}"),
        "reason": reason, "code": code,
    });
    let mut response = Response::builder()
        .status(StatusCode::from_u16(code)?)
        .header(CONTENT_TYPE, "application/json");
    if code == 429 {
        // So does the API server where it is overloaded (but not where a budget refuses).
        response = response.header(RETRY_AFTER, "1");
    }
    Ok(response.body(full(Bytes::from(body.to_string())))?)
}

fn full(bytes: Bytes) -> Body {
    Full::new(bytes).map_err(|never| match never {}).boxed()
}

fn boxed(body: Incoming) -> Body {
    body.map_err(BoxError::from).boxed()
}
