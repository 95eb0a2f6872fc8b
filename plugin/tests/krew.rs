//! The krew manifest, rendered as a release would, against krew's own rules (those of its
//! `validate-krew-manifest`).
#![allow(clippy::unwrap_used)] // tests: a panic is the failure

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::PathBuf;

use serde::Deserialize;

const TAG: &str = "v1.2.3";
const SHA: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Manifest {
    api_version: String,
    kind: String,
    metadata: Metadata,
    spec: Spec,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Metadata {
    name: String,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Spec {
    version: String,
    homepage: String,
    short_description: String,
    description: String,
    caveats: String,
    platforms: Vec<Platform>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Platform {
    selector: Selector,
    uri: String,
    sha256: String,
    bin: String,
    files: Vec<File>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
struct Selector {
    match_labels: Labels,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Labels {
    os: String,
    arch: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    from: String,
    to: String,
}

fn root() -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("..")
}

/// As krew-release-bot fills it: the indentation of the second line is that of the first.
fn render(template: &str) -> String {
    let mut rendered = String::new();
    for line in template.lines() {
        match line.trim_start().strip_prefix("{{addURIAndSha \"") {
            Some(rest) => {
                let (url, tail) = rest.split_once('"').unwrap();
                assert_eq!(tail, " .TagName }}", "{line}");
                let indent = &line[..line.len() - line.trim_start().len()];
                let url = url.replace("{{ .TagName }}", TAG);
                writeln!(rendered, "{indent}uri: {url}\n{indent}sha256: {SHA}").unwrap();
            }
            None => writeln!(rendered, "{}", line.replace("{{ .TagName }}", TAG)).unwrap(),
        }
    }
    assert!(
        !rendered.contains("{{"),
        "something is left unfilled:\n{rendered}"
    );
    rendered
}

fn manifest() -> Manifest {
    let template = std::fs::read_to_string(root().join("krew/ichor.yaml")).unwrap();
    serde_saphyr::from_str(&render(&template)).unwrap()
}

#[test]
fn the_head_is_what_krew_reads() {
    let manifest = manifest();
    assert_eq!(
        manifest.api_version,
        "krew.googlecontainertools.github.com/v1alpha2"
    );
    assert_eq!(manifest.kind, "Plugin");
    // The file is called after the plugin.
    assert_eq!(manifest.metadata.name, "ichor");
    let name = &manifest.metadata.name;
    assert!(name.chars().all(|c| c.is_ascii_lowercase() || c == '-'));
    assert_eq!(manifest.spec.version, TAG);
    assert!(manifest.spec.homepage.starts_with("https://"));
    let short = &manifest.spec.short_description;
    assert!(
        !short.is_empty() && short.len() <= 50 && !short.contains('\n') && !short.ends_with('.'),
        "{short}"
    );
    assert!(manifest.spec.description.contains("kubectl ichor"));
    assert!(manifest.spec.caveats.contains("completion --install"));
}

#[test]
fn every_platform_is_one_that_krew_knows_and_none_comes_twice() {
    const KNOWN: [(&str, &str); 11] = [
        ("linux", "386"),
        ("linux", "amd64"),
        ("linux", "arm"),
        ("linux", "arm64"),
        ("linux", "ppc64le"),
        ("darwin", "386"),
        ("darwin", "amd64"),
        ("darwin", "arm64"),
        ("windows", "386"),
        ("windows", "amd64"),
        ("windows", "arm64"),
    ];
    let mut seen = BTreeSet::new();
    for platform in manifest().spec.platforms {
        let labels = platform.selector.match_labels;
        let pair = (labels.os.as_str(), labels.arch.as_str());
        assert!(KNOWN.contains(&pair), "{pair:?}");
        assert!(
            seen.insert((labels.os.clone(), labels.arch.clone())),
            "{pair:?} comes twice"
        );
        assert!(
            platform.uri.contains(&format!("_{}_{}.", pair.0, pair.1)),
            "{}",
            platform.uri
        );
    }
    for wanted in ["linux", "darwin", "windows"] {
        assert!(seen.iter().any(|(os, _)| os == wanted), "{wanted}");
    }
}

#[test]
fn every_archive_can_be_fetched_checked_and_unpacked() {
    for platform in manifest().spec.platforms {
        assert!(
            platform.uri.starts_with("https://") && platform.uri.contains(TAG),
            "{}",
            platform.uri
        );
        assert!(
            [".tar.gz", ".zip"]
                .iter()
                .any(|kind| platform.uri.ends_with(kind)),
            "{}",
            platform.uri
        );
        assert!(
            platform.sha256.len() == 64
                && platform
                    .sha256
                    .bytes()
                    .all(|b| b.is_ascii_digit() || (b'a'..=b'f').contains(&b))
        );
        let windows = platform.selector.match_labels.os == "windows";
        assert_eq!(
            platform.bin.split('.').next_back() == Some("exe"),
            windows,
            "{}",
            platform.bin
        );
        assert!(!platform.files.is_empty());
        for file in &platform.files {
            assert_eq!(file.to, ".");
            assert!(!file.from.is_empty() && !file.from.contains(".."));
        }
        let from: Vec<&str> = platform.files.iter().map(|f| f.from.as_str()).collect();
        assert!(
            from.contains(&platform.bin.as_str()),
            "the program itself is extracted"
        );
        assert!(
            from.contains(&"LICENSE"),
            "krew refuses a plugin without its licence"
        );
    }
    assert!(root().join("LICENSE").is_file());
}

#[test]
fn the_program_is_called_as_the_manifest_says() {
    assert!(env!("CARGO_BIN_EXE_kubectl-ichor").contains("kubectl-ichor"));
}
