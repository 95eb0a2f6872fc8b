//! Certificates: shared, published, rotated; the clock is the test's.
#![allow(clippy::expect_used)]

#[path = "support/mod.rs"]
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use ichor_webhook::server::serve_tls;
use ichor_webhook::tls::authority::{Authority, Lifetimes};
use ichor_webhook::{Webhook, router};
use jiff::{SignedDuration, Timestamp};
use rustls::pki_types::ServerName;
use serde_json::{Value, json};
use support::{EVE, FakeApi, Fault, control_plane, review};
use tls::*;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_util::sync::CancellationToken;

const DAY: SignedDuration = SignedDuration::from_hours(24);
const LONG: Duration = Duration::from_mins(1);

fn start() -> Timestamp {
    "2026-01-01T00:00:00Z".parse().expect("a time")
}

async fn overlap() {
    tokio::time::advance(Duration::from_mins(11)).await;
}

#[tokio::test(start_paused = true)]
async fn replicas_that_start_at_once_share_one_authority() {
    let api = api();
    let (mut one, mut two) = (Replica::new(&api, start()), Replica::new(&api, start()));
    let (first, second) = tokio::join!(one.pass(), two.pass());
    first.expect("one");
    second.expect("two");
    assert_eq!(api.under(SECRET).len(), 1);
    assert_eq!(certificates_in(&published(&api)), 1);
    for replica in [&one, &two] {
        verifies(&api, &replica.certificates, start()).expect("verifies");
    }
    let leaf = |r: &Replica| r.certificates.current().expect("served").leaf().to_vec();
    assert_ne!(leaf(&one), leaf(&two), "each has a key of its own");
    assert_eq!(
        api.get(SECRET).expect("secret")["metadata"]["labels"]["app.kubernetes.io/managed-by"],
        "ichor-agent"
    );
}

#[tokio::test(start_paused = true)]
async fn only_entries_that_lead_to_our_service_get_the_bundle() {
    let api = api();
    Replica::new(&api, start()).pass().await.expect("passes");
    let bundles = bundles(&api);
    assert!(bundles[0].is_some() && bundles[0] == bundles[2]);
    assert_eq!(bundles[1], None, "the stranger's entry");
}

#[tokio::test(start_paused = true)]
async fn a_configuration_that_was_replaced_gets_its_bundle_back() {
    let api = api();
    let mut replica = Replica::new(&api, start());
    replica.pass().await.expect("passes");
    let before = published(&api);
    api.forget_calls();
    replica.pass().await.expect("passes");
    assert!(
        api.calls().iter().all(|c| c.method == http::Method::GET),
        "nothing to write"
    );
    let mut reordered = configuration();
    reordered["webhooks"]
        .as_array_mut()
        .expect("list")
        .reverse();
    api.put(CONFIGURATION, reordered);
    assert_eq!(bundles(&api), [None, None, None]);
    replica.pass().await.expect("passes");
    assert_eq!(bundles(&api), [Some(before.clone()), None, Some(before)]);
}

#[tokio::test(start_paused = true)]
async fn a_leaf_is_renewed_at_half_its_life_and_verifies_all_the_time() {
    let api = api();
    let mut replica = Replica::new(&api, start());
    replica.pass().await.expect("passes");
    let expiry = |r: &Replica| r.certificates.current().expect("served").not_after;
    let first = expiry(&replica);
    assert_eq!(first, start() + DAY * 14);
    replica.goes_to(start() + DAY * 3);
    replica.pass().await.expect("passes");
    assert_eq!(expiry(&replica), first, "not due yet");
    replica.goes_to(start() + DAY * 9);
    replica.pass().await.expect("passes");
    assert_eq!(expiry(&replica), start() + DAY * 23);
    verifies(&api, &replica.certificates, replica.now()).expect("verifies");
}

