//! One connection to one API server: every request of a command goes through here, with
//! the same credentials, deadline and log.

use std::collections::{BTreeSet, VecDeque};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use futures::future::BoxFuture;
use http_body_util::BodyExt as _;
use ichor_rules::DirectReader;
use k8s_openapi::jiff::{SignedDuration, Timestamp};
use kube::Client;
use kube::client::Body;
use kube::core::{ListMeta, Status};
use serde::Deserialize;
use serde::de::DeserializeOwned;
use tower::{BoxError, Service};

use crate::age::Clock;
use crate::cli::Timeout;
use crate::error::{Error, Request};
use crate::io::Io;
use crate::kubeconfig::Resolved;

/// The verbosity from which each request is shown, as kubectl does.
const SHOW_REQUESTS: u8 = 6;

/// What the connection itself has learnt: things to tell a person, and the API
/// server's clock.
#[derive(Debug, Default)]
struct Journal {
    notes: VecDeque<String>,
    warned: BTreeSet<String>,
    ahead: Option<SignedDuration>,
}

/// A connection.
#[derive(Clone)]
pub struct Session {
    client: Client,
    /// The namespace that is asked where a command names none.
    pub namespace: String,
    limit: Option<Duration>,
    journal: Arc<Mutex<Journal>>,
}

impl std::fmt::Debug for Session {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Session")
            .field("namespace", &self.namespace)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

/// A page of a list. Items are decoded once, straight from the answer.
#[derive(Deserialize)]
#[serde(bound = "T: DeserializeOwned")]
struct Page<T> {
    metadata: ListMeta,
    #[serde(default = "Vec::new")]
    items: Vec<T>,
}

impl Session {
    /// Connects by a resolved kubeconfig. Nothing is sent yet (a credential plugin is run).
    pub fn connect(resolved: Resolved, timeout: Timeout, verbosity: u8) -> Result<Self, Error> {
        let namespace = resolved.namespace;
        let inner = ichor_rules::connect::client(resolved.config)?;
        Ok(Self::over(inner, namespace, timeout, verbosity))
    }

    /// Goes through a client that is there already.
    pub fn over(inner: Client, namespace: String, timeout: Timeout, verbosity: u8) -> Self {
        let journal = Arc::new(Mutex::new(Journal::default()));
        let observer = Observer {
            inner,
            journal: Arc::clone(&journal),
            show: verbosity >= SHOW_REQUESTS,
        };
        Self {
            client: Client::new(observer, namespace.clone()),
            namespace,
            limit: timeout.0,
            journal,
        }
    }

    /// The client, for typed calls; wrap them in [`Session::bounded`].
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    /// The direct reader that the rules' counts come from.
    pub fn reader(&self) -> DirectReader {
        match self.limit {
            Some(limit) => DirectReader::with_deadline(self.client(), limit),
            None => DirectReader::with_deadline(self.client(), Duration::from_hours(24)),
        }
    }

    /// Ends `call` at the deadline, and says what it was about where it fails.
    pub async fn bounded<T>(
        &self,
        request: Request,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Error> {
        let outcome = match self.limit {
            None => call.await,
            Some(limit) => match tokio::time::timeout(limit, call).await {
                Ok(outcome) => outcome,
                Err(_) => {
                    return Err(Error::Timeout {
                        request,
                        seconds: limit.as_secs().max(1),
                    });
                }
            },
        };
        outcome.map_err(|source| Error::api(request, source))
    }

    /// Sends a request and decodes the answer as it came, without copying it.
    async fn fetch<T: DeserializeOwned>(&self, path: &str) -> Result<T, kube::Error> {
        let request = http::Request::get(path)
            .header(http::header::ACCEPT, "application/json")
            .body(Body::empty())
            .map_err(|e| kube::Error::Service(e.into()))?;
        let answer = self.client.send(request).await?;
        let code = answer.status();
        let body = answer.into_body().collect().await?.to_bytes();
        if code.is_success() {
            return serde_json::from_slice(&body).map_err(kube::Error::SerdeError);
        }
        let status = serde_json::from_slice::<Status>(&body).unwrap_or_else(|_| Status {
            message: String::from_utf8_lossy(&body).trim().to_owned(),
            ..Status::default()
        });
        Err(kube::Error::Api(Box::new(Status {
            code: code.as_u16(),
            ..status
        })))
    }

    /// Every object under `path`, page by page. `query`: further parameters, each
    /// beginning with `&`.
    pub async fn list<T: DeserializeOwned>(
        &self,
        request: Request,
        path: &str,
        query: &str,
    ) -> Result<Vec<T>, Error> {
        let mut items: Vec<T> = Vec::new();
        let mut next = String::new();
        loop {
            let page: Page<T> = self
                .bounded(
                    request.clone(),
                    self.fetch(&format!("{path}?limit=500{query}{next}")),
                )
                .await?;
            if items.is_empty() {
                items = page.items;
            } else {
                items.extend(page.items);
            }
            match page.metadata.continue_.filter(|token| !token.is_empty()) {
                Some(token) => next = format!("&continue={}", encode(&token)),
                None => return Ok(items),
            }
        }
    }

    /// The object at `path`.
    pub async fn get<T: DeserializeOwned>(&self, request: Request, path: &str) -> Result<T, Error> {
        self.bounded(request, self.fetch(path)).await
    }

    fn journal(&self) -> std::sync::MutexGuard<'_, Journal> {
        self.journal.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Tells what the connection has to tell: the API server's warnings, and the
    /// requests where they were asked for.
    pub fn tell(&self, io: &mut Io<'_>) {
        let notes = std::mem::take(&mut self.journal().notes);
        for note in notes {
            io.note(&note);
        }
    }

    /// Now, by the API server's clock: ages and "older than two minutes" then do not
    /// depend on whether this computer's clock is right.
    pub fn clock(&self) -> Clock {
        let ahead = self.journal().ahead.unwrap_or_default();
        Clock::relative(
            Timestamp::now()
                .saturating_add(ahead)
                .unwrap_or(Timestamp::MAX),
        )
    }
}

/// Percent-encodes a query value.
pub fn encode(value: &str) -> String {
    use std::fmt::Write as _;
    let mut encoded = String::with_capacity(value.len());
    for byte in value.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'~') {
            encoded.push(char::from(byte));
        } else {
            let _ = write!(encoded, "%{byte:02X}");
        }
    }
    encoded
}

