//! Ichor's admission server (spec section 7): a library that the agent links in and
//! serves on every replica, whether it leads or not.
//!
//! It shares no memory with the controllers: what it judges by, it reads from the API
//! server, each time, and it decides nothing itself: the rules are `ichor-rules`.
//! It fails closed: what cannot be told is refused with 503 and the cause.
//!
//! One module per path under [`paths`]; certificates under [`tls`].

pub mod access;
pub mod answer;
pub mod config;
pub mod judge;
pub mod metrics;
mod objects;
pub mod paths;
pub mod record;
pub mod review;
pub mod server;
pub mod tls;
pub mod users;

pub use config::{Limits, WebhookConfig};
pub use judge::Judge;
pub use server::{Webhook, WebhookError, router};
pub use tls::{Readiness, TlsSource};
pub use users::Users;
