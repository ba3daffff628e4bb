//! Another device's memory.

use forebay_core::{Address, Bytes, DeviceOrdinal, Span};

use crate::{Call, Result, StreamHandle, valid_span};

/// An address on a device of the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerLocation {
    /// The device.
    pub device: DeviceOrdinal,
    /// The address there.
    pub address: Address,
}

/// A copy from one device to another.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerCopy {
    to: PeerLocation,
    from: PeerLocation,
    size: Bytes,
}

impl PeerCopy {
    /// `size` bytes from `from` to `to`.
    pub fn new(to: PeerLocation, from: PeerLocation, size: Bytes) -> Result<Self> {
        valid_span(Call::CopyPeer, "to", to.address, size)?;
        valid_span(Call::CopyPeer, "from", from.address, size)?;
        Ok(Self { to, from, size })
    }

    /// The destination.
    pub const fn to(&self) -> PeerLocation {
        self.to
    }

    /// The source.
    pub const fn from(&self) -> PeerLocation {
        self.from
    }

    /// The number of bytes.
    pub const fn size(&self) -> Bytes {
        self.size
    }

    /// The bytes written, on the destination device.
    pub fn written(&self) -> Result<Span> {
        valid_span(Call::CopyPeer, "to", self.to.address, self.size)
    }

    /// The bytes read, on the source device.
    pub fn read(&self) -> Result<Span> {
        valid_span(Call::CopyPeer, "from", self.from.address, self.size)
    }
}

/// Access to another device's memory.
///
/// # Safety
///
/// An implementation promises:
///
/// * `can_reach` is true of a device itself. An ordinal that names no device is refused by every
///   call.
/// * `copy_peer` works between any two devices of the kind, enabled or not; enabling only makes the copy direct.
/// * Enabling twice, and disabling what is not enabled, is refused with
///   [`Error::Invalid`](crate::Error::Invalid).
pub unsafe trait Peers {
    /// Whether this device can read and write `peer`'s memory directly.
    fn can_reach(&self, peer: DeviceOrdinal) -> Result<bool>;

    /// Lets this device read and write `peer`'s memory directly.
    fn enable_peer(&self, peer: DeviceOrdinal) -> Result<()>;

    /// Undoes [`enable_peer`](Self::enable_peer).
    fn disable_peer(&self, peer: DeviceOrdinal) -> Result<()>;

    /// Enqueues a copy between devices on a stream of this one.
    ///
    /// # Safety
    ///
    /// * Both spans are memory of their devices, until the copy is done.
    unsafe fn copy_peer(&self, copy: &PeerCopy, stream: StreamHandle) -> Result<()>;
}