#[tokio::test(start_paused = true)]
async fn a_certificate_is_rotated_early_and_both_authorities_are_published() {
    let api = api();
    let mut replicas = [Replica::new(&api, start()), Replica::new(&api, start())];
    for replica in &mut replicas {
        replica.pass().await.expect("passes");
    }
    let first = published(&api);
    let all_verify = |api: &FakeApi, replicas: &[Replica; 2], step: &str| {
        for replica in replicas {
            verifies(api, &replica.certificates, replica.now()).expect(step);
        }
    };
    // Two thirds of its life are over.
    let late = start() + DAY * 250;
    for replica in &replicas {
        replica.goes_to(late);
    }
    replicas[0].pass().await.expect("passes");
    assert_eq!(
        certificates_in(&published(&api)),
        2,
        "the next one is published beside it"
    );
    // The other replica still serves what expired long ago, until its own look.
    replicas[1].pass().await.expect("passes");
    assert_eq!(certificates_in(&published(&api)), 2, "and no third is made");
    all_verify(&api, &replicas, "published");
    let signed_by_old = api.get(SECRET).expect("secret")["data"]["ca.crt"].clone();

    replicas[0].pass().await.expect("passes");
    assert_eq!(
        api.get(SECRET).expect("secret")["data"]["ca.crt"],
        signed_by_old,
        "not before the overlap is over"
    );
    overlap().await;
    replicas[0].pass().await.expect("passes");
    assert_ne!(
        api.get(SECRET).expect("secret")["data"]["ca.crt"],
        signed_by_old,
        "promoted"
    );
    all_verify(
        &api,
        &replicas,
        "promoted, the other replica not swapped yet",
    );
    replicas[1].pass().await.expect("passes");
    replicas[0].pass().await.expect("passes");
    all_verify(&api, &replicas, "swapped");
    assert_eq!(
        certificates_in(&published(&api)),
        2,
        "the old one stays while it is valid"
    );
    assert!(published(&api).len() > first.len());

    // Once the old one has expired it goes.
    for replica in &mut replicas {
        replica.goes_to(start() + DAY * 366);
        replica.pass().await.expect("passes");
    }
    assert_eq!(certificates_in(&published(&api)), 1);
    all_verify(&api, &replicas, "expired");
}

#[tokio::test(start_paused = true)]
async fn no_successor_takes_over_while_it_cannot_be_published() {
    let api = api();
    let mut replica = Replica::new(&api, start());
    replica.pass().await.expect("passes");
    let old = api.get(SECRET).expect("secret")["data"]["ca.crt"].clone();
    replica.goes_to(start() + DAY * 250);
    api.fault("validatingwebhookconfigurations", Fault::Status(403));
    for _ in 0..3 {
        let error = replica.pass().await.expect_err("not published");
        assert!(
            error.contains("ValidatingWebhookConfiguration ichor") && error.contains("403"),
            "{error}"
        );
        overlap().await;
    }
    assert_eq!(api.get(SECRET).expect("secret")["data"]["ca.crt"], old);
    api.heal();
    verifies(&api, &replica.certificates, replica.now()).expect("the old bundle still verifies");
    replica.pass().await.expect("published");
    // While it could not be seen to stand, nobody can say that it did: the overlap counts anew.
    api.fault("validatingwebhookconfigurations", Fault::Status(403));
    overlap().await;
    replica.pass().await.expect_err("not to be seen");
    api.heal();
    replica.pass().await.expect("published again");
    assert_eq!(api.get(SECRET).expect("secret")["data"]["ca.crt"], old);
    overlap().await;
    replica.pass().await.expect("promoted");
    assert_ne!(api.get(SECRET).expect("secret")["data"]["ca.crt"], old);
}

#[tokio::test(start_paused = true)]
async fn without_a_configuration_it_serves_all_the_same_and_says_what_is_missing() {
    let api = api();
    api.remove(CONFIGURATION);
    let mut replica = Replica::new(&api, start());
    let error = replica.pass().await.expect_err("missing");
    assert!(
        error.starts_with("failed to read ValidatingWebhookConfiguration ichor"),
        "{error}"
    );
    assert!(replica.certificates.current().is_some());
}

