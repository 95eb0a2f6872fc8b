//! A serving certificate read from a folder.
#![allow(clippy::expect_used)]

#[path = "support/mod.rs"]
mod support;
#[path = "support/tls.rs"]
mod tls;

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use ichor_webhook::metrics::Metrics;
use ichor_webhook::tls::authority::Authority;
use ichor_webhook::tls::{Certificates, Keeper};
use ichor_webhook::{TlsSource, WebhookConfig};
use jiff::{SignedDuration, Timestamp};
use serde_json::json;
use support::FakeApi;
use tls::*;

const HOUR: Duration = Duration::from_hours(1);

fn authority() -> Authority {
    Authority::generate(Timestamp::now(), HOUR * 24).expect("generated")
}

fn write(folder: &Path, pair: &(String, String)) {
    fs::write(folder.join("tls.crt"), &pair.0).expect("written");
    fs::write(folder.join("tls.key"), &pair.1).expect("written");
}

fn keeper(api: &FakeApi, folder: &Path) -> (Keeper, Arc<Certificates>) {
    let certificates = Arc::new(Certificates::new(Metrics::default()));
    let config = WebhookConfig {
        tls: TlsSource::Folder(folder.to_owned()),
        ..config()
    };
    (
        Keeper::new(&config, api.client(), certificates.clone()),
        certificates,
    )
}

fn leaf(certificates: &Certificates) -> Vec<u8> {
    certificates.current().expect("served").leaf().to_vec()
}

#[tokio::test]
async fn new_content_is_swapped_in_however_it_came_there() {
    let (api, root) = (api(), tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let pair = || {
        authority
            .leaf(NAME, Timestamp::now(), HOUR)
            .expect("a leaf")
    };
    // As a kubelet lays out a Secret: files are links into a folder that is swapped.
    for (version, pair) in [("v1", pair()), ("v2", pair())] {
        fs::create_dir(root.path().join(version)).expect("made");
        write(&root.path().join(version), &pair);
    }
    symlink("v1", root.path().join("..data")).expect("linked");
    for file in ["tls.crt", "tls.key"] {
        symlink(format!("..data/{file}"), root.path().join(file)).expect("linked");
    }
    let (mut keeper, certificates) = keeper(&api, root.path());
    keeper.pass().await.expect("passes");
    let first = leaf(&certificates);
    keeper.pass().await.expect("passes");
    assert_eq!(leaf(&certificates), first);
    symlink("v2", root.path().join("..next")).expect("linked");
    fs::rename(root.path().join("..next"), root.path().join("..data")).expect("swapped");
    keeper.pass().await.expect("passes");
    assert_ne!(leaf(&certificates), first);
    assert!(
        api.calls().iter().all(|c| c.method == http::Method::GET),
        "no ca.crt, nothing published"
    );
}

#[tokio::test]
async fn what_cannot_be_served_is_not_swapped_in() {
    let (api, root) = (api(), tempfile::tempdir().expect("a folder"));
    let authority = authority();
    let good = authority
        .leaf(NAME, Timestamp::now(), HOUR)
        .expect("a leaf");
    let other = authority
        .leaf(NAME, Timestamp::now(), HOUR)
        .expect("a leaf");
    let past = Timestamp::now() - SignedDuration::from_hours(48);
    let old = Authority::generate(past, HOUR * 40).expect("generated");
    let (mut keeper, certificates) = keeper(&api, root.path());
    let error = keeper.pass().await.expect_err("empty").to_string();
    assert!(
        error.starts_with("failed to read ") && error.contains("tls.crt"),
        "{error}"
    );
    write(root.path(), &good);
    keeper.pass().await.expect("passes");
    let served = leaf(&certificates);
    for (name, pair, why) in [
        (
            "half written",
            (good.0.clone(), other.1.clone()),
            "certificate and key do not belong together",
        ),
        (
            "another name",
            authority
                .leaf("other.ichor-system.svc", Timestamp::now(), HOUR)
                .expect("a leaf"),
            "it is not made out for ichor-webhook.ichor-system.svc but for other.ichor-system.svc",
        ),
        (
            "expired",
            old.leaf(NAME, past, HOUR).expect("a leaf"),
            "it is valid from ",
        ),
        ("garbage", ("x".into(), "y".into()), "no PEM"),
        (
            "no certificate",
            (String::new(), good.1.clone()),
            "there is no certificate in it",
        ),
    ] {
        write(root.path(), &pair);
        let error = keeper.pass().await.expect_err(name).to_string();
        assert!(
            error.contains("the certificate in ") && error.contains(why),
            "{name}: {error}"
        );
        assert_eq!(leaf(&certificates), served, "{name}");
    }
    write(root.path(), &other);
    keeper.pass().await.expect("recovers");
    assert_ne!(leaf(&certificates), served);
}

#[tokio::test]
async fn a_ca_file_is_published_unless_cert_manager_does_that() {
    let (api, root) = (api(), tempfile::tempdir().expect("a folder"));
    let authority = authority();
    write(
        root.path(),
        &authority
            .leaf(NAME, Timestamp::now(), HOUR)
            .expect("a leaf"),
    );
    fs::write(root.path().join("ca.crt"), authority.certificate()).expect("written");
    api.change(CONFIGURATION, |c| {
        c["metadata"]["annotations"] = json!({"cert-manager.io/inject-ca-from": "x/y"});
    });
    let (mut keeper, certificates) = keeper(&api, root.path());
    keeper.pass().await.expect("passes");
    assert_eq!(bundles(&api), [None, None, None]);
    api.change(CONFIGURATION, |c| c["metadata"]["annotations"] = json!({}));
    keeper.pass().await.expect("passes");
    assert_eq!(published(&api), authority.certificate().as_bytes());
    verifies(&api, &certificates, Timestamp::now()).expect("verifies");
}
