//! Planted imports, and what is no import.

use super::*;

/// Rooms of sources that are given as module and text.
fn rooms(sources: &[(&str, &str)]) -> Rooms {
    let imports = |text: &str| {
        let mut imports = Imports { has_doors: true, ..Imports::default() };
        imports.visit_file(&syn::parse_file(text).unwrap());
        imports
    };
    let parts = |module: &str| -> Module {
        module.split("::").filter(|part| !part.is_empty()).map(str::to_owned).collect()
    };
    Rooms::of(sources.iter().map(|(module, text)| (parts(module), imports(text))).collect())
}

#[test]
fn a_planted_import_from_above_is_found() {
    let heap = "use crate::pool::common::counts::Counts;";
    let kept = rooms(&[("pool::heap", heap), ("pool::common::counts", "")]);
    assert_eq!(kept.disorders(), []);
    for planted in [
        "use crate::pool::shared::Shared;",
        "use super::shared::Shared;",
        "use super::{common::counts::Counts, shared::Shared};",
        "fn f() { crate::pool::shared::go() }",
        "fn f(s: &super::shared::Shared) {}",
        "mod inner { use super::super::shared::Shared; }",
        "fn f() { debug_assert!(1 > 0, \"{}\", crate::pool::shared::go()) }",
        "fn f() { matches!(s, crate::sync::Side::Small if crate::pool::shared::SLOW_PATH == e) }",
        "fn f() { call!(self, x: crate::pool::shared::Shared) }",
        "pub(in crate::pool) use crate::pool::shared::*; fn f(shared: &Shared) {}",
        "#[cfg(not(test))] impl crate::pool::shared::Trait for X {}",
        "#[cfg(any(test, unix))] const X: u8 = crate::pool::shared::X;",
    ] {
        let broken =
            rooms(&[("pool::heap", planted), ("pool::shared", ""), ("pool::common::counts", "")]);
        let upward = Disorder::Upward { user: "pool::heap".into(), used: "pool::shared".into() };
        assert_eq!(broken.disorders(), [upward], "{planted}");
    }
}

#[test]
fn an_import_through_a_door_is_one_of_the_file_behind_it() {
    let broken = rooms(&[
        ("", "pub mod inner { pub use crate::pool::Shared; } pub use error::Error;"),
        ("pool", "pub use shared::Shared;"),
        ("pool::shared", ""),
        ("error", ""),
        ("pool::heap", "use crate::{Error, inner::Shared};"),
    ]);
    let upward = Disorder::Upward { user: "pool::heap".into(), used: "pool::shared".into() };
    assert_eq!(broken.disorders(), [upward]);
}

#[test]
fn an_import_that_hides_its_source_is_found() {
    for hidden in
        ["use crate::*;", "use crate::inner::*;", "use crate::inner;", "use crate as root;"]
    {
        let root = "pub mod inner { pub use crate::pool::Shared; }";
        let broken = rooms(&[
            ("", root),
            ("pool", "pub use shared::Shared;"),
            ("pool::shared", ""),
            ("pool::heap", hidden),
        ]);
        assert!(
            matches!(broken.disorders()[..], [Disorder::Unclear { .. }]),
            "{hidden}: {:?}",
            broken.disorders()
        );
    }
}

#[test]
fn a_circle_inside_a_room_is_found() {
    let broken = rooms(&[
        ("pool::calls::request", "use super::slow_path::Source;"),
        ("pool::calls::slow_path", "use super::reclaim::Reclaimed;"),
        ("pool::calls::reclaim", "use super::request::Request;"),
        ("pool::calls::end", "use super::reclaim::Reclaimed;"),
    ]);
    let [Disorder::Circle(modules)] = &broken.disorders()[..] else {
        panic!("{:?}", broken.disorders());
    };
    assert_eq!(modules.len(), 3, "{modules:?}");
}

#[test]
fn tests_may_import_anything_and_new_modules_need_a_room() {
    for text in [
        "#[cfg(test)] mod tests { use crate::pool::shared::Shared; }",
        "#[cfg(all(test, feature = \"sim\", not(loom)))] mod tests { use crate::pool::shared::X; }",
        "#[cfg(test)] use crate::pool::shared::Shared;",
        "#[cfg(test)] impl crate::pool::shared::Trait for X {}",
        "#[cfg(test)] const X: u8 = crate::pool::shared::X;",
        "impl X { #[cfg(test)] fn f(&self) -> crate::pool::shared::Shared {} }",
    ] {
        let kept = rooms(&[("pool::heap", text), ("pool::shared", ""), ("parlour", "")]);
        assert_eq!(kept.disorders(), [Disorder::Homeless("parlour".into())], "{text}");
    }
}

#[test]
fn what_the_root_stands_for_is_found() {
    let disorders = |root: &str, used: &str| {
        let sources = [("", root), ("handle", ""), ("pool::heap", used)];
        rooms(&sources).disorders()
    };
    let upward = Disorder::Upward { user: "pool::heap".into(), used: "handle".into() };
    assert_eq!(disorders("use handle::LostFrees;", "use crate::LostFrees;"), [upward]);
    let alias = "pub(crate) type Handle = handle::OwnedBlock;";
    let unclear =
        |user: &str, path: &str| [Disorder::Unclear { user: user.into(), path: path.into() }];
    assert_eq!(disorders(alias, "fn f(h: crate::Handle) {}"), unclear("pool::heap", "Handle"));
    assert_eq!(disorders("pub use handle::*;", ""), unclear("lib", "handle"));
    // A name of another crate is none of the root's own.
    assert_eq!(disorders("use forebay_sync as sync;", "use crate::sync::Arc;"), []);
}