fn data(pairs: &[(&str, &str)]) -> Value {
    use base64::Engine as _;
    let encode = |text: &str| json!(base64::engine::general_purpose::STANDARD.encode(text));
    Value::Object(
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), encode(v)))
            .collect(),
    )
}

fn secret(ours: bool, data: Value) -> Value {
    let label = if ours { "ichor-agent" } else { "somebody" };
    json!({"kind": "Secret", "apiVersion": "v1", "metadata": {"name": "ichor-webhook-tls", "namespace": "ichor-system",
        "labels": {"app.kubernetes.io/managed-by": label}}, "data": data})
}

#[tokio::test(start_paused = true)]
async fn a_garbage_secret_is_made_anew_where_it_is_ours_and_left_alone_where_it_is_not() {
    let authority = Authority::generate(start(), Duration::from_hours(24)).expect("generated");
    let stranger = Authority::generate(start(), Duration::from_hours(24)).expect("generated");
    let key_of = |a: &Authority| {
        let authorities = ichor_webhook::tls::authority::Authorities {
            active: a.clone(),
            next: None,
            previous: None,
        };
        String::from_utf8(authorities.write()["ca.key"].0.clone()).expect("PEM")
    };
    let leaf = authority
        .leaf(NAME, start(), Duration::from_hours(1))
        .expect("a leaf");
    for (name, garbage, why) in [
        ("empty", data(&[]), "its certificate is no PEM"),
        (
            "no PEM",
            data(&[("ca.crt", "x"), ("ca.key", "y")]),
            "its certificate is no PEM",
        ),
        (
            "no key",
            data(&[("ca.crt", authority.certificate())]),
            "its key",
        ),
        (
            "another's key",
            data(&[
                ("ca.crt", authority.certificate()),
                ("ca.key", &key_of(&stranger)),
            ]),
            "do not belong together",
        ),
        (
            "a leaf",
            data(&[("ca.crt", &leaf.0), ("ca.key", &leaf.1)]),
            "may not sign",
        ),
    ] {
        let ours = api();
        ours.put(SECRET, secret(true, garbage.clone()));
        let mut replica = Replica::new(&ours, start());
        replica.pass().await.expect(name);
        verifies(&ours, &replica.certificates, start()).expect(name);

        let theirs = api();
        theirs.put(SECRET, secret(false, garbage));
        let before = theirs.get(SECRET);
        let mut replica = Replica::new(&theirs, start());
        let error = replica.pass().await.expect_err(name);
        for part in [
            "Secret ichor-system/ichor-webhook-tls is not Ichor's",
            why,
            "Delete or rename it",
        ] {
            assert!(error.contains(part), "{name}: {part:?} is not in {error:?}");
        }
        assert_eq!(theirs.get(SECRET), before, "{name}");
        assert!(replica.certificates.current().is_none(), "{name}");
    }
}

#[tokio::test(start_paused = true)]
async fn an_authority_that_somebody_else_keeps_is_used_but_never_written() {
    let api = api();
    let authority = Authority::generate(start(), Duration::from_hours(24 * 30)).expect("generated");
    let authorities = ichor_webhook::tls::authority::Authorities {
        active: authority,
        next: None,
        previous: None,
    };
    let text = |key: &str| String::from_utf8(authorities.write()[key].0.clone()).expect("PEM");
    api.put(
        SECRET,
        secret(
            false,
            data(&[("ca.crt", &text("ca.crt")), ("ca.key", &text("ca.key"))]),
        ),
    );
    let before = api.get(SECRET);
    let mut replica = Replica::new(&api, start());
    replica.pass().await.expect("used");
    verifies(&api, &replica.certificates, start()).expect("verifies");
    replica.goes_to(start() + DAY * 25);
    let error = replica.pass().await.expect_err("it ages");
    assert!(error.contains("it has to be renewed"), "{error}");
    assert_eq!(api.get(SECRET), before);
}

