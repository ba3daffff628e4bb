//! The book by itself: lookups, refusals, words, and the life of pages.

use forebay_core::Bytes;
use proptest::prelude::*;

use super::*;
use crate::PinnedFlags;

/// With numbers and letters attached, to see that they stay where they belong.
type Book = AddressBook<u32, &'static str, char, u8>;

const NONE: PinnedFlags = PinnedFlags::empty();

fn at(address: u64) -> Address {
    Address::new(address)
}

fn span(start: u64, size: u64) -> Span {
    Span::new(at(start), Bytes::new(size)).unwrap()
}

fn memory(
    span: Span,
    kind: MemoryKind,
    flags: PinnedFlags,
    owner: u32,
) -> Entry<u32, &'static str, u8> {
    Entry::Memory(MemoryEntry { span, kind, flags, owner })
}

/// A region 0x1000..0x2000 with page 1 at 0x1000 and page 2, which is pinned, at 0x1100 and 0x1300. Each is 0x100 long.
fn region() -> Book {
    let mut book = Book::default();
    book.insert(Entry::Region(Region::new(span(0x1000, 0x1000), "region")));
    book.insert_page(PageHandle(1), Page::new(Bytes::new(0x100), false, 'a'));
    book.insert_page(PageHandle(2), Page::new(Bytes::new(0x100), true, 'b'));
    for (start, page, owner) in [(0x1000, 1, 10), (0x1100, 2, 11), (0x1300, 2, 13)] {
        book.map(span(start, 0x100), PageHandle(page), owner);
    }
    book
}

#[test]
fn memory_is_found_by_any_part_of_it_until_it_is_taken() {
    let mut book = Book::default();
    book.insert(memory(span(0x1000, 0x100), MemoryKind::Plain, NONE, 1));
    book.insert(memory(span(0x1100, 0x100), MemoryKind::Managed, NONE, 2));
    let owner = |book: &Book, part| book.memory_of(part).map(|memory| memory.owner);
    assert_eq!(owner(&book, span(0x1000, 0x100)), Some(1));
    assert_eq!(owner(&book, span(0x10ff, 1)), Some(1));
    assert_eq!(owner(&book, span(0x10ff, 2)), None, "it ends in other memory");
    assert_eq!(owner(&book, span(0xfff, 1)), None);
    assert_eq!(owner(&book, span(0x1200, 0)), None, "it begins past the end");
    assert_eq!(book.classify(at(0x11ff)).unwrap().span, span(0x1100, 0x100));
    assert!(book.take_memory(at(0x1001), MemoryKind::Plain).is_none(), "not its first byte");
    assert!(book.take_memory(at(0x1000), MemoryKind::Managed).is_none(), "another kind");
    assert!(book.take_region(at(0x1000)).is_none(), "not a region");
    assert_eq!(book.take_memory(at(0x1000), MemoryKind::Plain).unwrap().owner, 1);
    assert!(book.take_memory(at(0x1000), MemoryKind::Plain).is_none(), "taken already");
    assert_eq!((owner(&book, span(0x1000, 1)), book.entries().len()), (None, 1));
}

#[test]
fn the_entry_found_last_is_looked_at_first() {
    let mut book = Book::default();
    book.insert(memory(span(0x1000, 0x100), MemoryKind::Plain, NONE, 1));
    book.insert(memory(span(0x1100, 0x100), MemoryKind::Plain, NONE, 2));
    let mut near = None;
    for (address, owner) in [(0x1000, Some(1)), (0x10ff, Some(1)), (0x1100, Some(2)), (0, None)] {
        let found = book.find_near(&mut near, at(address));
        assert_eq!(found.and_then(Entry::memory).map(|memory| memory.owner), owner);
    }
}

#[test]
fn every_shared_byte_is_an_overlap() {
    let mut book = Book::default();
    book.insert(memory(span(0x4000, 0x1000), MemoryKind::Registered, NONE, 0));
    for taken in [span(0x4000, 1), span(0x3fff, 2), span(0x4fff, 1), span(0x3000, 0x4000)] {
        assert!(book.overlapping(taken).is_some(), "{taken}");
    }
    for free in [span(0x3fff, 1), span(0x5000, 1), span(0x4000, 0), span(0x4800, 0)] {
        assert!(book.overlapping(free).is_none(), "{free}");
    }
}

