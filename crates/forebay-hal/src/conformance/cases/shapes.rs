//! Copies in two and three dimensions.

use forebay_core::{Address, Bytes};

use super::prelude::*;
use crate::{Copy, Extent, Location, Pitch, StreamHandle};

cases! { Transfers "transfers":
    planes_from_the_host needs DATA,
    planes_to_the_host needs DATA,
    planes_on_the_device needs DATA,
    volumes_from_the_host needs DATA,
    volumes_to_the_host needs DATA,
    volumes_on_the_device needs DATA,
    interleaved_rows_on_the_device needs DATA,
    single_rows_and_slices_do_not_read_their_pitch needs DATA,
    rows_without_gaps_are_one_piece needs DATA,
    a_thousand_rows_of_one_byte needs DATA,
    a_pitch_above_four_gibibytes needs DATA | VIRTUAL_MEMORY,
}

/// Bytes before and behind each side, which must stay as they are.
const MARGIN: u64 = 33;

/// Where the two sides of a copy lie.
#[derive(Clone, Copy, Debug)]
enum Way {
    HostToDevice,
    DeviceToHost,
    DeviceToDevice,
}

/// The sizes of a copy, in plain numbers: width, rows, slices, and each side's pitches.
#[derive(Clone, Copy, Debug)]
struct Shape {
    width: u64,
    rows: u64,
    slices: u64,
    to: (u64, u64),
    from: (u64, u64),
}

impl Shape {
    const fn plane(width: u64, rows: u64, to_row: u64, from_row: u64) -> Self {
        Self { width, rows, slices: 1, to: (to_row, 0), from: (from_row, 0) }
    }

    fn extent(self) -> Extent {
        Extent { width: Bytes::new(self.width), rows: self.rows, slices: self.slices }
    }

    /// From the first byte to the last on a side with this pitch.
    fn reach(self, (row, slice): (u64, u64)) -> u64 {
        (self.slices - 1) * slice + (self.rows - 1) * row + self.width
    }

    /// What the written side holds afterwards, by the plainest of loops.
    fn applied(self, background: &[u8], source: &[u8]) -> Step<Vec<u8>> {
        let mut right = background.to_vec();
        for slice in 0..self.slices {
            for row in 0..self.rows {
                for byte in 0..self.width {
                    let to = MARGIN + slice * self.to.1 + row * self.to.0 + byte;
                    let from = MARGIN + slice * self.from.1 + row * self.from.0 + byte;
                    right[index(to)?] = source[index(from)?];
                }
            }
        }
        Ok(right)
    }
}

fn pitch((row, slice): (u64, u64)) -> Pitch {
    Pitch { row: Bytes::new(row), slice: Bytes::new(slice) }
}

/// One side of a copy: bytes on the host, or on the device.
enum TestMemory {
    Host(HostBytes),
    Device(Address),
}

impl TestMemory {
    fn on_host(bench: &Bench, bytes: &[u8]) -> Self {
        Self::Host(bench.host(bytes))
    }

    fn on_device(bench: &Bench, bytes: &[u8]) -> Step<Self> {
        let memory = bench.allocate(bytes.len() as u64)?;
        bench.write(memory, bytes)?;
        Ok(Self::Device(memory))
    }

    fn location(&self) -> Location {
        match self {
            Self::Host(bytes) => bytes.place_at(MARGIN),
            Self::Device(memory) => device(*memory, MARGIN),
        }
    }

    fn ensure(&self, what: &str, bench: &Bench, right: &[u8]) -> Verdict {
        match self {
            Self::Host(bytes) => bytes.ensure(what, right),
            Self::Device(memory) => bench.ensure_holds(what, *memory, right),
        }
    }
}

/// Makes the copy, and looks at every byte of both sides, gaps and margins too.
fn ensure_copied(bench: &Bench, way: Way, shape: Shape) -> Verdict {
    let sizes = [shape.reach(shape.to) + 2 * MARGIN, shape.reach(shape.from) + 2 * MARGIN];
    let (background, source) = (picture(1, sizes[0]), picture(2, sizes[1]));
    let (to, from) = match way {
        Way::HostToDevice => {
            (TestMemory::on_device(bench, &background)?, TestMemory::on_host(bench, &source))
        }
        Way::DeviceToHost => {
            (TestMemory::on_host(bench, &background), TestMemory::on_device(bench, &source)?)
        }
        Way::DeviceToDevice => {
            (TestMemory::on_device(bench, &background)?, TestMemory::on_device(bench, &source)?)
        }
    };
    let copy = Copy::volumes(
        to.location(),
        pitch(shape.to),
        from.location(),
        pitch(shape.from),
        shape.extent(),
    )?;
    bench.enqueue(&copy, StreamHandle::DEFAULT)?;
    bench.synchronize(StreamHandle::DEFAULT)?;
    let right = shape.applied(&background, &source)?;
    to.ensure(&format!("{way:?} of {shape:?}"), bench, &right)?;
    let what = format!("the source of {way:?} of {shape:?}");
    from.ensure(&what, bench, &source)
}

/// Planes with gaps on neither side, on one, on the other, on both, of even and odd sizes.
const PLANES: [Shape; 9] = [
    Shape::plane(1, 1, 1, 1),
    Shape::plane(64, 4, 64, 64),
    Shape::plane(64, 4, 128, 64),
    Shape::plane(64, 4, 64, 96),
    Shape::plane(13, 7, 17, 19),
    Shape::plane(1, 50, 3, 2),
    Shape::plane(511, 5, 512, 513),
    Shape::plane(513, 5, 1024, 515),
    Shape::plane(4095, 9, 4096, 4097),
];