#[tokio::test(start_paused = true)]
async fn an_expired_authority_is_made_anew_but_a_clock_that_is_behind_changes_nothing() {
    let api = api();
    let mut replica = Replica::new(&api, start());
    replica.pass().await.expect("passes");
    let before = api.get(SECRET);
    let mut behind = Replica::new(&api, start() - DAY * 400);
    let error = behind.pass().await.expect_err("its clock is behind");
    assert!(error.contains("the clock is behind"), "{error}");
    assert_eq!(api.get(SECRET), before);
    replica.goes_to(start() + DAY * 400);
    replica.pass().await.expect("made anew");
    assert_ne!(api.get(SECRET), before);
    verifies(&api, &replica.certificates, replica.now()).expect("verifies");
}

#[tokio::test(start_paused = true)]
async fn an_hour_of_clock_skew_between_replicas_matters_to_nobody() {
    let api = api();
    let hour = SignedDuration::from_hours(1);
    let (mut early, mut late) = (
        Replica::new(&api, start() - hour),
        Replica::new(&api, start() + hour),
    );
    late.pass().await.expect("late");
    early.pass().await.expect("early");
    for replica in [&early, &late] {
        for now in [start() - hour, start(), start() + hour] {
            verifies(&api, &replica.certificates, now).expect("verifies");
        }
    }
}

#[tokio::test]
async fn readiness_fails_without_a_certificate_and_once_the_served_one_has_expired() {
    let api = api();
    api.fault("/secrets", Fault::Status(403));
    let webhook = Webhook::bind(&config(), api.client()).expect("binds");
    let ready = webhook.readiness();
    assert_eq!(
        ready.check(),
        Err("the webhook has no certificate yet".into())
    );
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(webhook.serve(shutdown.clone()));
    wait("the cause is told", || {
        ready
            .check()
            .is_err_and(|why| why.contains("Secret ichor-system/ichor-webhook-tls"))
    })
    .await;
    api.heal();
    wait("ready", || ready.check().is_ok()).await;
    let in_days = |days: i32| Timestamp::now() + DAY * days;
    assert_eq!(ready.check_at(in_days(13)), Ok(()));
    let expired = ready.check_at(in_days(15)).expect_err("expired");
    assert!(
        expired.starts_with("the webhook's certificate expired at "),
        "{expired}"
    );
    // Trouble with renewing is no reason while what is served is valid.
    shutdown.cancel();
    tokio::time::timeout(LONG, serving)
        .await
        .expect("ends")
        .expect("no panic")
        .expect("served");
}