#[test]
fn addresses_are_classified_by_what_is_there() {
    let mut book = region();
    let kinds =
        [MemoryKind::Plain, MemoryKind::Managed, MemoryKind::Pinned, MemoryKind::Registered];
    for (index, kind) in kinds.into_iter().enumerate() {
        book.insert(memory(span(0x4000 + index as u64 * 0x10, 0x10), kind, NONE, 0));
    }
    for (address, kind, span) in [
        (0x4001, PointerKind::Device, span(0x4000, 0x10)),
        (0x401f, PointerKind::Managed, span(0x4010, 0x10)),
        (0x4020, PointerKind::Pinned, span(0x4020, 0x10)),
        (0x4030, PointerKind::Pinned, span(0x4030, 0x10)),
        (0x10ff, PointerKind::Mapped, span(0x1000, 0x100)),
        (0x1100, PointerKind::Pinned, span(0x1100, 0x100)),
        (0x1200, PointerKind::Reserved, span(0x1000, 0x1000)),
    ] {
        assert_eq!(book.classify(at(address)), Some(PointerClass { kind, span }), "{address:#x}");
    }
    assert_eq!((book.classify(at(0xfff)), book.classify(at(0x4040))), (None, None));
}

#[test]
fn work_is_refused_at_the_first_address_that_it_may_not_use() {
    let mut book = region();
    book.set_access(span(0x1000, 0x100), Access::ReadWrite);
    book.set_access(span(0x1100, 0x100), Access::Read);
    book.insert(memory(span(0x4000, 0x100), MemoryKind::Plain, NONE, 0));
    book.insert(memory(span(0x4100, 0x100), MemoryKind::Pinned, NONE, 0));
    book.insert(memory(span(0x5000, 0x100), MemoryKind::Registered, PinnedFlags::MAPPED, 0));
    let (read, both) = (Access::Read, Access::ReadWrite);
    for (part, need, refused) in [
        (span(0x1000, 0x200), read, None),
        (span(0x1080, 0x40), both, None),
        (span(0x1080, 0x100), both, Some((0x1100, Reason::NoAccess(read)))),
        (span(0x1000, 0x201), read, Some((0x1200, Reason::NoPage))),
        (span(0x1300, 1), read, Some((0x1300, Reason::NoAccess(Access::None)))),
        (span(0x4000, 0x100), both, None),
        (span(0x40ff, 2), read, Some((0x4100, Reason::PastEnd))),
        (span(0x4100, 1), read, Some((0x4100, Reason::NotMapped))),
        (span(0x5000, 0x100), both, None),
        (span(0x3fff, 2), read, Some((0x3fff, Reason::Unknown))),
    ] {
        let refused = refused.map(|(address, why)| Unusable { at: at(address), why });
        assert_eq!(book.check_mapped(part, need).err(), refused, "{part}");
        let other = refused.filter(|refused| refused.why != Reason::NotMapped);
        assert_eq!(
            book.check(part, need).err(),
            other,
            "{part}, of a device that uses it unmapped"
        );
    }
}

#[test]
fn mappings_are_taken_whole_and_side_by_side() {
    let book = region();
    for (part, found) in [
        (span(0x1000, 0x100), Ok(vec![10])),
        (span(0x1000, 0x200), Ok(vec![10, 11])),
        (span(0x1000, 0x180), Err(at(0x1100))),
        (span(0x1080, 0x80), Err(at(0x1080))),
        (span(0x1000, 0x400), Err(at(0x1200))),
        (span(0x1000, 0), Err(at(0x1000))),
        (span(0x3000, 0x100), Err(at(0x3000))),
    ] {
        let owners = book.whole_mappings(part).map(|(region, mappings)| {
            assert_eq!(region.owner, "region");
            mappings.iter().map(|mapping| mapping.owner).collect()
        });
        assert_eq!(owners, found, "{part}");
    }
    let region = book.region_at(at(0x1fff)).unwrap();
    let owners = |part| region.overlapping(part).map(|one| one.owner).collect::<Vec<_>>();
    assert_eq!(owners(span(0x10ff, 0x202)), [10, 11, 13]);
    assert_eq!(owners(span(0x1200, 0x100)), []);
    assert_eq!(owners(span(0x1180, 0)), []);
}

