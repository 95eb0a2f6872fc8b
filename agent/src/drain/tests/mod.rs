//! The drain against an API server that answers as told, and counts.

mod cordoning;
mod fake;
mod passes;
mod refusals;
mod settling;
mod telling;

use std::time::Duration;

use ichor_api::common::DrainOptions;
use ichor_api::machine::DrainStatus;
use k8s_openapi::jiff::Timestamp;
use serde_json::Value;

use super::{DrainLimits, DrainOutcome, DrainPass, DrainRequest};
use fake::Fake;

/// A fixed time of day.
fn now() -> Timestamp {
    "2026-06-01T12:00:00Z".parse().unwrap()
}

/// What a test changes of a request.
struct Ask {
    options: DrainOptions,
    dead: bool,
    previous: Option<DrainStatus>,
    elapsed: Duration,
    limits: DrainLimits,
}

impl Default for Ask {
    fn default() -> Self {
        Self {
            options: DrainOptions::default(),
            dead: false,
            previous: None,
            elapsed: Duration::ZERO,
            limits: limits(),
        }
    }
}

/// The defaults, in no hurry to spread anything out.
fn limits() -> DrainLimits {
    DrainLimits {
        pace: Duration::ZERO,
        ..DrainLimits::default()
    }
}

impl Ask {
    fn options(options: Value) -> Self {
        Self {
            options: serde_json::from_value(options).unwrap(),
            ..Self::default()
        }
    }

    fn after(pass: &DrainPass) -> Self {
        Self {
            previous: Some(pass.status.clone()),
            ..Self::default()
        }
    }

    /// One pass over `worker-1`; the lock's witness plays no part in what a pass does.
    async fn run(&self, fake: &Fake) -> DrainPass {
        self.try_run(fake).await.unwrap()
    }

    async fn try_run(&self, fake: &Fake) -> Result<DrainPass, super::DrainError> {
        self.run_while(fake, &|| true).await
    }

    /// With a lock that is ours for as long as `held` says so.
    async fn run_while(
        &self,
        fake: &Fake,
        held: super::pass::Held<'_>,
    ) -> Result<DrainPass, super::DrainError> {
        super::pass::run(held, &fake.client(), &self.request()).await
    }

    fn request(&self) -> DrainRequest<'_> {
        DrainRequest {
            node: "worker-1",
            operation_uid: "op-1",
            options: &self.options,
            dead: self.dead,
            agent_namespace: "ichor-system",
            previous: self.previous.as_ref(),
            elapsed: self.elapsed,
            now: now(),
            limits: self.limits.clone(),
        }
    }
}

async fn run(fake: &Fake) -> DrainPass {
    Ask::default().run(fake).await
}

fn blocked(pass: &DrainPass) -> &str {
    match &pass.outcome {
        DrainOutcome::Blocked { message } => message,
        other => panic!("not blocked: {other:?}"),
    }
}

fn reasons(pass: &DrainPass) -> Vec<(&str, &str)> {
    pass.status
        .pods
        .iter()
        .map(|p| (p.name.as_str(), p.reason.as_str()))
        .collect()
}