async fn wait(what: &str, is_so: impl Fn() -> bool) {
    let until = async {
        while !is_so() {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LONG, until)
        .await
        .unwrap_or_else(|_| panic!("{what}: not within a minute"));
}

/// One review over TLS, verified against `bundle`.
async fn call(address: std::net::SocketAddr, bundle: &[u8]) -> std::io::Result<Value> {
    let connector = tokio_rustls::TlsConnector::from(Arc::new(client(bundle)));
    let name = ServerName::try_from(NAME).expect("a name");
    let mut stream = connector
        .connect(name, TcpStream::connect(address).await?)
        .await?;
    let body = review(
        "DELETE",
        "talosmachines",
        EVE,
        Some(&control_plane("cp-1", 1)),
        None,
    )
    .to_string();
    let head = format!(
        "POST /validate-ichor-maesh-dev-v1alpha1-talosmachine HTTP/1.1\r\nHost: {NAME}\r\nContent-Type: application/json\r\nConnection: close\r\nContent-Length: {}\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(body.as_bytes()).await?;
    let mut answer = Vec::new();
    stream.read_to_end(&mut answer).await?;
    let text = String::from_utf8_lossy(&answer);
    let body = text.split_once("\r\n\r\n").map_or("", |(_, body)| body);
    serde_json::from_str(body).map_err(std::io::Error::other)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_silent_connection_blocks_nobody_and_shutdown_ends_the_server() {
    let api = api();
    let webhook = Webhook::bind(&config(), api.client()).expect("binds");
    let (address, ready) = (webhook.address(), webhook.readiness());
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(webhook.serve(shutdown.clone()));
    wait("ready", || ready.check().is_ok()).await;
    let silent = TcpStream::connect(address).await.expect("connects");
    let answer = tokio::time::timeout(LONG, call(address, &published(&api)))
        .await
        .expect("answered beside the silent one")
        .expect("answered");
    assert_eq!(answer["response"]["allowed"], false);
    let stranger =
        Authority::generate(Timestamp::now(), Duration::from_hours(24)).expect("generated");
    call(address, stranger.certificate().as_bytes())
        .await
        .expect_err("not verified by another authority");
    shutdown.cancel();
    tokio::time::timeout(LONG, serving)
        .await
        .expect("ends")
        .expect("no panic")
        .expect("served");
    drop(silent);
}

/// Clients read the published bundle, connect, verify and ask, without a pause, while
/// the authority is rotated several times. Between two looks of the keeper every client
/// ends at least one round that began after the first look, as API servers see a new
/// bundle within the overlap.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn rotation_under_load_fails_no_call() {
    const CLIENTS: usize = 4;
    let api = api();
    // Being backdated by a day, one for an hour is old from the start: every other look
    // of the keeper makes a successor, and the one after puts it in charge.
    let lifetimes = Lifetimes {
        authority: Duration::from_hours(1),
        overlap: Duration::from_millis(1),
        ..Lifetimes::default()
    };
    let mut replica = Replica::with(&api, Timestamp::now(), lifetimes);
    replica.pass().await.expect("passes");
    let listener = std::net::TcpListener::bind(("127.0.0.1", 0)).expect("binds");
    listener.set_nonblocking(true).expect("nonblocking");
    let address = listener.local_addr().expect("an address");
    let shutdown = CancellationToken::new();
    let serving = tokio::spawn(serve_tls(
        listener,
        replica.certificates.clone(),
        router(api.judge()),
        shutdown.clone(),
    ));

    let stop = Arc::new(AtomicBool::new(false));
    let rounds: Arc<Vec<AtomicU64>> = Arc::new((0..CLIENTS).map(|_| AtomicU64::new(0)).collect());
    let clients: Vec<_> = (0..CLIENTS)
        .map(|n| {
            let (api, stop, rounds) = (api.clone(), stop.clone(), rounds.clone());
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    call(address, &published(&api)).await?;
                    rounds[n].fetch_add(1, Ordering::SeqCst);
                }
                Ok::<_, std::io::Error>(())
            })
        })
        .collect();
    let alive = |clients: &[tokio::task::JoinHandle<_>]| {
        clients
            .iter()
            .all(|c: &tokio::task::JoinHandle<std::io::Result<()>>| !c.is_finished())
    };
    let mut seen = Vec::new();
    for rotation in 1..=6 {
        for _ in 0..2 {
            replica.pass().await.expect("passes");
            let before: Vec<u64> = rounds.iter().map(|r| r.load(Ordering::SeqCst)).collect();
            wait("every client goes on", || {
                !alive(&clients)
                    || rounds
                        .iter()
                        .zip(&before)
                        .all(|(r, b)| r.load(Ordering::SeqCst) >= b + 2)
            })
            .await;
        }
        seen.push(api.get(SECRET).expect("secret")["data"]["ca.crt"].clone());
        assert!(alive(&clients), "a client failed in rotation {rotation}");
    }
    stop.store(true, Ordering::SeqCst);
    for client in clients {
        client.await.expect("no panic").expect("no call failed");
    }
    seen.dedup();
    assert_eq!(
        seen.len(),
        6,
        "each rotation put another authority in charge"
    );
    shutdown.cancel();
    tokio::time::timeout(LONG, serving)
        .await
        .expect("ends")
        .expect("no panic")
        .expect("served");
}
