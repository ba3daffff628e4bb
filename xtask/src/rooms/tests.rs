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

/// Asserts that the heap's import of `used` is all that is wrong.
fn assert_upward(rooms: &Rooms, used: &str, what: &str) {
    let disorders = rooms.disorders();
    let wanted = format!("forebay::pool::heap imports {used}, whose room comes later");
    assert!(disorders.len() == 1 && disorders[0].starts_with(&wanted), "{what}: {disorders:?}");
}

#[test]
fn a_planted_import_from_above_is_found() {
    let heap = "use crate::pool::common::counts::Counts;";
    let kept = rooms(&[("pool::heap", heap), ("pool::common::counts", "")]);
    assert_eq!(kept.disorders(), [""; 0]);
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
        assert_upward(&broken, "pool::shared", planted);
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
    assert_upward(&broken, "pool::shared", "through a door");
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
        let disorders = broken.disorders();
        assert!(disorders.len() == 1 && disorders[0].contains("hides"), "{hidden}: {disorders:?}");
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
    let disorders = broken.disorders();
    let circle = "modules import each other: pool::calls::reclaim, pool::calls::request, pool::calls::slow_path";
    assert_eq!(disorders, [circle]);
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
        let disorders = kept.disorders();
        assert!(
            disorders.len() == 1 && disorders[0].contains("parlour has no room"),
            "{text}: {disorders:?}"
        );
    }
}

#[test]
fn what_the_root_stands_for_is_found() {
    let of = |root: &str, used: &str| rooms(&[("", root), ("handle", ""), ("pool::heap", used)]);
    let through_root = of("use handle::LostFrees;", "use crate::LostFrees;");
    assert_upward(&through_root, "handle", "what lib.rs imports");
    let alias = "pub(crate) type Handle = handle::OwnedBlock;";
    for (root, used, unclear) in [
        (alias, "fn f(h: crate::Handle) {}", "forebay::pool::heap imports Handle, which hides"),
        ("pub use handle::*;", "", "forebay::lib imports handle, which hides"),
    ] {
        let disorders = of(root, used).disorders();
        assert!(disorders.len() == 1 && disorders[0].starts_with(unclear), "{disorders:?}");
    }
    // A name of another crate is none of the root's own.
    assert_eq!(of("use forebay_sync as sync;", "use crate::sync::Arc;").disorders(), [""; 0]);
}
