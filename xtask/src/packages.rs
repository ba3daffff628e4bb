//! Whether the crates that are to be published can be: what a registry asks of each, and what its page shows.
//!
//! cargo packs them without building what it has packed: that would compile the workspace once more. What is
//! packed is what git has, so a file that the tests see and the package lacks is one that git ignores.

use std::path::Path;

use cargo_metadata::{DependencyKind, Package};

/// Licences as files, in the folder of each crate.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// The most keywords that the registry takes, and the longest.
const MAX_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// No list of registries is any registry; an empty one is none.
pub(crate) fn is_published(package: &Package) -> bool {
    package.publish.as_ref().is_none_or(|registries| !registries.is_empty())
}

/// What stands in the way of publishing them, each in a sentence that says what helps.
pub(crate) fn faults(all: &[&Package]) -> Vec<String> {
    let unpublished = |name: &str| all.iter().any(|one| one.name == name && !is_published(one));
    let mut found = Vec::new();
    for one in all.iter().filter(|one| is_published(one)) {
        let mut say = |fault: String| found.push(format!("{}: {fault}", one.name));
        let folder = one.manifest_path.parent().map_or(Path::new(""), |path| path.as_std_path());
        if is_blank(one.description.as_ref()) {
            say("no description; add one to its manifest".to_owned());
        }
        if is_blank(one.license.as_ref()) {
            say("no license; add license.workspace = true".to_owned());
        }
        match &one.readme {
            Some(readme) if is_file(&folder.join(readme)) => {}
            Some(readme) => say(format!("its readme, {readme}, is not there")),
            None => say("no readme; add README.md".to_owned()),
        }
        for licence in LICENCES.iter().filter(|name| !is_file(&folder.join(name))) {
            say(format!("no {licence}; link it to the one at the root"));
        }
        if one.categories.is_empty() {
            say("no categories; add one that crates.io knows".to_owned());
        }
        if one.keywords.is_empty() || one.keywords.len() > MAX_KEYWORDS {
            say(format!("{} keywords; 1 to {MAX_KEYWORDS} are allowed", one.keywords.len()));
        }
        for keyword in one.keywords.iter().filter(|word| word.len() > LONGEST_KEYWORD) {
            say(format!("the keyword {keyword} is longer than {LONGEST_KEYWORD} letters"));
        }
        for used in one.dependencies.iter().filter(|used| unpublished(&used.name)) {
            if used.kind != DependencyKind::Development {
                say(format!("uses {}, which is not published", used.name));
            } else if used.req.to_string() != "*" {
                say(format!("names a version of {}, which is not published; drop it", used.name));
            }
        }
    }
    found
}

fn is_blank(text: Option<&String>) -> bool {
    text.is_none_or(|text| text.trim().is_empty())
}

/// Whether a file, or a link to one, is there and not empty.
fn is_file(path: &Path) -> bool {
    path.metadata().is_ok_and(|known| known.is_file() && known.len() > 0)
}

#[cfg(test)]
mod tests {
    use cargo_metadata::MetadataCommand;

    use super::*;

    /// The crates of this workspace of these names.
    fn packages<const N: usize>(names: [&str; N]) -> [Package; N] {
        let metadata = MetadataCommand::new().no_deps().exec().unwrap();
        names.map(|name| metadata.packages.iter().find(|one| one.name == name).unwrap().clone())
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        let [mut one] = packages(["forebay-core"]);
        assert_eq!(faults(&[&one]), [""; 0]);
        one.description = Some(" ".into());
        one.license = None;
        one.readme = Some("no-such-file.md".into());
        one.categories.clear();
        one.keywords = vec!["a".repeat(21), "b".into(), "c".into(), "d".into(), "e".into()];
        let text = faults(&[&one]).join("\n");
        for fault in ["description", "license", "readme", "categories", "longer"] {
            assert!(text.contains(fault), "{fault}: {text}");
        }
        assert_eq!(text.lines().count(), 5, "{text}");
        one.keywords.push("f".into());
        one.manifest_path = "/no/such/folder/Cargo.toml".into();
        let text = faults(&[&one]).concat();
        assert!(text.contains("6 keywords") && text.contains("no LICENSE-MIT"), "{text}");
        // What is not published may lack anything.
        one.publish = Some(Vec::new());
        assert_eq!(faults(&[&one]), [""; 0]);
    }

    #[test]
    fn what_is_not_published_is_used_in_tests_alone_and_without_a_version() {
        let [mut user, mut used] = packages(["forebay-cli", "forebay-core"]);
        used.publish = Some(Vec::new());
        let text = faults(&[&user, &used]).concat();
        assert_eq!(text, "forebay-cli: uses forebay-core, which is not published");
        for dependency in &mut user.dependencies {
            dependency.kind = DependencyKind::Development;
        }
        let text = faults(&[&user, &used]).concat();
        assert!(text.contains("names a version of forebay-core"), "{text}");
        for dependency in &mut user.dependencies {
            dependency.req = "*".parse().unwrap();
        }
        assert_eq!(faults(&[&user, &used]), [""; 0]);
    }
}
