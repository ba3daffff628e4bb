//! The memory of a device as an option names it.

use core::str::FromStr;

use forebay::Bytes;

/// The least that a number without a unit may say.
const LEAST: Bytes = Bytes::mib(1);

/// Reads a size. A small number without a unit is refused: who writes 16 does not mean 16 bytes.
pub(crate) fn capacity(text: &str) -> Result<Bytes, String> {
    let bytes = Bytes::from_str(text).map_err(|error| error.to_string())?;
    let number = text.trim();
    if bytes < LEAST && number.chars().all(|letter| letter.is_ascii_digit()) {
        return Err(format!(
            "{number} without a unit is {number} bytes: write {number}GiB, or {number}B for bytes"
        ));
    }
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_number_has_a_unit() {
        assert_eq!(capacity("16GiB"), Ok(Bytes::gib(16)));
        assert_eq!(capacity("16B"), Ok(Bytes::new(16)));
        assert_eq!(capacity(" 2097152 "), Ok(Bytes::mib(2)));
        for refused in ["16", " 0 ", "1048575"] {
            assert!(capacity(refused).unwrap_err().contains("GiB, or"), "{refused}");
        }
        assert!(capacity("much").is_err());
    }
}
