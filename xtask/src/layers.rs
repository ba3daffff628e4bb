//! Which crate may use which: the one table, and the check that the workspace keeps it.

use std::fmt;

use cargo_metadata::{DependencyKind, Metadata};

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
    &["forebay-report"],
    &["forebay-cli", "forebay-capi"],
    &["forebay-py"],
];

/// What stands apart: each may use any crate of the levels, and none may use it.
const APART: &[&str] = &["forebay-fuzz", "forebay-probe", "xtask"];

/// The crate that decides and does nothing else: it needs no other crate, of anybody.
const PURE: &str = "forebay-core";

/// How a crate uses another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// In itself.
    Normal,
    /// In its build script.
    Build,
    /// In its tests, examples and benchmarks.
    Development,
}

impl fmt::Display for Purpose {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Normal => "dependency",
            Self::Build => "build-dependency",
            Self::Development => "dev-dependency",
        })
    }
}

/// A crate of the workspace and what it names in its manifest.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    name: String,
    uses: Vec<(String, Purpose)>,
}

/// The crates of the workspace, as cargo sees them.
pub(crate) fn members(metadata: &Metadata) -> Vec<Member> {
    let uses = |kind| match kind {
        DependencyKind::Build => Purpose::Build,
        DependencyKind::Development => Purpose::Development,
        // What cargo may add one day is held to the strictest rule.
        _ => Purpose::Normal,
    };
    metadata
        .workspace_packages()
        .into_iter()
        .map(|package| Member {
            name: package.name.to_string(),
            uses: package
                .dependencies
                .iter()
                .map(|dependency| (dependency.name.clone(), uses(dependency.kind)))
                .collect(),
        })
        .collect()
}

/// A breach of the order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Breach {
    /// A crate that has no level.
    Unknown {
        /// The crate.
        name: String,
    },
    /// A crate that uses one below it, or beside it.
    NotAbove {
        /// The crate that uses.
        user: String,
        /// The crate it uses.
        used: String,
        /// What for.
        purpose: Purpose,
        /// Whether both are on one level.
        beside: bool,
    },
    /// The pure crate uses something.
    NotPure {
        /// What it uses.
        used: String,
        /// What for.
        purpose: Purpose,
    },
}

impl fmt::Display for Breach {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unknown { name } => write!(
                f,
                "{name} has no level: enter it in LEVELS of xtask/src/layers.rs, below every \
                 crate it uses"
            ),
            Self::NotAbove { user, used, purpose, beside } => {
                let place = if *beside { "beside" } else { "below" };
                write!(
                    f,
                    "{user} has {used} as a {purpose}, which is {place} it: a crate uses only \
                     those above it; move what both need up, or the user down"
                )
            }
            Self::NotPure { used, purpose } => write!(
                f,
                "{PURE} has {used} as a {purpose}: it must need no other crate, so that what it \
                 decides can be checked anywhere"
            ),
        }
    }
}

/// Every breach of the order in `members`; none where it is kept.
pub(crate) fn breaches(members: &[Member]) -> Vec<Breach> {
    let mut found = Vec::new();
    for member in members {
        let Some(own) = level(&member.name) else {
            found.push(Breach::Unknown { name: member.name.clone() });
            continue;
        };
        for (used, purpose) in &member.uses {
            if member.name == PURE && *purpose != Purpose::Development {
                found.push(Breach::NotPure { used: used.clone(), purpose: *purpose });
            }
            // Crates of others are above all of ours; an unknown one of ours is told once.
            let Some(other) = level(used) else { continue };
            if other >= own {
                found.push(Breach::NotAbove {
                    user: member.name.clone(),
                    used: used.clone(),
                    purpose: *purpose,
                    beside: other == own,
                });
            }
        }
    }
    found
}

fn level(name: &str) -> Option<usize> {
    let apart = APART.contains(&name).then_some(LEVELS.len());
    LEVELS.iter().position(|level| level.contains(&name)).or(apart)
}

/// The order as a drawing: a line for each crate with what it uses, one for those of its level that
/// are to come, in parentheses.
pub(crate) fn drawing(members: &[Member]) -> String {
    let member = |name: &str| members.iter().find(|member| member.name == name);
    let mut lines = vec!["a crate uses only those above it".to_owned(), String::new()];
    for (index, level) in LEVELS.iter().enumerate() {
        if index > 0 {
            lines.push("     │".to_owned());
        }
        lines.extend(level.iter().filter_map(|name| member(name)).map(row));
        let to_come: Vec<_> = level
            .iter()
            .filter(|name| member(name).is_none())
            .map(|name| format!("({name})"))
            .collect();
        if !to_come.is_empty() {
            lines.push(format!("  {}", to_come.join("  ")));
        }
    }
    let apart: Vec<_> = APART.iter().filter_map(|name| member(name)).collect();
    if !apart.is_empty() {
        lines.push(String::new());
        lines.extend(
            apart.into_iter().map(|member| format!("{}  (apart: used by none)", row(member))),
        );
    }
    lines.join("\n")
}

