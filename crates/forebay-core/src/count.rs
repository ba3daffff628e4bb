//! Words for people: counts in sentences, and characters that are not shown.

use core::fmt::Display;

/// A count with its noun, in the singular if it is one.
///
/// `count` may be a number or a formatted number, such as "10,000".
///
/// ```
/// use forebay_core::counted;
/// assert_eq!(counted(1, "block"), "1 block");
/// assert_eq!(counted(0, "live block"), "0 live blocks");
/// assert_eq!(counted("10,000", "entry"), "10,000 entries");
/// ```
pub fn counted(count: impl Display, noun: &str) -> String {
    let count = count.to_string();
    if count == "1" { format!("1 {noun}") } else { format!("{count} {}", plural(noun)) }
}

/// The noun in the plural, by the regular rules of English.
fn plural(noun: &str) -> String {
    let consonant_before_y = |stem: &str| !stem.ends_with(['a', 'e', 'i', 'o', 'u']);
    if let Some(stem) = noun.strip_suffix('y').filter(|stem| consonant_before_y(stem)) {
        return format!("{stem}ies");
    }
    let hisses = ["s", "x", "z", "ch", "sh"].iter().any(|end| noun.ends_with(end));
    format!("{noun}{}", if hisses { "es" } else { "s" })
}

/// Whether a character steers what shows it instead of standing for itself: a control character, or one that turns the
/// direction of text. Names that others chose are shown without.
///
/// ```
/// use forebay_core::steers_display;
///
/// assert!(['\u{1b}', '\n', '\u{202e}'].into_iter().all(steers_display));
/// assert!(!"kv cache, é".contains(steers_display));
/// ```
pub fn steers_display(letter: char) -> bool {
    let turns = matches!(letter, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}');
    turns || letter.is_control()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_is_singular_and_every_other_count_plural() {
        assert_eq!(counted(0, "block"), "0 blocks");
        assert_eq!(counted(1, "block"), "1 block");
        assert_eq!(counted(2_usize, "block"), "2 blocks");
        assert_eq!(counted(u64::MAX, "event"), "18446744073709551615 events");
        assert_eq!(counted("1,024", "stream"), "1,024 streams");
    }

    #[test]
    fn plurals_follow_the_spelling() {
        for (noun, expected) in
            [("miss", "misses"), ("pass", "passes"), ("entry", "entries"), ("way", "ways")]
        {
            assert_eq!(plural(noun), expected);
        }
    }
}
