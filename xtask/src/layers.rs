//! Which crate may use which: the one table, and the check that the workspace keeps it.

use cargo_metadata::{DependencyKind, Metadata, Package};

/// The levels from the top. A crate may use those on levels above its own: not those below, nor
/// those beside it. A new crate of the workspace is entered here.
const LEVELS: &[&[&str]] = &[
    &["forebay-core"],
    &["forebay-sync"],
    &["forebay-hal"],
    &["forebay-host"],
    &["forebay-sim"],
    &["forebay-cuda-fake-driver"],
    &["forebay-cuda", "forebay-opencl", "forebay-metal"],
    &["forebay-hip-bridge"],
    &["forebay-hip"],
    &["forebay"],
    &["forebay-trace", "forebay-cudarc"],
    &["forebay-cli", "forebay-capi"],
    &["forebay-py"],
];

/// What stands apart: each may use any crate of the levels, and none may use it.
const APART: &[&str] = &["forebay-bench", "forebay-fuzz", "xtask"];

/// The crate that decides and does nothing else: it needs no other crate, of anybody.
const PURE: &str = "forebay-core";

/// A crate of the workspace and what it names in its manifest.
#[derive(Clone, Debug)]
struct Member {
    name: String,
    uses: Vec<(String, DependencyKind)>,
}

/// The crates of the workspace, as cargo sees them.
fn members(metadata: &Metadata) -> Vec<Member> {
    let member = |package: &Package| Member {
        name: package.name.to_string(),
        uses: package.dependencies.iter().map(|used| (used.name.clone(), used.kind)).collect(),
    };
    metadata.workspace_packages().into_iter().map(member).collect()
}

/// Every breach of the order; none where it is kept.
pub(crate) fn breaches(metadata: &Metadata) -> Vec<String> {
    breaches_of(&members(metadata))
}

fn breaches_of(members: &[Member]) -> Vec<String> {
    let mut found = Vec::new();
    for Member { name, uses } in members {
        let Some(own) = level(name) else {
            found.push(format!(
                "{name} has no level: enter it in LEVELS of xtask/src/layers.rs, below every crate it uses"
            ));
            continue;
        };
        for (used, kind) in uses {
            let purpose = match kind {
                DependencyKind::Build => "build-dependency",
                DependencyKind::Development => "dev-dependency",
                // What cargo may add one day is held to the strictest rule.
                _ => "dependency",
            };
            if name == PURE && *kind != DependencyKind::Development {
                found.push(format!(
                    "{PURE} has {used} as a {purpose}: it must need no other crate, so that what it \
                     decides can be checked anywhere"
                ));
            }
            // Crates of others are above all of ours; an unknown one of ours is told once.
            if let Some(other) = level(used).filter(|other| *other >= own) {
                let place = if other == own { "beside" } else { "below" };
                found.push(format!(
                    "{name} has {used} as a {purpose}, which is {place} it: a crate uses only \
                     those above it; move what both need up, or the user down"
                ));
            }
        }
    }
    found
}

fn level(name: &str) -> Option<usize> {
    let apart = APART.contains(&name).then_some(LEVELS.len());
    LEVELS.iter().position(|level| level.contains(&name)).or(apart)
}

/// The order as a drawing: a line for each crate with what it uses.
pub(crate) fn drawing(metadata: &Metadata) -> String {
    drawing_of(&members(metadata))
}

fn drawing_of(members: &[Member]) -> String {
    let rows = |names: &[&str], remark: &str| -> Vec<String> {
        let there = names.iter().filter_map(|name| members.iter().find(|one| one.name == *name));
        there.map(|member| format!("{}{remark}", row(member))).collect()
    };
    let levels = LEVELS.iter().map(|level| rows(level, "").join("\n"));
    let levels: Vec<String> = levels.filter(|level| !level.is_empty()).collect();
    let apart = rows(APART, "  (apart: used by none)").join("\n");
    format!("a crate uses only those above it\n\n{}\n\n{apart}", levels.join("\n     │\n"))
}

