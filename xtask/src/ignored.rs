//! Why tests are ignored: nextest lists them without the reason their author gave.
//!
//! The reason is in the test binary, which says it when asked for that one test without
//! `--ignored`: it does not run it then, it only says that it will not, and why.

use std::path::Path;

use serde_json::Value;

use crate::count::ignored_line;
use crate::dashboard::Dashboard;
use crate::run::Task;
use crate::step::Skip;

/// What stands for a reason that could not be found out.
const UNKNOWN: &str = "left out by the profile of .config/nextest.toml";

/// The tests in `titles` (nextest's "binary name") with the reason of each.
///
/// `crates` are cargo's words for those that the tests are of.
pub(crate) fn reasons(titles: &[&str], crates: &str, dashboard: &mut Dashboard<'_>) -> Vec<Skip> {
    if titles.is_empty() {
        return Vec::new();
    }
    let words = format!("nextest list {crates} --run-ignored ignored-only --message-format json");
    let listed = dashboard.run_aside(&dashboard.place.cargo(&words));
    // cargo's own lines come first; the list is one line. Where it is not one, no reason is found.
    let list = listed.output.lines().rfind(|line| line.starts_with('{')).unwrap_or_default();
    let list: Value = serde_json::from_str(list).unwrap_or_default();
    let mut reason = |title: &str| {
        let (binary, name) = title.split_once(' ')?;
        let suite = &list["rust-suites"][binary];
        if suite["testcases"][name]["ignored"].as_bool() != Some(true) {
            return None;
        }
        let (program, folder) = (suite["binary-path"].as_str()?, suite["cwd"].as_str()?);
        let task = Task::new(program, "--exact", Path::new(folder)).with([name]);
        let said = dashboard.run_aside(&task).output;
        said.lines().filter_map(ignored_line).find(|(of, _)| *of == name).map(|(_, why)| why)
    };
    let skip = |title: &&str| {
        let reason = reason(title).unwrap_or_else(|| UNKNOWN.to_owned());
        Skip { what: (*title).to_owned(), reason }
    };
    titles.iter().map(skip).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dashboard::asked;
    use crate::run::Ran;
    use crate::workplace::Workplace;

    const LISTED: &str = r#"    Finished `test` profile in 0.05s
{"test-count":3,"rust-suites":{"nx":{"binary-path":"/t/nx","cwd":"/","status":"listed","testcases":{"bare":{"kind":"test","ignored":true},"ok":{"kind":"test","ignored":false}}},"nx::mimic":{"binary-path":"/t/mimic","cwd":"/","testcases":{"st":{"ignored":true}}}}}
"#;

    #[test]
    fn each_test_is_asked_of_its_own_binary() {
        let answer = |words: &str, _| {
            let output = match words {
                "nx --exact bare" => "running 1 test\ntest bare ... ignored, needs a GPU\n",
                "mimic --exact st" => "no such luck\n",
                _ => LISTED,
            };
            Ran::made_up(true, output)
        };
        let titles = ["nx bare", "nx::mimic st", "nx gone"];
        let (skips, asked) =
            asked(&Workplace::here(), answer, |dashboard| reasons(&titles, "-p nx", dashboard));
        let skips: Vec<_> = skips.iter().map(|skip| (&*skip.what, &*skip.reason)).collect();
        assert_eq!(
            skips,
            [("nx bare", "needs a GPU"), ("nx::mimic st", UNKNOWN), ("nx gone", UNKNOWN)]
        );
        assert_eq!(asked.len(), 3);
    }

    #[test]
    fn no_list_is_no_panic() {
        for text in ["", "{", "{}", r#"{"rust-suites":[]}"#, r#"{"rust-suites":{"a":{}}}"#] {
            let answer = |_: &str, _| Ran::made_up(true, text);
            let (skips, _) =
                asked(&Workplace::here(), answer, |dashboard| reasons(&["a b"], "", dashboard));
            assert_eq!(skips[0].reason, UNKNOWN);
        }
    }
}
