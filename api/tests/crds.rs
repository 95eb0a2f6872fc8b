//! The CustomResourceDefinitions in `deploy/crds` are the ones that the code defines.
//!
//! `UPDATE=1 cargo test -p ichor-api --test crds` writes them anew.

#![allow(clippy::expect_used)] // helpers of tests are no tests to clippy

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Once;

const HEADER: &str = "# Generated from the types in api/src. To change it: edit them, then run `UPDATE=1 cargo test -p ichor-api --test crds`.\n";

fn folder() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../deploy/crds")
}

fn rendered() -> Vec<(&'static str, String)> {
    ichor_api::crd::all()
        .into_iter()
        .map(|(file, crd)| {
            let yaml = serde_saphyr::to_string(&crd).expect("a definition is plain data");
            (file, format!("{HEADER}{yaml}"))
        })
        .collect()
}

/// Writes them where `UPDATE` is set: once, before any test reads.
fn update_if_asked() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("UPDATE").is_some() {
            for (file, yaml) in rendered() {
                std::fs::write(folder().join(file), yaml).expect("deploy/crds is writable");
            }
        }
    });
}

#[test]
fn the_shipped_definitions_are_those_of_the_code() {
    update_if_asked();
    for (file, expected) in rendered() {
        let shipped = std::fs::read_to_string(folder().join(file)).unwrap_or_default();
        assert!(
            shipped == expected,
            "deploy/crds/{file} is not what the types say: run `UPDATE=1 cargo test -p ichor-api --test crds` and look at the difference"
        );
    }
}

#[test]
fn the_yaml_reads_back_to_the_very_definition() {
    for ((file, crd), (_, yaml)) in ichor_api::crd::all().into_iter().zip(rendered()) {
        let read: serde_json::Value = serde_saphyr::from_str(&yaml).expect("YAML");
        let meant = serde_json::to_value(&crd).expect("JSON");
        assert_eq!(read, meant, "{file} does not survive being written as YAML");
    }
}

#[test]
fn no_definition_is_shipped_that_the_code_does_not_know_and_all_are_listed() {
    update_if_asked();
    let known: BTreeSet<String> = ichor_api::crd::all()
        .into_iter()
        .map(|(file, _)| file.to_owned())
        .collect();
    let shipped: BTreeSet<String> = std::fs::read_dir(folder())
        .expect("deploy/crds")
        .map(|entry| {
            entry
                .expect("entry")
                .file_name()
                .into_string()
                .expect("a plain name")
        })
        .filter(|name| name != "kustomization.yaml")
        .collect();
    assert_eq!(shipped, known);
    let list: serde_json::Value = serde_saphyr::from_str(
        &std::fs::read_to_string(folder().join("kustomization.yaml")).expect("kustomization.yaml"),
    )
    .expect("YAML");
    let listed: BTreeSet<String> = list["resources"]
        .as_array()
        .expect("resources")
        .iter()
        .map(|name| name.as_str().expect("a name").to_owned())
        .collect();
    assert_eq!(listed, known);
}
