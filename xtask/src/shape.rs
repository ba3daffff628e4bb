//! How sources and manifests must look, where no lint can say it.

use std::fmt;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::allocations;

/// The longest a source file may be. A subject that needs more is two subjects.
const MOST_LINES: usize = 600;

/// What the pure crate's `lib.rs` must say.
const FORBID_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// A source or manifest that does not look as it must.
#[derive(Debug)]
pub(crate) enum Fault {
    /// A file too long to read from the top.
    TooLong {
        /// The file.
        file: PathBuf,
        /// Its lines.
        lines: usize,
    },
    /// A manifest that does not take the workspace's lints.
    NoLints {
        /// The manifest.
        file: PathBuf,
    },
    /// An allocation that ends the process if the host is out of memory.
    Infallible {
        /// The file.
        file: PathBuf,
        /// The line.
        line: usize,
    },
    /// An entry in the list of allowed allocations that no source has.
    Stale {
        /// The file of the entry.
        file: &'static str,
        /// Its part of a line.
        part: &'static str,
    },
    /// The pure crate may hold unsafe code.
    MayBeUnsafe {
        /// The file that must forbid it.
        file: PathBuf,
    },
    /// A file that could not be read.
    Unreadable {
        /// The file or folder.
        file: PathBuf,
        /// Why.
        error: io::Error,
    },
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::TooLong { file, lines } => write!(
                f,
                "{}: {lines} lines; allowed: {MOST_LINES}. Split it by subject, or move its tests \
                 to a tests.rs beside it",
                file.display()
            ),
            Self::NoLints { file } => write!(
                f,
                "{}: without the workspace's lints; add \"[lints]\" with \"workspace = true\"",
                file.display()
            ),
            Self::Infallible { file, line } => write!(
                f,
                "{}:{line}: allocates a length that is no constant, and ends the process if the host is out of memory: use \
                 forebay::host_vec, or enter what bounds it in ALLOWED of xtask/src/allocations.rs",
                file.display()
            ),
            Self::Stale { file, part } => write!(
                f,
                "{file}: has no allocation with {part:?}: remove it from ALLOWED of xtask/src/allocations.rs"
            ),
            Self::MayBeUnsafe { file } => {
                write!(f, "{}: must say {FORBID_UNSAFE}: policy is safe code", file.display())
            }
            Self::Unreadable { file, error } => {
                write!(f, "{}: cannot be read: {error}", file.display())
            }
        }
    }
}

/// Every fault of the workspace at `root` whose crates have these manifests.
pub(crate) fn faults<'a>(root: &Path, manifests: impl IntoIterator<Item = &'a Path>) -> Vec<Fault> {
    let mut found = Vec::new();
    for manifest in manifests {
        let file = shown(root, manifest);
        match fs::read_to_string(manifest) {
            Ok(text) if takes_workspace_lints(&text) => {}
            Ok(_) => found.push(Fault::NoLints { file }),
            Err(error) => found.push(Fault::Unreadable { file, error }),
        }
    }
    let mut allowed = Vec::new();
    for folder in ["crates", "xtask"] {
        sources(root, &root.join(folder), &mut found, &mut allowed);
    }
    found.extend(allocations::stale(&allowed).map(|(file, part)| Fault::Stale { file, part }));
    let pure = PathBuf::from("crates/forebay-core/src/lib.rs");
    match fs::read_to_string(root.join(&pure)) {
        Ok(text) if text.lines().any(|line| line.trim() == FORBID_UNSAFE) => {}
        Ok(_) => found.push(Fault::MayBeUnsafe { file: pure }),
        Err(error) => found.push(Fault::Unreadable { file: pure, error }),
    }
    found
}

/// A path as a person names it: from the root of the workspace.
fn shown(root: &Path, path: &Path) -> PathBuf {
    path.strip_prefix(root).unwrap_or(path).to_owned()
}

/// Whether a manifest says `[lints]` `workspace = true`, in either way of writing it.
///
/// Not a reader of the whole language: the two forms people write, and anything else is refused
/// with the form to use.
fn takes_workspace_lints(manifest: &str) -> bool {
    let mut section = String::new();
    manifest.lines().any(|line| {
        let line: String = line.split('#').next().unwrap_or_default().split_whitespace().collect();
        if line.starts_with('[') {
            section = line;
            return false;
        }
        (section == "[lints]" && line == "workspace=true")
            || (section.is_empty() && line == "lints.workspace=true")
    })
}

