//! How sources and manifests must look, where no lint can say it.

use std::path::Path;

use crate::allocations;
use crate::files;

/// The longest a source file may be. A subject that needs more is two subjects.
const MAX_LINES: usize = 600;

/// How a manifest takes the workspace's lints.
const LINTS: &str = "[lints]\nworkspace = true\n";

/// What the pure crate's `lib.rs` must say.
const FORBID_UNSAFE: &str = "#![forbid(unsafe_code)]";

/// Every fault of the workspace at `root` whose crates have these manifests.
pub(crate) fn faults<'a>(
    root: &Path,
    manifests: impl IntoIterator<Item = &'a Path>,
) -> Vec<String> {
    let mut found = Vec::new();
    let shown = |path: &Path| path.strip_prefix(root).unwrap_or(path).display().to_string();
    for manifest in manifests {
        match files::read(manifest) {
            Ok(text) if text.contains(LINTS) => {}
            Ok(_) => found.push(format!(
                "{}: without the workspace's lints; add \"[lints]\" with \"workspace = true\"",
                shown(manifest)
            )),
            Err(error) => found.push(error),
        }
    }
    let is_source = |path: &Path| match path.is_dir() {
        true => path.file_name().is_some_and(|name| name != "target"),
        false => path.extension().is_some_and(|ending| ending == "rs"),
    };
    let mut allowed = Vec::new();
    for folder in ["crates", "xtask"] {
        let sources = files::below(&root.join(folder), &is_source);
        for path in sources.unwrap_or_else(|error| {
            found.push(error);
            Vec::new()
        }) {
            let name = shown(&path);
            let text = match files::read(&path) {
                Ok(text) => text,
                Err(error) => {
                    found.push(error);
                    continue;
                }
            };
            let of_crate = Path::new(name.strip_prefix("crates/").unwrap_or(&name));
            let infallible = allocations::unbounded(of_crate, &text, &mut allowed);
            found.extend(infallible.iter().map(|line| {
                format!(
                    "{name}:{line}: allocates a length that is no constant, and ends the process if the host is out of \
                     memory: use forebay::host_vec, or enter what bounds it in ALLOWED of xtask/src/allocations.rs"
                )
            }));
            let lines = text.lines().count();
            if lines > MAX_LINES {
                found.push(format!(
                    "{name}: {lines} lines; allowed: {MAX_LINES}. Split it by subject, or move its tests \
                     to a tests.rs beside it"
                ));
            }
        }
    }
    found.extend(allocations::stale(&allowed).map(|(file, part)| {
        format!("{file}: has no allocation with {part:?}: remove it from ALLOWED of xtask/src/allocations.rs")
    }));
    let pure = root.join("crates/forebay-core/src/lib.rs");
    match files::read(&pure) {
        Ok(text) if text.lines().any(|line| line.trim() == FORBID_UNSAFE) => {}
        Ok(_) => {
            found.push(format!("{}: must say {FORBID_UNSAFE}: policy is safe code", shown(&pure)));
        }
        Err(error) => found.push(error),
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A workspace with one crate, as it must be.
    fn workspace() -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        write(&root, "xtask/src/main.rs", "");
        write(&root, "crates/forebay-core/Cargo.toml", "[package]\n[lints]\nworkspace = true\n");
        write(&root, "crates/forebay-core/src/lib.rs", "//! Pure.\n#![forbid(unsafe_code)]\n");
        root
    }

    fn write(root: &tempfile::TempDir, file: &str, text: &str) {
        files::write(&root.path().join(file), text).unwrap();
    }

    fn faults_of(root: &tempfile::TempDir) -> Vec<String> {
        let manifest = root.path().join("crates/forebay-core/Cargo.toml");
        let mut found = faults(root.path(), [&*manifest]);
        // A workspace of one crate has no source that the list allows.
        found.retain(|fault| !fault.contains("has no allocation"));
        found
    }

    #[test]
    fn a_sound_workspace_has_no_fault() {
        let root = workspace();
        write(&root, "crates/forebay-core/src/long.rs", &"\n".repeat(MAX_LINES));
        assert_eq!(faults_of(&root), [""; 0]);
    }

    #[test]
    fn each_fault_is_found_and_says_what_helps() {
        let root = workspace();
        write(&root, "crates/forebay-core/Cargo.toml", "[package]\n[lints]\n# workspace = true\n");
        write(&root, "crates/forebay-core/src/lib.rs", "// #![forbid(unsafe_code)] is gone\n");
        write(&root, "crates/forebay-core/src/long.rs", &"\n".repeat(MAX_LINES + 1));
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
        assert!(faults_of(&root).iter().all(|fault| fault.contains("No such file")));
    }
}
