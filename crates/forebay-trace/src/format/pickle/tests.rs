//! Pickles written by hand, byte for byte.

use super::*;
use crate::format::FormatError;

const LIMIT: u64 = 1000;

fn refusal(bytes: &[u8]) -> String {
    load(bytes, LIMIT).unwrap_err().to_string()
}

#[test]
fn plain_data_of_every_protocol_is_read() {
    // {"a": [1, -1, 65535, 1 << 40], "b": (True, None)} in the words of protocols 0, 2 and 4.
    for bytes in [
        &b"(dVa\n(lI1\naI-1\naI65535\naL1099511627776L\nasVb\n(I01\nNts."[..],
        b"\x80\x02}(X\x01\0\0\0a](K\x01J\xff\xff\xff\xffM\xff\xff\x8a\x06\0\0\0\0\0\x01eX\x01\0\0\0b\x88N\x86u.",
        b"\x80\x04\x95\0\0\0\0\0\0\0\0}\x94(\x8c\x01a\x94]\x94(K\x01J\xff\xff\xff\xffM\xff\xff\x8a\x06\0\0\0\0\0\x01e\x8c\x01b\x94\x88N\x86\x94u.",
    ] {
        let (heap, root) = load(bytes, LIMIT).unwrap();
        let a = heap.items(heap.entry(root, "a").unwrap()).unwrap();
        let numbers: Vec<Option<u64>> = a.iter().map(|&item| heap.integer(item)).collect();
        assert_eq!(numbers, [Some(1), None, Some(65_535), Some(1 << 40)]);
        let b = heap.items(heap.entry(root, "b").unwrap()).unwrap();
        assert_eq!((heap.integer(b[0]), b.len()), (Some(1), 2));
        assert!(heap.entry(root, "c").is_none());
    }
}

#[test]
fn what_is_kept_is_shared_and_not_copied() {
    // [] kept, then a list of that same list twice.
    let (heap, root) = load(b"\x80\x04]\x94h\0h\0\x86\x94.", LIMIT).unwrap();
    let pair = heap.items(root).unwrap();
    assert_eq!(pair[0], pair[1]);
}

#[test]
fn sharing_within_sharing_stays_small() {
    // Each list holds the one before it twice: 2 to the 60th as a tree.
    let mut bytes = b"\x80\x04]\x94".to_vec();
    for _ in 0..60 {
        bytes.extend_from_slice(b"2\x86\x94");
    }
    bytes.push(b'.');
    let (heap, _) = load(&bytes, LIMIT).unwrap();
    assert_eq!(heap.values.len(), 61);
}

#[test]
fn nothing_is_ever_called() {
    for bytes in [
        &b"cos\nsystem\n(S'true'\ntR."[..],
        b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.",
        b"\x80\x02c__builtin__\nobject\n)\x81.",
        b"(ios\nsystem\n.",
    ] {
        assert!(refusal(bytes).contains("which would run code"), "{}", refusal(bytes));
    }
}

#[test]
fn a_broken_pickle_says_where() {
    for (bytes, part) in [
        (&b"\x80\x04"[..], "byte 2: found the end of the file"),
        (b"\x80\x09.", "protocol 9"),
        (b".", "byte 1: found nothing since the mark"),
        (b"\x80\x04\x8c\xffabc", "255 bytes more"),
        (b"\x80\x04X\xff\xff\xff\xffabc", "4294967295 bytes more"),
        (b"\x80\x04\x8e\xff\xff\xff\xff\xff\xff\xff\xff", "18446744073709551615 bytes more"),
        (b"\x80\x04h\x07.", "a value that was not kept"),
        (b"\x80\x04Na.", "an empty stack"),
        (b"\x80\x04NNa.", "a list to add to"),
        (b"\x80\x04](NNu.", "a dictionary to add"),
        (b"\x80\x04}(Nu.", "a dictionary to add"),
        (b"\x80\x04t.", "no mark"),
        (b"\x80\x04N(.", "byte 5: found nothing since the mark"),
        (b"\x80\x04\xff.", "byte 2: found byte 0xff; expected an instruction"),
        (b"I12x\n.", "not a number"),
        (b"I12", "a line"),
    ] {
        assert!(refusal(bytes).contains(part), "{bytes:?} said {}", refusal(bytes));
    }
}

#[test]
fn values_have_an_end() {
    for filler in [b'N', b']', b'2'] {
        let mut bytes = b"\x80\x04N".to_vec();
        bytes.resize(2000, filler);
        assert!(matches!(load(&bytes, LIMIT), Err(FormatError::TooLarge { what: "values", .. })));
    }
}

#[test]
fn the_last_of_equal_keys_holds_and_huge_dictionaries_are_not_searched() {
    let (heap, root) = load(b"}(U\x01aK\x01U\x01aK\x02u.", LIMIT).unwrap();
    assert_eq!(heap.integer(heap.entry(root, "a").unwrap()), Some(2));
    let mut bytes = b"}(".to_vec();
    for _ in 0..100 {
        bytes.extend_from_slice(b"U\x01aK\x01");
    }
    bytes.extend_from_slice(b"u.");
    let (heap, root) = load(&bytes, LIMIT).unwrap();
    assert!(heap.entry(root, "a").is_none());
}
