//! The ways round a fresh count do not compile (architecture, "What the types enforce").
//!
//! Each program in `compile_fail/` has a twin of the same name in `compile_pass/` that
//! does the permitted thing in the same place. The twins are modules of this very test:
//! that it builds is the proof that the programs fail for the reason that they are named
//! after, and not for a missing import. The texts in `.stderr` are those of the pinned
//! toolchain.

#![allow(clippy::unwrap_used)] // clippy.toml lets tests unwrap, but not the functions they call

use std::collections::BTreeSet;
use std::path::Path;

macro_rules! twins {
    ($($name:ident),+ $(,)?) => {
        $(
            #[allow(dead_code, clippy::module_inception, clippy::ptr_arg)]
            #[path = "compile_pass"]
            mod $name {
                mod $name;
            }
        )+
        const TWINS: &[&str] = &[$(stringify!($name)),+];
    };
}

twins! {
    call_a_cached_list_fresh,
    count_a_cached_list,
    declared_count_from_a_list,
    default_count,
    direct_reader_from_a_store,
    forge_the_count,
    keep_a_copy_of_the_count,
    quorum_from_a_number,
    raise_the_count,
    write_through_the_direct_reader,
}

/// `Is<T>` has one more way to be read where `T` is what a copy or a stored count would
/// need; then the call below is ambiguous and this file does not compile. (As a program
/// of its own, its text would list whatever types happen to implement the trait.)
trait Is<Way> {
    fn no_copy_and_no_stored_value() {}
}
impl<T> Is<()> for T {}
impl<T: Clone> Is<u8> for T {}
impl<T: Default> Is<u16> for T {}
impl<T: serde::de::DeserializeOwned> Is<u32> for T {}
impl<T: serde::Serialize> Is<u64> for T {}

#[test]
fn a_count_is_neither_copied_nor_stored_nor_read_back() {
    <ichor_rules::ApprovedControlPlanes as Is<_>>::no_copy_and_no_stored_value();
    <ichor_rules::reader::FreshMachines as Is<_>>::no_copy_and_no_stored_value();
}

fn programs(folder: &str) -> BTreeSet<String> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests")
        .join(folder);
    std::fs::read_dir(folder)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned())
        .collect()
}

#[test]
fn every_program_that_must_not_compile_has_a_twin_that_does() {
    let twins: BTreeSet<String> = TWINS.iter().map(ToString::to_string).collect();
    assert_eq!(programs("compile_fail"), twins);
    assert_eq!(programs("compile_pass"), twins);
}

#[test]
fn no_count_is_made_copied_or_stored_but_by_a_direct_read() {
    trybuild::TestCases::new().compile_fail("tests/compile_fail/*.rs");
}
