//! How a device is opened.

use forebay_hal::setters;

/// The options with which a device is opened. The defaults work on every device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenClOptions {
    /// See [`svm`](Self::svm).
    pub svm: bool,
    /// See [`out_of_order`](Self::out_of_order).
    pub out_of_order: bool,
    /// See [`host_copies`](Self::host_copies).
    pub host_copies: Option<HostCopies>,
}

/// What copies ordinary host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCopies {
    /// The driver, with non-blocking calls.
    Driver,
    /// A thread of this library, once the copy's turn in its stream has come. For drivers whose non-blocking calls wait
    /// for the device anyway, as NVIDIA's does above some 16 MiB.
    Thread,
}

impl OpenClOptions {
    /// The defaults: plain memory is buffers, and streams are in-order queues.
    pub fn new() -> Self {
        Self::default()
    }

    setters! {
        /// Allocates plain memory as coarse-grained shared virtual memory, so that its addresses are pointers that
        /// kernels understand. Opening fails on a device without it.
        svm: bool;
        /// Uses out-of-order queues for streams: copies of one `copy_all` may run concurrently. Events keep the order of
        /// a stream's calls. Opening fails on a device without such queues.
        out_of_order: bool;
        /// Sets what copies ordinary host memory. By default the driver on PoCL, where its copies do not block; a
        /// thread on other platforms. The driver always copies pinned memory.
        host_copies: HostCopies;
    }
}