/// Sees every request and answer of a client.
struct Observer {
    inner: Client,
    journal: Arc<Mutex<Journal>>,
    show: bool,
}

impl Service<http::Request<Body>> for Observer {
    type Response = http::Response<Body>;
    type Error = BoxError;
    type Future = BoxFuture<'static, Result<Self::Response, BoxError>>;

    fn poll_ready(
        &mut self,
        _: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Result<(), BoxError>> {
        // `Client::send` waits for the inner service itself.
        std::task::Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let inner = self.inner.clone();
        let journal = Arc::clone(&self.journal);
        let shown = self
            .show
            .then(|| format!("{} {}", request.method(), request.uri()));
        let started = Instant::now();
        Box::pin(async move {
            let outcome = inner.send(request).await;
            let mut journal = journal.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(shown) = shown {
                let said = match &outcome {
                    Ok(answer) => answer.status().to_string(),
                    Err(error) => error.to_string(),
                };
                journal.notes.push_back(format!(
                    "{shown} {said} in {} ms",
                    started.elapsed().as_millis()
                ));
            }
            if let Ok(answer) = &outcome {
                note_headers(&mut journal, answer.headers());
            }
            outcome.map_err(Into::into)
        })
    }
}

fn note_headers(journal: &mut Journal, headers: &http::HeaderMap) {
    for warning in headers.get_all(http::header::WARNING) {
        if let Some(text) = warning.to_str().ok().and_then(warning_text) {
            // Said once, as kubectl does, however many answers carry it.
            if journal.warned.insert(text.clone()) {
                journal.notes.push_back(format!("Warning: {text}"));
            }
        }
    }
    let date = headers
        .get(http::header::DATE)
        .and_then(|date| date.to_str().ok())
        .and_then(|date| k8s_openapi::jiff::fmt::rfc2822::parse(date).ok());
    if let Some(date) = date {
        let ahead = date.timestamp().duration_since(Timestamp::now());
        // The header has whole seconds: less than two says nothing.
        journal.ahead = Some(if ahead.abs() > SignedDuration::from_secs(2) {
            ahead
        } else {
            SignedDuration::ZERO
        });
    }
}

/// The text of a `Warning` header: `299 - "text"`, with `"` and `\` escaped.
fn warning_text(header: &str) -> Option<String> {
    let quoted = header.strip_prefix("299 ")?.split_once('"')?.1;
    let mut text = String::new();
    let mut characters = quoted.chars();
    while let Some(character) = characters.next() {
        match character {
            '"' => return Some(text),
            '\\' => text.extend(characters.next()),
            other => text.push(other),
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_warning_is_read_out_of_its_header() {
        assert_eq!(
            warning_text(r#"299 - "it is \"held\"""#).as_deref(),
            Some("it is \"held\"")
        );
        assert_eq!(warning_text("199 - \"x\""), None);
        assert_eq!(warning_text("299 - \"x"), None);
    }

    #[test]
    fn the_servers_clock_counts_only_where_it_differs() {
        let mut journal = Journal::default();
        let mut headers = http::HeaderMap::new();
        let at = |t: Timestamp| {
            t.strftime("%a, %d %b %Y %H:%M:%S GMT")
                .to_string()
                .parse()
                .unwrap()
        };
        headers.insert(http::header::DATE, at(Timestamp::now()));
        note_headers(&mut journal, &headers);
        assert_eq!(journal.ahead, Some(SignedDuration::ZERO));
        headers.insert(
            http::header::DATE,
            at(Timestamp::now() + SignedDuration::from_hours(1)),
        );
        note_headers(&mut journal, &headers);
        let ahead = journal.ahead.unwrap().as_secs();
        assert!((3590..=3600).contains(&ahead), "{ahead}");
    }

    #[test]
    fn continue_tokens_survive_a_url() {
        assert_eq!(encode("a+b/c=&é"), "a%2Bb%2Fc%3D%26%C3%A9");
    }
}
