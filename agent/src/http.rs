//! The plain HTTP port: `/livez`, `/readyz`, `/metrics`.

use std::net::SocketAddr;
use std::sync::Arc;

use axum::Router;
use axum::extract::State;
use axum::http::{StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use ichor_webhook::Readiness;
use prometheus_client::registry::Registry;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

/// What the port tells of.
pub struct Health {
    /// All metrics.
    pub registry: Registry,
    /// The webhook's certificate. Leading or holding a lock never gates readiness: the
    /// webhook serves on every replica.
    pub webhook: Readiness,
}

/// Serves until `stop`. Errors: the port cannot be listened on.
pub async fn serve(
    listen: SocketAddr,
    health: Health,
    stop: CancellationToken,
) -> std::io::Result<()> {
    let router = Router::new()
        .route("/livez", get(|| async { "ok" }))
        .route("/readyz", get(ready))
        .route("/metrics", get(metrics))
        .with_state(Arc::new(health));
    let listener = TcpListener::bind(listen).await?;
    tracing::info!(listen = %listener.local_addr()?, "serving health and metrics");
    axum::serve(listener, router)
        .with_graceful_shutdown(async move { stop.cancelled().await })
        .await
}

async fn ready(State(health): State<Arc<Health>>) -> Response {
    match health.webhook.check() {
        Ok(()) => "ok".into_response(),
        Err(why) => (StatusCode::SERVICE_UNAVAILABLE, why).into_response(),
    }
}

async fn metrics(State(health): State<Arc<Health>>) -> Response {
    let mut text = String::new();
    if prometheus_client::encoding::text::encode(&mut text, &health.registry).is_err() {
        return StatusCode::INTERNAL_SERVER_ERROR.into_response();
    }
    (
        [(
            header::CONTENT_TYPE,
            "application/openmetrics-text; version=1.0.0; charset=utf-8",
        )],
        text,
    )
        .into_response()
}
