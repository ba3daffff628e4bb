//! Whether the crates that are to be published can be: what a registry asks of each, and what its page shows.
//!
//! cargo packs them without building what it has packed: that would compile the workspace once more. What is
//! packed is what git has, so a file that the tests see and the package lacks is one that git ignores.

use std::path::{Path, PathBuf};

use cargo_metadata::{DependencyKind, Metadata, Package};

/// Licences as files, in the folder of each crate.
const LICENCES: [&str; 2] = ["LICENSE-MIT", "LICENSE-APACHE"];

/// The most keywords that the registry takes, and the longest.
const MOST_KEYWORDS: usize = 5;
const LONGEST_KEYWORD: usize = 20;

/// A crate of the workspace, as its manifest describes it.
#[derive(Clone, Debug)]
pub(crate) struct Manifest {
    pub(crate) name: String,
    pub(crate) published: bool,
    folder: PathBuf,
    description: Option<String>,
    license: Option<String>,
    readme: Option<PathBuf>,
    keywords: Vec<String>,
    categories: Vec<String>,
    uses: Vec<Use>,
}

/// Another crate that it names.
#[derive(Clone, Debug)]
struct Use {
    name: String,
    in_tests_alone: bool,
    has_version: bool,
}

impl Manifest {
    fn new(package: &Package) -> Self {
        let uses = package.dependencies.iter().map(|dependency| Use {
            name: dependency.name.clone(),
            in_tests_alone: dependency.kind == DependencyKind::Development,
            has_version: dependency.req.to_string() != "*",
        });
        let folder = package.manifest_path.parent().map(|folder| folder.as_std_path().to_owned());
        Self {
            name: package.name.to_string(),
            // No list of registries is any registry; an empty one is none.
            published: package.publish.as_ref().is_none_or(|registries| !registries.is_empty()),
            folder: folder.unwrap_or_default(),
            description: package.description.clone(),
            license: package.license.clone(),
            readme: package.readme.as_ref().map(|path| path.as_std_path().to_owned()),
            keywords: package.keywords.clone(),
            categories: package.categories.clone(),
            uses: uses.collect(),
        }
    }
}

/// The crates of the workspace.
pub(crate) fn manifests(metadata: &Metadata) -> Vec<Manifest> {
    metadata.workspace_packages().into_iter().map(Manifest::new).collect()
}

/// What stands in the way of publishing them, each in a sentence that says what helps.
pub(crate) fn faults(all: &[Manifest]) -> Vec<String> {
    let unpublished = |name: &str| all.iter().any(|other| other.name == name && !other.published);
    let mut found = Vec::new();
    for one in all.iter().filter(|one| one.published) {
        let mut say = |fault: String| found.push(format!("{}: {fault}", one.name));
        if is_blank(one.description.as_ref()) {
            say("no description; add one to its manifest".to_owned());
        }
        if is_blank(one.license.as_ref()) {
            say("no license; add license.workspace = true".to_owned());
        }
        match &one.readme {
            Some(readme) if is_file(&one.folder.join(readme)) => {}
            Some(readme) => say(format!("its readme, {}, is not there", readme.display())),
            None => say("no readme; add README.md".to_owned()),
        }
        for licence in LICENCES.iter().filter(|name| !is_file(&one.folder.join(name))) {
            say(format!("no {licence}; link it to the one at the root"));
        }
        if one.categories.is_empty() {
            say("no categories; add one that crates.io knows".to_owned());
        }
        if one.keywords.is_empty() || one.keywords.len() > MOST_KEYWORDS {
            say(format!("{} keywords; 1 to {MOST_KEYWORDS} are allowed", one.keywords.len()));
        }
        for keyword in one.keywords.iter().filter(|word| word.len() > LONGEST_KEYWORD) {
            say(format!("the keyword {keyword} is longer than {LONGEST_KEYWORD} letters"));
        }
        for used in one.uses.iter().filter(|used| unpublished(&used.name)) {
            if !used.in_tests_alone {
                say(format!("uses {}, which is not published", used.name));
            } else if used.has_version {
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
    use std::fs;

    use super::*;

    /// A crate that has all it needs, in a folder of its own.
    fn sound() -> (tempfile::TempDir, Manifest) {
        let folder = tempfile::tempdir().unwrap();
        for name in ["README.md", "LICENSE-MIT", "LICENSE-APACHE"] {
            fs::write(folder.path().join(name), "text").unwrap();
        }
        let manifest = Manifest {
            name: "one".into(),
            published: true,
            folder: folder.path().to_owned(),
            description: Some("What it is".into()),
            license: Some("MIT".into()),
            readme: Some("README.md".into()),
            keywords: vec!["gpu".into()],
            categories: vec!["memory-management".into()],
            uses: Vec::new(),
        };
        (folder, manifest)
    }

    #[test]
    fn a_crate_with_all_it_needs_has_no_fault() {
        let (_folder, manifest) = sound();
        assert_eq!(faults(&[manifest]), [""; 0]);
    }

    #[test]
    fn each_thing_that_is_missing_is_named() {
        let (folder, mut manifest) = sound();
        fs::remove_file(folder.path().join("LICENSE-MIT")).unwrap();
        fs::write(folder.path().join("README.md"), "").unwrap();
        manifest.description = Some(" ".into());
        manifest.license = None;
        manifest.categories.clear();
        manifest.keywords = vec!["a".repeat(21), "b".into(), "c".into(), "d".into(), "e".into()];
        let text = faults(std::slice::from_ref(&manifest)).join("\n");
        for fault in ["description", "license", "readme", "LICENSE-MIT", "categories", "longer"] {
            assert!(text.contains(fault), "{fault}: {text}");
        }
        assert_eq!(text.lines().count(), 6, "{text}");
        manifest.keywords.push("f".into());
        assert!(faults(std::slice::from_ref(&manifest)).concat().contains("6 keywords"));
        // What is not published may lack anything.
        manifest.published = false;
        assert_eq!(faults(&[manifest]), [""; 0]);
    }

    #[test]
    fn what_is_not_published_is_used_in_tests_alone_and_without_a_version() {
        let (_folder, mut manifest) = sound();
        let fake = Manifest { name: "fake".into(), published: false, ..manifest.clone() };
        let with = |in_tests_alone, has_version| {
            vec![Use { name: "fake".into(), in_tests_alone, has_version }]
        };
        manifest.uses = with(true, false);
        assert_eq!(faults(&[manifest.clone(), fake.clone()]), [""; 0]);
        manifest.uses = with(true, true);
        assert!(faults(&[manifest.clone(), fake.clone()])[0].contains("names a version of fake"));
        manifest.uses = with(false, false);
        assert!(faults(&[manifest, fake])[0].contains("uses fake, which is not published"));
    }
}
