use forebay_core::Bytes;
use forebay_hal::StreamHandle;

use super::*;
use crate::Tag;

#[test]
fn the_last_block_at_an_address_is_the_one_that_is_named() {
    let mut former = RecentFrees::default();
    let block = |address, size, requested| RecentFree {
        address: Address::new(address),
        size: Bytes::new(size),
        requested: Bytes::new(requested),
        tag: Tag::NONE,
        stream: StreamHandle::DEFAULT,
    };
    former.remember(block(1024, 1024, 1));
    former.remember(block(0x10_000, 512, 2));
    former.remember(block(1536, 1024, 3));
    let asked = |address| former.at(Address::new(address)).map(|found| found.requested.get());
    assert_eq!(asked(1024), Some(1));
    assert_eq!(asked(1535), Some(1));
    assert_eq!(asked(1536), Some(3));
    assert_eq!(asked(2560), None);
    assert_eq!(asked(0x10_1ff), Some(2));
}

#[test]
fn the_oldest_are_forgotten_first() {
    let mut former = RecentFrees::default();
    for number in 0..=MAX as u64 {
        former.remember(RecentFree {
            address: Address::new(number * 512),
            size: Bytes::new(512),
            requested: Bytes::new(512),
            tag: Tag::NONE,
            stream: StreamHandle::DEFAULT,
        });
    }
    assert_eq!(former.blocks.len(), MAX);
    assert_eq!(former.at(Address::new(0)), None);
    assert!(former.at(Address::new(512)).is_some());
}
