//! Why tests are ignored: nextest lists them without the reason their author gave.
//!
//! The reason is in the test binary, which says it when asked for that one test without
//! `--ignored`: it does not run it then, it only says that it will not, and why.

use std::path::Path;
use std::time::Duration;

use serde_json::Value;

use crate::count::ignored_line;
use crate::run::Task;
use crate::setup::Runner;
use crate::step::Skip;
use crate::workplace::Workplace;

/// How long the list may be silent: everything is built already.
const LIST: Duration = Duration::from_secs(120);

/// How long a binary may take to say that it will not run a test.
const ASK: Duration = Duration::from_secs(10);

/// What stands for a reason that could not be found out.
const UNKNOWN: &str = "left out by the profile of .config/nextest.toml";

/// A test that is not started, and how to ask its binary why.
#[derive(Debug, PartialEq, Eq)]
struct Ignored {
    /// As nextest names it: "binary name".
    title: String,
    name: String,
    binary: String,
    directory: String,
}

/// The tests in `titles` (nextest's "binary name") with the reason of each.
///
/// `crates` are cargo's words for those that the tests are of.
pub(crate) fn reasons(
    titles: &[&str],
    crates: &str,
    place: &Workplace,
    run: &mut Runner<'_>,
) -> Vec<Skip> {
    if titles.is_empty() {
        return Vec::new();
    }
    let words = format!("nextest list {crates} --run-ignored ignored-only --message-format json");
    let listed = run(&place.cargo(words.split_whitespace(), LIST));
    let ignored = parse(&listed.output);
    let reason = |title: &str, run: &mut Runner<'_>| {
        let test = ignored.iter().find(|test| test.title == title)?;
        let task =
            Task::new(&test.binary, [&*test.name, "--exact"], Path::new(&test.directory), ASK);
        let said = run(&task).output;
        said.lines()
            .filter_map(ignored_line)
            .find(|(name, _)| *name == test.name)
            .map(|(_, why)| why)
    };
    titles
        .iter()
        .map(|title| Skip {
            what: (*title).to_owned(),
            reason: reason(title, run).unwrap_or_else(|| UNKNOWN.to_owned()),
        })
        .collect()
}

/// The ignored tests in nextest's list; none where it is not one.
fn parse(output: &str) -> Vec<Ignored> {
    // cargo's own lines come first; the list is one line.
    let Some(list) = output.lines().rfind(|line| line.starts_with('{')) else { return Vec::new() };
    let Ok(list) = serde_json::from_str::<Value>(list) else { return Vec::new() };
    let Some(suites) = list.get("rust-suites").and_then(Value::as_object) else {
        return Vec::new();
    };
    let mut found = Vec::new();
    for (id, suite) in suites {
        let text = |key| suite.get(key).and_then(Value::as_str).map(str::to_owned);
        let (Some(binary), Some(directory)) = (text("binary-path"), text("cwd")) else { continue };
        let Some(tests) = suite.get("testcases").and_then(Value::as_object) else { continue };
        for (name, test) in tests {
            if test.get("ignored").and_then(Value::as_bool) == Some(true) {
                found.push(Ignored {
                    title: format!("{id} {name}"),
                    name: name.clone(),
                    binary: binary.clone(),
                    directory: directory.clone(),
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::{Ending, Ran};

    const LISTED: &str = r#"    Finished `test` profile in 0.05s
{"test-count":3,"rust-suites":{"nx":{"binary-path":"/t/nx","cwd":"/","status":"listed","testcases":{"bare":{"kind":"test","ignored":true},"ok":{"kind":"test","ignored":false}}},"nx::mimic":{"binary-path":"/t/mimic","cwd":"/","testcases":{"st":{"ignored":true}}}}}
"#;

    #[test]
    fn each_test_is_asked_of_its_own_binary() {
        let mut asked = Vec::new();
        let skips = reasons(
            &["nx bare", "nx::mimic st", "nx gone"],
            "-p nx",
            &Workplace::here(),
            &mut |task| {
                let words = task.to_string();
                let output = match &*words {
                    "nx bare --exact" => "running 1 test\ntest bare ... ignored, needs a GPU\n",
                    "mimic st --exact" => "no such luck\n",
                    _ => LISTED,
                };
                asked.push(words);
                Ran { ending: Ending::Success, output: output.to_owned(), cpu: Duration::ZERO }
            },
        );
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
            assert_eq!(parse(text), []);
        }
    }
}