/// A crate and the crates of ours that it uses, by their short names.
fn row(member: &Member) -> String {
    let mut used: Vec<_> =
        member.uses.iter().filter_map(|(used, _)| Some((level(used)?, used))).collect();
    used.sort();
    used.dedup();
    let used: Vec<_> = used.iter().map(|(_, name)| name.trim_start_matches("forebay-")).collect();
    let uses = if used.is_empty() { String::new() } else { format!("uses {}", used.join(", ")) };
    format!("  {:<16}  {uses}", member.name).trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use cargo_metadata::DependencyKind::{Build, Development, Normal};

    use super::*;

    fn member(name: &str, uses: &[(&str, DependencyKind)]) -> Member {
        let uses = uses.iter().map(|(used, purpose)| ((*used).to_owned(), *purpose)).collect();
        Member { name: name.to_owned(), uses }
    }

    #[test]
    fn upward_is_allowed_whatever_for() {
        let members = [
            member("forebay-core", &[("proptest", Development)]),
            member("forebay-hal", &[("forebay-core", Normal)]),
            member("forebay-cuda", &[("forebay-hal", Development)]),
            member("forebay-cli", &[("forebay-sim", Build), ("clap", Normal)]),
        ];
        assert_eq!(breaches_of(&members), [""; 0]);
    }

    #[test]
    fn downward_is_caught_whatever_for() {
        for purpose in [Normal, Build, Development] {
            let members = [member("forebay-hal", &[("forebay-host", purpose)])];
            let found = breaches_of(&members).join("\n");
            assert!(found.starts_with("forebay-hal has forebay-host as a "), "{found}");
            assert!(found.contains("which is below it"), "{found}");
        }
    }

    #[test]
    fn devices_do_not_know_each_other() {
        let members = [member("forebay-opencl", &[("forebay-cuda", Normal)])];
        let found = breaches_of(&members);
        assert!(found.len() == 1 && found[0].contains("beside"), "{found:?}");
    }

    #[test]
    fn a_new_crate_must_be_given_a_level() {
        let found = breaches_of(&[member("forebay-vulkan", &[("forebay-cli", Normal)])]);
        assert!(
            found.len() == 1 && found[0].starts_with("forebay-vulkan has no level"),
            "{found:?}"
        );
    }

    #[test]
    fn the_pure_crate_uses_nothing_but_for_tests() {
        let members = [member(PURE, &[("libc", Normal), ("cc", Build), ("proptest", Development)])];
        let found = breaches_of(&members);
        assert_eq!(found.len(), 2, "{found:?}");
        assert!(found[0].contains("libc as a dependency"), "{}", found[0]);
        assert!(found[1].contains("cc as a build-dependency"), "{}", found[1]);
    }

    #[test]
    fn each_crate_has_one_level() {
        let mut names: Vec<_> = LEVELS.iter().copied().flatten().chain(APART).collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
    }

    #[test]
    fn the_drawing_says_of_each_crate_what_it_uses_itself() {
        let text = drawing_of(&[
            member("forebay-hal", &[("forebay-core", Normal), ("forebay-core", Development)]),
            member("forebay-core", &[]),
            member("xtask", &[]),
        ]);
        let end = "  forebay-core\n     │\n  forebay-hal       uses core\n\n  xtask  (apart: used by none)";
        assert!(text.ends_with(end), "{text}");
    }

    #[test]
    fn what_stands_apart_is_used_by_none() {
        let found = breaches_of(&[member("forebay-py", &[("xtask", Development)])]);
        assert!(found.len() == 1 && found[0].contains("below"), "{found:?}");
        let upward = [member("xtask", &[("forebay-cli", Normal)])];
        assert_eq!(breaches_of(&upward), [""; 0]);
    }
}