/// Looks at every Rust file under `folder`: its length, and what it allocates.
fn sources(root: &Path, folder: &Path, found: &mut Vec<Fault>, allowed: &mut Vec<usize>) {
    let unreadable = |error| Fault::Unreadable { file: shown(root, folder), error };
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return found.push(unreadable(error)),
    };
    let mut paths: Vec<_> = entries.flatten().map(|entry| entry.path()).collect();
    // The system gives them in any order; a person wants the same list every time.
    paths.sort();
    for path in paths {
        if path.is_dir() {
            if path.file_name().is_none_or(|name| name != "target") {
                sources(root, &path, found, allowed);
            }
        } else if path.extension().is_some_and(|ending| ending == "rs") {
            let file = shown(root, &path);
            let text = match fs::read_to_string(&path) {
                Ok(text) => text,
                Err(error) => {
                    found.push(Fault::Unreadable { file, error });
                    continue;
                }
            };
            let of_crate = file.strip_prefix("crates").unwrap_or(&file);
            for line in allocations::unbounded(of_crate, &text, allowed) {
                found.push(Fault::Infallible { file: file.clone(), line });
            }
            let lines = text.lines().count();
            if lines > MOST_LINES {
                found.push(Fault::TooLong { file, lines });
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with one crate, as it must be.
    fn workspace() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("crates/forebay-core/src")).unwrap();
        fs::create_dir_all(root.path().join("xtask/src")).unwrap();
        write(&root, "crates/forebay-core/Cargo.toml", "[package]\n[lints]\nworkspace = true\n");
        write(&root, "crates/forebay-core/src/lib.rs", "//! Pure.\n#![forbid(unsafe_code)]\n");
        root
    }

    fn write(root: &tempfile::TempDir, file: &str, text: &str) {
        fs::write(root.path().join(file), text).unwrap();
    }

    fn faults_of(root: &tempfile::TempDir) -> Vec<String> {
        let manifest = root.path().join("crates/forebay-core/Cargo.toml");
        let found = faults(root.path(), [&*manifest]);
        // A workspace of one crate has no source that the list allows.
        let found = found.iter().filter(|fault| !matches!(fault, Fault::Stale { .. }));
        found.map(Fault::to_string).collect()
    }

    #[test]
    fn a_sound_workspace_has_no_fault() {
        let root = workspace();
        write(&root, "crates/forebay-core/src/long.rs", &"\n".repeat(MOST_LINES));
        assert_eq!(faults_of(&root), [""; 0]);
    }

    #[test]
    fn each_fault_is_found_and_says_what_helps() {
        let root = workspace();
        write(&root, "crates/forebay-core/Cargo.toml", "[package]\n");
        write(&root, "crates/forebay-core/src/lib.rs", "// #![forbid(unsafe_code)] is gone\n");
        write(&root, "crates/forebay-core/src/long.rs", &"\n".repeat(MOST_LINES + 1));
        write(
            &root,
            "crates/forebay-core/src/zeros.rs",
            "fn zeros(n: usize) {\n    vec![0; n];\n}\n",
        );
        let found = faults_of(&root);
        assert_eq!(found.len(), 4, "{found:?}");
        assert!(found[0].contains("workspace = true"), "{}", found[0]);
        assert!(found[1].contains("601 lines; allowed: 600"), "{}", found[1]);
        assert!(found[2].contains("zeros.rs:2: allocates"), "{}", found[2]);
        assert!(found[3].contains(FORBID_UNSAFE), "{}", found[3]);
    }

    #[test]
    fn what_is_not_there_is_a_fault_not_a_panic() {
        let root = tempfile::tempdir().unwrap();
        assert!(faults_of(&root).iter().all(|fault| fault.contains("cannot be read")));
    }

    #[test]
    fn lints_are_read_in_both_forms_and_not_in_others() {
        for good in [
            "[lints]\nworkspace = true",
            "[package]\nname = \"a\"\n\n[ lints ]\n# why\nworkspace=true # all\n[features]",
            "lints.workspace = true\n[package]",
        ] {
            assert!(takes_workspace_lints(good), "{good}");
        }
        for bad in [
            "",
            "[lints]\n# workspace = true",
            "[lints]\nworkspace = false",
            "[lints]\n[dependencies]\nworkspace = true",
            "[dependencies]\nlints.workspace = true",
        ] {
            assert!(!takes_workspace_lints(bad), "{bad}");
        }
    }
}