#[test]
fn a_released_page_goes_with_its_last_mapping() {
    let mut book = region();
    assert!(book.release_page(PageHandle(2)).is_none(), "it is mapped at two places");
    assert!(book.page(PageHandle(2)).is_none(), "its handle is not valid any more");
    let (gone, dead) = book.unmap(span(0x1000, 0x200));
    assert_eq!(gone.iter().map(|mapping| mapping.owner).collect::<Vec<_>>(), [10, 11]);
    assert_eq!((dead.len(), book.pages().len()), (0, 2));
    let (gone, dead) = book.unmap(span(0x1300, 0x100));
    assert_eq!(
        (gone.len(), dead.iter().map(|page| page.owner).collect::<Vec<_>>()),
        (1, vec!['b'])
    );
    assert_eq!(book.release_page(PageHandle(1)).map(|page| page.owner), Some('a'));
    assert!(book.release_page(PageHandle(1)).is_none());
    assert_eq!(book.pages().len(), 0);
    assert_eq!(book.take_region(at(0x1000)).map(|region| region.mappings().len()), Some(0));
}

#[test]
fn errors_say_what_is_there() {
    let mut book = region();
    book.insert(memory(span(0x4000, 0x100), MemoryKind::Pinned, NONE, 0));
    for (address, words) in [
        (0x1000, "the start of a region 0x1000..0x2000 (4.00 KiB), where page 1 is mapped"),
        (0x1210, "528 B into a region 0x1000..0x2000 (4.00 KiB), where nothing is mapped"),
        (0x4000, "the start of pinned memory 0x4000..0x4100 (256 B)"),
        (0x4002, "2 B into pinned memory 0x4000..0x4100 (256 B)"),
        (0x9000, "where this device has no memory"),
    ] {
        assert_eq!(book.describe(at(address)), words);
    }
    let error = book.remove_memory(Call::Free, "address", at(0x4000), MemoryKind::Plain);
    let given = "0x4000, the start of pinned memory 0x4000..0x4100 (256 B)";
    let allowed = "the first address of plain memory that was allocated and not freed";
    assert_eq!(error.unwrap_err(), invalid(Call::Free, "address", given, allowed));
    let error = book.check_managed(Call::Advise, span(0x4000, 1)).unwrap_err();
    assert!(error.to_string().contains("begins the start of pinned memory"), "{error}");
    let part = span(0x40f0, 0x20);
    let words = book.explain(part, book.check(part, Access::Read).unwrap_err());
    assert_eq!(
        words,
        format!(
            "{part}, of which 0x4100 is where this device has no memory, past the end of the allocation"
        )
    );
}

#[test]
fn figures_are_kept_by_kind() {
    let mut figures = Figures::default();
    for kind in [MemoryKind::Plain, MemoryKind::Managed, MemoryKind::Pinned, MemoryKind::Plain] {
        figures.add(kind, Bytes::new(3));
    }
    figures.subtract(MemoryKind::Managed, Bytes::new(1));
    let [held, managed, pinned] = [6, 2, 3].map(Bytes::new);
    assert_eq!(figures, Figures { held, managed, pinned });
}

proptest! {
    /// Lookups give what a search through all entries gives.
    #[test]
    fn lookups_miss_nothing(gaps in prop::collection::vec((0_u64..4, 1_u64..6), 0..12), start in 0_u64..100, size in 0_u64..20) {
        let (mut book, mut spans, mut next) = (Book::default(), Vec::new(), 0);
        for (gap, size) in gaps {
            let one = span(next + gap, size);
            book.insert(memory(one, MemoryKind::Plain, NONE, 0));
            spans.push(one);
            next = one.end().get();
        }
        let part = span(start, size);
        let inside = spans.iter().copied().find(|one| one.contains(part.start()));
        prop_assert_eq!(book.find(part.start()).map(Entry::span), inside);
        let last = spans.iter().copied().rfind(|one| one.overlaps(part));
        prop_assert_eq!(book.overlapping(part).map(Entry::span), last);
        let whole = inside.filter(|one| one.contains_span(part));
        prop_assert_eq!(book.memory_of(part).map(|memory| memory.span), whole);
    }
}
