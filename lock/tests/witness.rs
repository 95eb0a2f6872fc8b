//! The ways round the witness do not build (spec section 4, `architecture.md`).
//!
//! Each case has a twin that builds and differs from it in one word, so that no case fails to
//! build for another reason than the one meant.
#![allow(clippy::unwrap_used, clippy::expect_used)]

use std::path::{Path, PathBuf};

fn cases() -> Vec<PathBuf> {
    let mut cases: Vec<_> = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/compile_fail")
        .read_dir()
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|end| end == "rs"))
        .filter(|path| path.with_extension("twin.rs").exists())
        .collect();
    cases.sort();
    assert!(cases.len() >= 13, "{}", cases.len());
    cases
}

/// A source as words and single signs.
fn words(source: &str) -> Vec<&str> {
    source
        .split_inclusive(|sign: char| !sign.is_alphanumeric() && sign != '_')
        .flat_map(|piece| {
            let end = piece
                .trim_end_matches(|sign: char| !sign.is_alphanumeric() && sign != '_')
                .len();
            [&piece[..end], &piece[end..]]
        })
        .filter(|word| !word.trim().is_empty())
        .collect()
}

#[test]
fn no_way_round_the_lock_compiles_and_its_twin_does() {
    let build = trybuild::TestCases::new();
    for case in cases() {
        let twin = case.with_extension("twin.rs");
        let (bad, good) = (
            std::fs::read_to_string(&case).unwrap(),
            std::fs::read_to_string(&twin).unwrap(),
        );
        let (bad, good) = (words(&bad), words(&good));
        assert_eq!(bad.len(), good.len(), "{}", case.display());
        let differing = bad
            .iter()
            .zip(&good)
            .filter(|(bad, good)| bad != good)
            .count();
        assert_eq!(
            differing,
            1,
            "{} and its twin differ in one word",
            case.display()
        );
        build.pass(twin);
        build.compile_fail(case);
    }
}
