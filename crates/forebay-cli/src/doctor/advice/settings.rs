//! Refused settings, and where to fix each.

use forebay::config::ConfigError;
use forebay::config::Source;

use crate::doctor::report::{Fix, Problem};

/// The problem that a refused setting causes, and its fix.
pub(super) fn problem(refused: &ConfigError) -> Problem {
    Problem {
        what: refused.to_string(),
        why: "no pool can be made while a setting is invalid; the values shown leave it out"
            .to_owned(),
        cure: cure(refused),
        fault: true,
    }
}

fn cure(refused: &ConfigError) -> Fix {
    match (refused, refused.origin()) {
        (ConfigError::File { path, line: Some(line), .. }, _)
        | (_, Some(Source::File { path, line })) => Fix::command(
            "correct this line; to see it",
            format!("sed -n {line}p {}", shell_word(&path.display().to_string())),
        ),
        (ConfigError::File { path, line: None, .. }, _) => Fix::command(
            "name a settings file that can be read, or none; to see what is there",
            format!("ls -ld {}", shell_word(&path.display().to_string())),
        ),
        (_, Some(Source::Conf { entry })) => Fix::command(
            format!("correct or remove entry {entry} of FOREBAY_CONF; to see all of it"),
            "echo \"$FOREBAY_CONF\"",
        ),
        (
            ConfigError::UnknownKey { suggestion: Some(key), .. },
            Some(Source::Environment { variable }),
        ) if is_shell_name(variable) => Fix::command(
            "use its right name",
            format!("export {}=\"${variable}\"; unset {variable}", key.variable()),
        ),
        (_, Some(Source::Environment { variable })) if is_shell_name(variable) => {
            Fix::command("set it to a valid value, or unset it", format!("unset {variable}"))
        }
        (_, _) => Fix::advice("set it to a valid value, or leave it out"),
    }
}

/// Whether a shell accepts it as the name of a variable.
fn is_shell_name(name: &str) -> bool {
    name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'_')
}

/// Quotes text as one shell word.
pub(super) fn shell_word(text: &str) -> String {
    let plain = |letter: char| letter.is_ascii_alphanumeric() || "/._-:,=+@".contains(letter);
    if !text.is_empty() && text.chars().all(plain) {
        return text.to_owned();
    }
    format!("'{}'", text.replace('\'', r"'\''"))
}
