//! Regions of rows within larger memory.

/// A region of rows, or of rows in slices, within larger host memory and a larger array. All in elements.
///
/// ```
/// # use forebay::transfer::{Region, TransferEngine};
/// # use forebay::{HostDevice, Pool};
/// # let device = HostDevice::open()?;
/// # let (pool, engine) = (Pool::new(&device)?, TransferEngine::new(&device)?);
/// let picture: Vec<u8> = (0..16).collect(); // four rows of four
/// let mut array = pool.default_stream().zeros::<u8>(6)?;
/// // The left three columns of two rows, packed on the device.
/// let region = Region::rows(3, 2).host_pitch(4, 0);
/// engine.scope(|transfers| transfers.upload(&picture, &mut array).region(region).submit().map(drop))??;
/// assert_eq!(array.to_vec()?, [0, 1, 2, 4, 5, 6]);
/// # Ok::<(), forebay::Error>(())
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Region {
    pub(super) extent: [usize; 3],
    /// Distances from one row to the next, and from one slice to the next.
    pub(super) host: [usize; 2],
    pub(super) device: [usize; 2],
}

impl Region {
    /// `rows` rows of `width` elements, contiguous on both sides.
    pub fn rows(width: usize, rows: usize) -> Self {
        Self::volume(width, rows, 1)
    }

    /// `slices` slices of `rows` rows of `width` elements, contiguous on both sides.
    pub fn volume(width: usize, rows: usize, slices: usize) -> Self {
        let packed = [width, width.saturating_mul(rows)];
        Self { extent: [width, rows, slices], host: packed, device: packed }
    }

    /// Sets the distances between rows and between slices in host memory.
    pub fn host_pitch(mut self, row: usize, slice: usize) -> Self {
        self.host = [row, slice];
        self
    }

    /// Sets the distances between rows and between slices in the array.
    pub fn device_pitch(mut self, row: usize, slice: usize) -> Self {
        self.device = [row, slice];
        self
    }
}