/// The same in three dimensions. A slice's pitch is a multiple of a row's.
const VOLUMES: [Shape; 6] = [
    Shape { width: 16, rows: 4, slices: 3, to: (16, 64), from: (16, 64) },
    Shape { width: 16, rows: 4, slices: 3, to: (16, 96), from: (16, 64) },
    Shape { width: 16, rows: 4, slices: 3, to: (32, 128), from: (24, 120) },
    Shape { width: 13, rows: 5, slices: 4, to: (17, 17 * 6), from: (19, 19 * 5) },
    Shape { width: 1, rows: 2, slices: 7, to: (2, 6), from: (3, 6) },
    Shape { width: 511, rows: 3, slices: 3, to: (513, 513 * 3), from: (512, 512 * 5) },
];

fn planes_from_the_host(bench: &Bench) -> Verdict {
    PLANES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::HostToDevice, shape))
}

fn planes_to_the_host(bench: &Bench) -> Verdict {
    PLANES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::DeviceToHost, shape))
}

fn planes_on_the_device(bench: &Bench) -> Verdict {
    PLANES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::DeviceToDevice, shape))
}

fn volumes_from_the_host(bench: &Bench) -> Verdict {
    VOLUMES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::HostToDevice, shape))
}

fn volumes_to_the_host(bench: &Bench) -> Verdict {
    VOLUMES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::DeviceToHost, shape))
}

fn volumes_on_the_device(bench: &Bench) -> Verdict {
    VOLUMES.into_iter().try_for_each(|shape| ensure_copied(bench, Way::DeviceToDevice, shape))
}

fn interleaved_rows_on_the_device(bench: &Bench) -> Verdict {
    // Rows 0, 2, 4 ... of one block go to its rows 1, 3, 5 ...
    let (width, rows) = (37_u64, 12_u64);
    let size = 2 * width * rows;
    let before = picture(3, size);
    let memory = bench.allocate(size)?;
    bench.write(memory, &before)?;
    let pitch = Bytes::new(2 * width);
    let extent = (Bytes::new(width), rows);
    let copy = Copy::planes(device(memory, width), pitch, device(memory, 0), pitch, extent)?;
    bench.enqueue(&copy, StreamHandle::DEFAULT)?;
    let mut right = before;
    for pair in right.chunks_exact_mut(index(2 * width)?) {
        let (even, odd) = pair.split_at_mut(index(width)?);
        odd.copy_from_slice(even);
    }
    bench.ensure_holds("odd rows after even ones", memory, &right)
}

fn single_rows_and_slices_do_not_read_their_pitch(bench: &Bench) -> Verdict {
    for shape in [
        // One row, one slice: neither pitch counts, not even an impossible one.
        Shape { width: 40, rows: 1, slices: 1, to: (0, 0), from: (u64::MAX, u64::MAX) },
        // One slice.
        Shape { width: 40, rows: 3, slices: 1, to: (48, u64::MAX), from: (41, 1) },
        // One row in each slice.
        Shape { width: 40, rows: 1, slices: 3, to: (0, 48), from: (u64::MAX, 41) },
    ] {
        for way in [Way::HostToDevice, Way::DeviceToHost, Way::DeviceToDevice] {
            ensure_copied(bench, way, shape)?;
        }
    }
    Ok(())
}

fn rows_without_gaps_are_one_piece(bench: &Bench) -> Verdict {
    let shape = Shape { width: 64, rows: 64, slices: 16, to: (64, 4096), from: (64, 4096) };
    ensure_copied(bench, Way::DeviceToDevice, shape)?;
    // Gaps on one side alone: the other must not be taken for whole.
    let shape = Shape { width: 64, rows: 64, slices: 4, to: (64, 4096), from: (65, 65 * 64) };
    ensure_copied(bench, Way::DeviceToDevice, shape)
}

fn a_thousand_rows_of_one_byte(bench: &Bench) -> Verdict {
    ensure_copied(bench, Way::HostToDevice, Shape::plane(1, 1000, 7, 3))?;
    ensure_copied(bench, Way::DeviceToHost, Shape::plane(1, 1000, 3, 7))
}

fn a_pitch_above_four_gibibytes(bench: &Bench) -> Verdict {
    // Two rows, the second mapped more than 4 GiB behind the first, at an odd pitch.
    let grain = bench.grain()?;
    let far = (4_u64 << 30).next_multiple_of(grain) + grain;
    let region = bench.region(far + grain)?;
    let (near_page, far_page) = (bench.page(grain)?, bench.page(grain)?);
    bench.map_open(region.start(), near_page, grain)?;
    bench.map_open(Address::new(region.start().get() + far), far_page, grain)?;
    let (width, shift) = (1021_u64, 5_u64);
    let bytes = picture(4, 2 * width);
    let from = bench.host(&bytes);
    let copy = Copy::planes(
        device(region.start(), 0),
        Bytes::new(far + shift),
        from.location(),
        Bytes::new(width),
        (Bytes::new(width), 2),
    )?;
    bench.enqueue(&copy, StreamHandle::DEFAULT)?;
    let (first, second) = bytes.split_at(index(width)?);
    bench.ensure_holds("the first row", region.start(), first)?;
    let there = Address::new(region.start().get() + far + shift);
    bench.ensure_holds("the row 4 GiB on", there, second)?;

    let back = bench.blank(2 * width, 0)?;
    let copy = Copy::planes(
        back.location(),
        Bytes::new(width),
        device(region.start(), 0),
        Bytes::new(far + shift),
        (Bytes::new(width), 2),
    )?;
    bench.enqueue(&copy, StreamHandle::DEFAULT)?;
    bench.synchronize(StreamHandle::DEFAULT)?;
    back.ensure("both rows, gathered", &bytes)
}
