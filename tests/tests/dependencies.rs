//! The bans and licences of `deny.toml`, over `cargo metadata`, for machines without
//! cargo-deny.

#![allow(clippy::expect_used, reason = "a test that cannot go on fails there")]

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use serde_json::Value;

/// Crates that may not come in, by any way.
const BANNED: &[&str] = &[
    "aws-lc-rs",
    "aws-lc-sys",
    "openssl-sys",
    "native-tls",
    "serde_yaml",
];

/// Who may depend on what can do harm.
const WRAPPERS: &[(&str, &[&str])] = &[
    ("ichor-talos", &["ichor-agent", "ichor-tests"]),
    ("ichor-lock", &["ichor-agent", "ichor-talos", "ichor-tests"]),
];

fn metadata() -> Value {
    let output = Command::new(env!("CARGO"))
        .args([
            "metadata",
            "--format-version",
            "1",
            "--locked",
            "--all-features",
        ])
        .current_dir(ichor_tests::assets::workspace_root())
        .output()
        .expect("cargo metadata runs");
    assert!(
        output.status.success(),
        "{}",
        String::from_utf8_lossy(&output.stderr)
    );
    serde_json::from_slice(&output.stdout).expect("cargo metadata prints JSON")
}

/// Crates of the resolved graph: those of other platforms and of features that nobody
/// turns on are in the lock file only.
fn resolved(metadata: &Value) -> BTreeMap<String, &Value> {
    let nodes: BTreeSet<&str> = metadata["resolve"]["nodes"]
        .as_array()
        .expect("nodes")
        .iter()
        .filter_map(|n| n["id"].as_str())
        .collect();
    metadata["packages"]
        .as_array()
        .expect("packages")
        .iter()
        .filter(|p| p["id"].as_str().is_some_and(|id| nodes.contains(id)))
        .map(|p| (p["id"].as_str().unwrap_or_default().to_owned(), p))
        .collect()
}

fn allowed_licences() -> BTreeSet<String> {
    let deny = std::fs::read_to_string(ichor_tests::assets::workspace_root().join("deny.toml"))
        .expect("deny.toml");
    let list = deny
        .split("allow = [")
        .nth(1)
        .and_then(|rest| rest.split(']').next())
        .expect("a list of licences");
    list.split('"')
        .skip(1)
        .step_by(2)
        .map(str::to_owned)
        .collect()
}

/// Whether an SPDX expression can be met by `allowed`: any side of an OR, every side of
/// an AND.
fn met(expression: &str, allowed: &BTreeSet<String>) -> bool {
    let flat = expression.replace(['(', ')'], " ").replace('/', " OR ");
    flat.split(" AND ").all(|all| {
        all.split(" OR ").any(|any| {
            allowed.contains(
                any.split_whitespace()
                    .collect::<Vec<_>>()
                    .join(" ")
                    .as_str(),
            )
        })
    })
}

#[test]
fn no_banned_crate_is_in_the_tree() {
    let metadata = metadata();
    let found: Vec<&str> = resolved(&metadata)
        .values()
        .filter_map(|p| p["name"].as_str())
        .filter(|name| BANNED.contains(name))
        .collect();
    assert!(found.is_empty(), "banned crates are in the tree: {found:?}");
}

#[test]
fn every_licence_is_one_that_deny_toml_allows() {
    let metadata = metadata();
    let allowed = allowed_licences();
    assert!(
        allowed.contains("MIT"),
        "deny.toml was not read: {allowed:?}"
    );
    let bad: Vec<String> = resolved(&metadata)
        .values()
        .filter(|p| !met(p["license"].as_str().unwrap_or("none"), &allowed))
        .map(|p| format!("{} ({})", p["name"], p["license"]))
        .collect();
    assert!(bad.is_empty(), "licences that are not allowed: {bad:?}");
}

#[test]
fn only_the_agent_and_the_tests_reach_what_can_do_harm() {
    let metadata = metadata();
    for (guarded, wrappers) in WRAPPERS {
        let users: Vec<&str> = metadata["packages"]
            .as_array()
            .expect("packages")
            .iter()
            .filter(|p| {
                p["dependencies"]
                    .as_array()
                    .is_some_and(|d| d.iter().any(|d| d["name"] == *guarded))
            })
            .filter_map(|p| p["name"].as_str())
            .collect();
        assert!(
            !users.is_empty(),
            "nobody uses {guarded}: is the name right?"
        );
        for user in users {
            assert!(wrappers.contains(&user), "{user} depends on {guarded}");
        }
    }
}

#[test]
fn arrows_go_one_way() {
    let metadata = metadata();
    let uses = |who: &str, whom: &str| {
        metadata["packages"].as_array().is_some_and(|all| {
            all.iter().filter(|p| p["name"] == who).any(|p| {
                p["dependencies"]
                    .as_array()
                    .is_some_and(|d| d.iter().any(|d| d["name"] == whom))
            })
        })
    };
    for (who, whom) in [
        ("ichor-api", "ichor-rules"),
        ("ichor-rules", "ichor-lock"),
        ("ichor-lock", "kube"),
        ("ichor-lock", "ichor-talos"),
        ("ichor-webhook", "ichor-lock"),
        ("ichor-webhook", "ichor-talos"),
        ("kubectl-ichor", "ichor-agent"),
        ("kubectl-ichor", "ichor-talos"),
        ("ichor-agent", "kubectl-ichor"),
    ] {
        assert!(!uses(who, whom), "{who} depends on {whom}");
    }
    assert!(uses("ichor-agent", "ichor-rules"));
}

#[test]
fn an_expression_is_met_by_one_side_of_or_and_both_of_and() {
    let allowed = BTreeSet::from(["MIT".to_owned()]);
    assert!(met("MIT OR Apache-2.0", &allowed));
    assert!(met("Apache-2.0/MIT", &allowed));
    assert!(!met("(Apache-2.0 OR MIT) AND ISC", &allowed));
    assert!(!met("GPL-3.0", &allowed));
}
