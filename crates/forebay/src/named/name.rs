//! Names of shared buffers.

/// The longest name. A socket address has 107 bytes; `forebay/`, a user id and a slash take 19.
pub(crate) const LONGEST: usize = 80;

/// Whether this is a valid name of a buffer.
pub(crate) fn is_valid(name: &str) -> bool {
    (1..=LONGEST).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"._-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_short_and_plain() {
        for good in ["a", "Weights-7b.v2_x", &"n".repeat(LONGEST)] {
            assert!(is_valid(good), "{good}");
        }
        for bad in ["", "a/b", "a b", "a\0b", "ä", "a\n", &"n".repeat(LONGEST + 1)] {
            assert!(!is_valid(bad), "{bad}");
        }
    }
}
