//! The HTTPS server: one route per path, each request bounded and answered, whatever
//! happens to it.

use std::io;
use std::net::SocketAddr;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::Router;
use axum::body::Bytes;
use axum::extract::rejection::BytesRejection;
use axum::extract::{DefaultBodyLimit, State};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use axum::{Json, http::StatusCode};
use axum_server::Handle;
use axum_server::accept::NoDelayAcceptor;
use axum_server::tls_rustls::{RustlsAcceptor, RustlsConfig};
use futures::FutureExt;
use kube::Client;
use prometheus_client::registry::Registry;
use tokio_util::sync::CancellationToken;

use crate::answer::{Admitted, Refusal};
use crate::config::WebhookConfig;
use crate::judge::Judge;
use crate::metrics::{Metrics, PathLabels, ReviewLabels};
use crate::paths::Concern;
use crate::record;
use crate::review::{self, Malformed, Request};
use crate::tls::{Certificates, Keeper, Readiness};

/// How long open connections have to finish at shutdown.
const GRACE: Duration = Duration::from_secs(10);

/// A server that could not run.
#[derive(Debug, thiserror::Error)]
pub enum WebhookError {
    /// The address cannot be listened on.
    #[error("failed to listen for admission reviews on {address}: {source}")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// TLS cannot be set up at all.
    #[error("failed to set up TLS for the webhook: {0}")]
    Tls(#[from] rustls::Error),
    /// The server ended by itself.
    #[error("the webhook's server ended: {0}")]
    Serve(#[source] io::Error),
}

/// The admission server, listening but not serving yet.
pub struct Webhook {
    judge: Arc<Judge>,
    certificates: Arc<Certificates>,
    keeper: Keeper,
    listener: std::net::TcpListener,
    address: SocketAddr,
}

impl Webhook {
    /// Binds the address and prepares everything; [`Webhook::serve`] does the rest.
    ///
    /// `client` does the direct reads, the access reviews, and keeps certificate and CA
    /// bundle. Errors: the address is taken.
    pub fn bind(config: &WebhookConfig, client: Client) -> Result<Self, WebhookError> {
        let listen = |source| WebhookError::Listen {
            address: config.listen,
            source,
        };
        let listener = std::net::TcpListener::bind(config.listen).map_err(listen)?;
        listener.set_nonblocking(true).map_err(listen)?;
        let address = listener.local_addr().map_err(listen)?;
        let metrics = Metrics::default();
        let certificates = Arc::new(Certificates::new(metrics.clone()));
        Ok(Self {
            keeper: Keeper::new(config, client.clone(), certificates.clone()),
            judge: Judge::new(config, client, metrics),
            certificates,
            listener,
            address,
        })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Adds its metrics to the agent's registry.
    pub fn register(&self, registry: &mut Registry) {
        self.judge.metrics.register(registry);
    }

    /// Tells at any time whether it can be reached over TLS; for `/readyz`.
    pub fn readiness(&self) -> Readiness {
        Readiness::new(self.certificates.clone())
    }

    /// Serves until `shutdown`, then finishes what it has begun.
    ///
    /// Errors: TLS cannot be set up, or the socket fails. A certificate that cannot be
    /// had yet is none: it is tried again, handshakes fail meanwhile, and
    /// [`Webhook::readiness`] says why.
    pub async fn serve(self, shutdown: CancellationToken) -> Result<(), WebhookError> {
        let routes = router(self.judge.clone());
        let stop = shutdown.child_token();
        let serving = serve_tls(self.listener, self.certificates, routes, stop.clone());
        let keeping = self.keeper.run(stop.clone());
        tracing::info!(address = %self.address, "serving admission reviews");
        let serving = async {
            let served = serving.await;
            // A server that ended by itself ends the keeping too.
            stop.cancel();
            served
        };
        let (served, ()) = tokio::join!(serving, keeping);
        // What was admitted last is still being recorded.
        let _ = tokio::time::timeout(GRACE, self.judge.settled()).await;
        served
    }
}

/// Serves `routes` over TLS on `listener` until `shutdown`, then gives open connections
/// some seconds to finish. Handshakes take what `certificates` hold at that moment.
///
/// Errors: TLS cannot be set up, or the socket fails.
pub async fn serve_tls(
    listener: std::net::TcpListener,
    certificates: Arc<Certificates>,
    routes: Router,
    shutdown: CancellationToken,
) -> Result<(), WebhookError> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut tls = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()?
        .with_no_client_auth()
        .with_cert_resolver(certificates);
    tls.alpn_protocols = vec![b"h2".to_vec(), b"http/1.1".to_vec()];
    // Handshakes run in tasks of their own, so that a silent connection blocks nobody.
    let acceptor = RustlsAcceptor::new(RustlsConfig::from_config(Arc::new(tls)))
        .acceptor(NoDelayAcceptor::new());
    let handle = Handle::new();
    let server = axum_server::from_tcp(listener)
        .map_err(WebhookError::Serve)?
        .acceptor(acceptor)
        .handle(handle.clone())
        .serve(routes.into_make_service());
    let stopping = async {
        shutdown.cancelled().await;
        handle.graceful_shutdown(Some(GRACE));
        std::future::pending::<()>().await;
    };
    tokio::select! {
        served = server => served.map_err(WebhookError::Serve),
        () = stopping => Ok(()),
    }
}

/// The routes, without TLS: what tests call and [`Webhook::serve`] serves.
pub fn router(judge: Arc<Judge>) -> Router {
    let mut router = Router::new();
    for concern in Concern::ALL {
        router = router.route(
            concern.path(),
            post(
                move |State(judge): State<Arc<Judge>>, body: Result<Bytes, BytesRejection>| {
                    answer(concern, judge, body)
                },
            ),
        );
    }
    router
        .layer(DefaultBodyLimit::max(judge.limits.body))
        .with_state(judge)
}

async fn answer(
    concern: Concern,
    judge: Arc<Judge>,
    body: Result<Bytes, BytesRejection>,
) -> Response {
    let body = match body {
        Ok(body) => body,
        Err(rejection) => return plain(rejection.status(), &rejection.body_text()),
    };
    let began = Instant::now();
    let request = match Request::parse(&body) {
        Ok(request) => request,
        Err(Malformed { uid: None, message }) => return plain(StatusCode::BAD_REQUEST, &message),
        Err(Malformed {
            uid: Some(uid),
            message,
        }) => {
            let refused = Err(Refusal::Unreadable { message });
            return Json(review::response(&uid, "", &refused)).into_response();
        }
    };
    drop(body);
    let judged = judged(concern, &judge, &request).await;
    let labels = ReviewLabels {
        path: concern.as_str(),
        answer: judged
            .as_ref()
            .map_or_else(Refusal::rule_name, |_| "allowed"),
    };
    judge.metrics.reviews.get_or_create(&labels).inc();
    judge
        .metrics
        .durations
        .get_or_create(&PathLabels {
            path: concern.as_str(),
        })
        .observe(began.elapsed().as_secs_f64());
    let user = request.user_info.username.clone();
    let response = Json(review::response(&request.uid, &user, &judged));
    match judged {
        Ok(Admitted {
            crossing: Some(crossing),
            ..
        }) => record::spawn(&judge, request, crossing),
        Ok(_) => {}
        Err(refusal) => tracing::info!(
            path = concern.as_str(), %user, operation = ?request.operation,
            object = %format!("{}/{}", request.namespace, request.name()),
            dry_run = request.dry_run, rule = refusal.rule_name(), "refused: {refusal}"
        ),
    }
    response.into_response()
}

/// Judges within the bounds: not too many at once, not too long, and a panic is an
/// answer too.
async fn judged(
    concern: Concern,
    judge: &Arc<Judge>,
    request: &Request,
) -> Result<Admitted, Refusal> {
    let limit = judge.limits.review;
    let bounded = async {
        let _permit = judge.permits.acquire().await.ok();
        concern.judge(judge, request).await
    };
    let caught = AssertUnwindSafe(bounded).catch_unwind();
    match tokio::time::timeout(limit, caught).await {
        Ok(Ok(judged)) => judged,
        Ok(Err(_)) => Err(Refusal::CannotTell {
            cause: "the webhook failed while judging this (a defect; its log has the panic)".into(),
        }),
        Err(_) => Err(Refusal::CannotTell {
            cause: format!(
                "it took longer than {} ms: the API server is slow or the webhook busy",
                limit.as_millis()
            ),
        }),
    }
}

fn plain(status: StatusCode, message: &str) -> Response {
    (status, message.to_owned()).into_response()
}
