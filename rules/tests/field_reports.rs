//! `docs/field-reports.md` tells the truth: every report has its row, and every test
//! that it names exists.

#![allow(clippy::unwrap_used)] // clippy.toml lets tests unwrap, but not the functions they call

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Section letter and how many reports it has.
const REPORTS: [(&str, usize); 5] = [("D", 23), ("Q", 22), ("C", 13), ("F", 5), ("W", 16)];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .parent()
        .unwrap()
        .to_owned()
}

fn page() -> String {
    std::fs::read_to_string(root().join("docs/field-reports.md")).unwrap()
}

/// Rows by ID: the cells after it.
fn rows(page: &str) -> BTreeMap<String, Vec<String>> {
    page.lines()
        .filter(|line| line.starts_with("| "))
        .filter_map(|line| {
            let mut cells = line
                .trim_matches('|')
                .split(" | ")
                .map(|c| c.trim().to_owned());
            let id = cells.next()?;
            let is_report = id.len() > 1
                && REPORTS.iter().any(|(letter, _)| id.starts_with(letter))
                && id[1..].chars().all(|c| c.is_ascii_digit());
            is_report.then(|| (id, cells.collect()))
        })
        .collect()
}

/// Tests that a cell names, and those that it says have still to be written.
fn named(cell: &str) -> (Vec<String>, Vec<String>) {
    let (mut there, mut open) = (Vec::new(), Vec::new());
    let parts: Vec<&str> = cell.split('`').collect();
    for pair in parts.chunks_exact(2) {
        let list = if pair[0].trim_end().ends_with("open:") {
            &mut open
        } else {
            &mut there
        };
        list.push(pair[1].to_owned());
    }
    (there, open)
}

/// Every function in the workspace that stands right under a test attribute, or in a
/// `proptest!` block.
fn tests_of_the_workspace() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders: Vec<PathBuf> = [
        "api", "rules", "lock", "talos", "webhook", "agent", "plugin", "tests",
    ]
    .iter()
    .map(|folder| root().join(folder))
    .collect();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().flatten() {
            let path = entry.path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "rs") {
                tests_in(
                    &std::fs::read_to_string(path).unwrap_or_default(),
                    &mut found,
                );
            }
        }
    }
    found
}

fn tests_in(text: &str, found: &mut BTreeSet<String>) {
    let mut under_attribute = false;
    for line in text.lines().map(str::trim_start) {
        if line.starts_with("#[test]")
            || line.starts_with("#[tokio::test")
            || line.starts_with("#[rstest")
        {
            under_attribute = true;
        } else if !line.starts_with('#') && under_attribute {
            let name = line.split("fn ").nth(1).unwrap_or_default();
            found.insert(name.split(['(', '<']).next().unwrap_or_default().to_owned());
            under_attribute = false;
        }
    }
}

#[test]
fn every_report_has_a_row_with_an_answer() {
    let rows = rows(&page());
    for (letter, count) in REPORTS {
        for i in 1..=count {
            let id = format!("{letter}{i}");
            let cells = rows.get(&id).unwrap_or_else(|| panic!("{id} has no row"));
            assert!(cells.len() >= 2, "{id} lacks a cell: {cells:?}");
            assert!(
                cells[0].len() > 20 && cells[1].len() > 20
                    || cells[1].starts_with("The same")
                    || cells[1] == "It expires",
                "{id} says too little: {cells:?}"
            );
        }
    }
    assert_eq!(rows.len(), REPORTS.iter().map(|r| r.1).sum::<usize>());
}

#[test]
fn every_row_names_a_test_or_says_why_there_is_none() {
    for (id, cells) in rows(&page()) {
        let (there, open) = named(cells.get(2).map_or("", String::as_str));
        let answer = &cells[1];
        let says_why = answer.starts_with("It cannot arise: ") || answer.starts_with("Belongs to ");
        assert!(
            says_why || !there.is_empty() || !open.is_empty(),
            "{id}: {answer}"
        );
    }
}

#[test]
fn every_test_that_a_row_names_exists() {
    let tests = tests_of_the_workspace();
    assert!(
        tests.contains("every_test_that_a_row_names_exists"),
        "tests are not found"
    );
    for (id, cells) in rows(&page()) {
        let (there, open) = named(cells.get(2).map_or("", String::as_str));
        for name in there {
            assert!(
                tests.contains(&name) || (name.contains('/') && root().join(&name).is_file()),
                "{id} names {name}, which is no test and no file"
            );
        }
        for name in open {
            assert!(
                !tests.contains(&name),
                "{id} calls {name} open, but it is there"
            );
        }
    }
}
