//! Suggestions for misspelt keys.

use super::key::Key;

/// The key whose name is nearest to `name`, with at most `most` wrong letters.
pub(super) fn nearest(name: &str, most: usize) -> Option<Key> {
    let wanted: Vec<char> = name.to_lowercase().replace('-', "_").chars().collect();
    // Skip names much longer than any key.
    let longest = Key::ALL.iter().map(|key| key.name().len()).max().unwrap_or(0);
    if wanted.len() > longest.saturating_add(most) {
        return None;
    }
    let distances = Key::ALL.iter().map(|&key| (distance(&wanted, key.name()), key));
    distances.filter(|&(distance, _)| distance <= most).min().map(|(_, key)| key)
}

/// The edit distance: the least number of insertions, deletions, replacements and swaps of neighbours that turn
/// `wanted` into `known`.
fn distance(wanted: &[char], known: &str) -> usize {
    let known: Vec<char> = known.chars().collect();
    // Rows of the table of distances between prefixes: the current one, the last, and the one before that.
    let mut row: Vec<usize> = (0..=known.len()).collect();
    let mut last = row.clone();
    let mut before = row.clone();
    for (i, &letter) in wanted.iter().enumerate() {
        core::mem::swap(&mut before, &mut last);
        core::mem::swap(&mut last, &mut row);
        let at = |row: &[usize], index: usize| row.get(index).copied().unwrap_or(usize::MAX);
        let mut next = vec![i + 1];
        for (j, &other) in known.iter().enumerate() {
            let replaced = at(&last, j).saturating_add(usize::from(letter != other));
            let left_out = at(&last, j + 1).saturating_add(1);
            let put_in = at(&next, j).saturating_add(1);
            let mut least = replaced.min(left_out).min(put_in);
            let swapped = i > 0
                && j > 0
                && wanted.get(i - 1) == Some(&other)
                && known.get(j - 1) == Some(&letter);
            if swapped {
                least = least.min(at(&before, j - 1).saturating_add(1));
            }
            next.push(least);
        }
        row = next;
    }
    row.last().copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn between(one: &str, other: &str) -> usize {
        distance(&one.chars().collect::<Vec<_>>(), other)
    }

    #[test]
    fn distances_are_those_of_the_slips() {
        for (one, other, expected) in [
            ("", "", 0),
            ("", "zero", 4),
            ("zero", "", 4),
            ("zero", "zero", 0),
            ("zeor", "zero", 1),
            ("zer", "zero", 1),
            ("zeero", "zero", 1),
            ("nero", "zero", 1),
            ("maxbytes", "max_bytes", 1),
            ("max_byets", "max_bytes", 1),
            ("abc", "xyz", 3),
        ] {
            assert_eq!(between(one, other), expected, "{one} {other}");
            assert_eq!(between(other, one), expected, "{other} {one}");
        }
    }

    #[test]
    fn capitals_and_dashes_are_seen_through() {
        assert_eq!(nearest("MAX-BYTES", 0), Some(Key::MaxBytes));
        assert_eq!(nearest("pressure", 2), None, "four keys begin so, and none is meant");
        assert_eq!(nearest(&"x".repeat(1_000_000), 2), None);
    }
}