/// A crate and what it uses.
fn row(member: &Member) -> String {
    let used = uses(member);
    let used = if used.is_empty() { used } else { format!("uses {used}") };
    format!("  {:<16}  {used}", member.name).trim_end().to_owned()
}

/// The crates of ours that `member` uses, by the short names.
fn uses(member: &Member) -> String {
    let mut levels: Vec<_> =
        member.uses.iter().filter_map(|(used, _)| Some((level(used)?, used))).collect();
    levels.sort();
    levels.dedup();
    let short = |(_, name): &(usize, &String)| name.trim_start_matches("forebay-").to_owned();
    levels.iter().map(short).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn member(name: &str, uses: &[(&str, Purpose)]) -> Member {
        let uses = uses.iter().map(|(used, purpose)| ((*used).to_owned(), *purpose)).collect();
        Member { name: name.to_owned(), uses }
    }

    #[test]
    fn upward_is_allowed_whatever_for() {
        let members = [
            member("forebay-core", &[("proptest", Purpose::Development)]),
            member("forebay-hal", &[("forebay-core", Purpose::Normal)]),
            member("forebay-cuda", &[("forebay-hal", Purpose::Development)]),
            member("forebay-cli", &[("forebay-sim", Purpose::Build), ("clap", Purpose::Normal)]),
        ];
        assert_eq!(breaches(&members), []);
    }

    #[test]
    fn downward_is_caught_whatever_for() {
        for purpose in [Purpose::Normal, Purpose::Build, Purpose::Development] {
            let members = [member("forebay-hal", &[("forebay-host", purpose)])];
            let [Breach::NotAbove { user, used, beside: false, .. }] = &breaches(&members)[..]
            else {
                panic!("{:?}", breaches(&members));
            };
            assert_eq!((&**user, &**used), ("forebay-hal", "forebay-host"));
        }
    }

    #[test]
    fn devices_do_not_know_each_other() {
        let members = [member("forebay-opencl", &[("forebay-cuda", Purpose::Normal)])];
        let found = breaches(&members);
        assert!(matches!(found[..], [Breach::NotAbove { beside: true, .. }]), "{found:?}");
        assert!(found[0].to_string().contains("beside"), "{}", found[0]);
    }

    #[test]
    fn a_new_crate_must_be_given_a_level() {
        let found = breaches(&[member("forebay-vulkan", &[("forebay-cli", Purpose::Normal)])]);
        assert_eq!(found, [Breach::Unknown { name: "forebay-vulkan".into() }]);
        assert!(found[0].to_string().contains("xtask/src/layers.rs"), "{}", found[0]);
    }

    #[test]
    fn the_pure_crate_uses_nothing_but_for_tests() {
        let members = [member(
            PURE,
            &[
                ("libc", Purpose::Normal),
                ("cc", Purpose::Build),
                ("proptest", Purpose::Development),
            ],
        )];
        let found: Vec<_> = breaches(&members).iter().map(Breach::to_string).collect();
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
    fn the_drawing_shows_what_is_there_and_what_is_to_come() {
        let text = drawing(&[
            member("forebay-core", &[]),
            member(
                "forebay-hal",
                &[("forebay-core", Purpose::Normal), ("forebay-core", Purpose::Development)],
            ),
        ]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.contains(&"  forebay-core"), "{text}");
        assert!(lines.contains(&"  forebay-hal       uses core"), "{text}");
        assert!(text.contains("(forebay-cuda)  (forebay-opencl)"), "{text}");
    }

    #[test]
    fn the_drawing_says_of_each_crate_what_it_uses_itself() {
        let cli = member("forebay-cli", &[("forebay-core", Purpose::Normal)]);
        let text = drawing(&[member("forebay-core", &[]), cli, member("xtask", &[])]);
        let lines: Vec<_> = text.lines().collect();
        assert!(lines.contains(&"  forebay-cli       uses core"), "{text}");
        assert!(lines.contains(&"  (forebay-capi)"), "{text}");
        assert!(lines.contains(&"  (forebay-py)"), "{text}");
        assert_eq!(&lines[lines.len() - 2..], ["", "  xtask  (apart: used by none)"], "{text}");
    }

    #[test]
    fn what_stands_apart_is_used_by_none() {
        let found = breaches(&[member("forebay-py", &[("xtask", Purpose::Development)])]);
        assert!(matches!(found[..], [Breach::NotAbove { beside: false, .. }]), "{found:?}");
        assert_eq!(breaches(&[member("xtask", &[("forebay-cli", Purpose::Normal)])]), []);
    }
}
