//! Small copies packed into one piece of staging memory.
//!
//! ```text
//!   items    a ─> 100..200   b ─> 200..250   c ─> 900..910
//!   load     [ a a a a b b | c ]
//!   runs       a and b: one copy to 100..250, c: one copy to 900..910
//! ```

use core::ops::Range;

/// A small copy.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Item {
    /// The address of the host's side.
    pub host: u64,
    /// The address of the device's side.
    pub device: u64,
    /// The bytes.
    pub size: u64,
}

/// Bytes of a load that are one copy: adjacent in staging memory and on the device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Run {
    /// Where it begins in staging memory.
    pub offset: u64,
    /// Where it begins on the device.
    pub device: u64,
    /// The bytes.
    pub size: u64,
}

/// Items that are staged together.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Load {
    /// Which items. A load's last item may continue in the next load.
    pub items: Range<usize>,
    /// Bytes of the first item that earlier loads contain.
    pub skip: u64,
    /// The bytes in staging memory.
    pub size: u64,
    /// The copies.
    pub runs: Vec<Run>,
}

impl Load {
    /// Its items, cut to what of them is in it, and their positions in staging memory.
    pub fn parts<'a>(
        &self,
        items: &'a [Item],
    ) -> impl Iterator<Item = (Item, Range<usize>)> + use<'a> {
        let (mut skip, mut offset, end) = (self.skip, 0, self.size);
        let items = items.get(self.items.clone()).unwrap_or_default();
        items.iter().map(move |item| {
            let (host, size) = (item.host + skip, (item.size - skip).min(end - offset));
            let range = |at: u64| usize::try_from(at).unwrap_or(usize::MAX);
            let place = range(offset)..range(offset + size);
            (skip, offset) = (0, offset + size);
            (Item { host, size, ..*item }, place)
        })
    }
}

/// The loads of a list of items, in order. Every byte is in exactly one run, and items later in the list are copied
/// later.
#[derive(Clone, Debug)]
pub struct Packing {
    room: u64,
    next: usize,
    skip: u64,
}

impl Packing {
    /// Loads of at most `room` bytes; one at least.
    pub fn new(room: u64) -> Self {
        Self { room: room.max(1), next: 0, skip: 0 }
    }

    /// The next load of `items`; `None` after the last.
    pub fn load(&mut self, items: &[Item]) -> Option<Load> {
        while items.get(self.next)?.size == self.skip {
            (self.next, self.skip) = (self.next + 1, 0);
        }
        let (first, skip) = (self.next, self.skip);
        let (mut size, mut runs) = (0, Vec::<Run>::new());
        while let Some(item) = items.get(self.next)
            && size < self.room
        {
            let part = (item.size - self.skip).min(self.room - size);
            let device = item.device.wrapping_add(self.skip);
            match runs.last_mut() {
                Some(run) if run.device.wrapping_add(run.size) == device => run.size += part,
                _ if part == 0 => {}
                _ => runs.push(Run { offset: size, device, size: part }),
            }
            size += part;
            self.skip += part;
            if self.skip < item.size {
                break;
            }
            (self.next, self.skip) = (self.next + 1, 0);
        }
        let end = if self.skip > 0 { self.next + 1 } else { self.next };
        Some(Load { items: first..end, skip, size, runs })
    }
}
