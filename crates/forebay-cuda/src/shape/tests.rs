use forebay_core::{Address, Bytes};
use forebay_hal::{Copy, Extent, Pitch, Place};

use super::*;

fn copy(to: (u64, u64), from: (u64, u64), extent: (u64, u64, u64)) -> Copy {
    let pitch = |(row, slice)| Pitch { row: Bytes::new(row), slice: Bytes::new(slice) };
    let (width, rows, slices) = extent;
    Copy::volumes(
        Place::Device(Address::new(1 << 40)),
        pitch(to),
        Place::Host(Address::new(1 << 30)),
        pitch(from),
        Extent { width: Bytes::new(width), rows, slices },
    )
    .unwrap()
}

/// The bytes of a copy as pairs of addresses, by the contract's own rows.
fn pairs_of_rows(copy: &Copy) -> Vec<(u64, u64)> {
    let bytes = |(to, from): (forebay_core::Span, forebay_core::Span)| {
        (0..to.size().get()).map(move |byte| (to.start().get() + byte, from.start().get() + byte))
    };
    let mut pairs: Vec<_> = copy.rows().flat_map(bytes).collect();
    pairs.sort_unstable();
    pairs
}

fn pairs_of_pieces(shape: &CopyShape, room: u64, max_pitch: u64) -> Vec<(u64, u64)> {
    let mut pairs = Vec::new();
    for piece in shape.pieces(Bytes::new(room), max_pitch) {
        assert!(piece.bytes().get() <= room, "{piece:?} in {room} B");
        for row in 0..piece.rows {
            let (to, from) = (piece.to.on(row, 0).start, piece.from.on(row, 0).start);
            pairs.extend((0..piece.width).map(|byte| (to + byte, from + byte)));
        }
    }
    pairs.sort_unstable();
    pairs
}

#[test]
fn pieces_have_every_byte_of_the_shape_once() {
    for (to, from, extent) in [
        ((0, 0), (0, 0), (100, 1, 1)),
        ((16, 0), (16, 0), (16, 7, 1)),
        ((20, 0), (16, 0), (16, 7, 1)),
        ((16, 112), (16, 112), (16, 7, 3)),
        ((16, 112), (16, 160), (16, 7, 3)),
        ((20, 140), (24, 240), (16, 7, 3)),
        ((0, 64), (0, 32), (30, 1, 5)),
    ] {
        let copy = copy(to, from, extent);
        let (shape, right) = (CopyShape::new(&copy), pairs_of_rows(&copy));
        assert_eq!(shape.bytes(), copy.extent().bytes());
        for room in [1, 3, 16, 17, 40, 64, 1 << 20] {
            for max_pitch in [4, 1 << 30] {
                let found = pairs_of_pieces(&shape, room, max_pitch);
                assert_eq!(found, right, "{to:?} {from:?} {extent:?} in {room} B");
            }
        }
    }
}

#[test]
fn what_lies_side_by_side_is_one() {
    let whole = CopyShape::new(&copy((16, 112), (16, 112), (16, 7, 3)));
    assert_eq!((whole.width, whole.rows, whole.slices), (336, 1, 1));
    let slices = CopyShape::new(&copy((16, 112), (16, 160), (16, 7, 3)));
    assert_eq!((slices.width, slices.rows, slices.slices), (112, 3, 1));
    assert_eq!((slices.to.row, slices.from.row), (112, 160));
}
