//! How a device is opened.

/// How a device is opened. The defaults work on every device.
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

/// Who copies ordinary host memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum HostCopies {
    /// The driver, by calls that do not block.
    Driver,
    /// A thread of the library's, when the copy's turn in its stream has come. For drivers whose calls wait for
    /// the device all the same, as NVIDIA's does for more than some 16 MiB.
    Thread,
}

impl OpenClOptions {
    /// Plain memory is buffers, and streams are queues that keep their order.
    pub fn new() -> Self {
        Self::default()
    }

    /// Takes plain memory from coarse-grained shared virtual memory, so that its addresses are pointers
    /// that kernels understand. A device without it refuses to open.
    #[must_use]
    pub fn svm(mut self, svm: bool) -> Self {
        self.svm = svm;
        self
    }

    /// Makes streams of out-of-order queues: copies of one `copy_all` may run side by side. The order of
    /// a stream's calls is kept by events. A device without such queues refuses to open.
    #[must_use]
    pub fn out_of_order(mut self, out_of_order: bool) -> Self {
        self.out_of_order = out_of_order;
        self
    }

    /// Says who copies ordinary host memory. Without it the driver does on platforms that are known not to
    /// wait, which is PoCL, and a thread elsewhere. Pinned memory is always the driver's to copy.
    #[must_use]
    pub fn host_copies(mut self, who: HostCopies) -> Self {
        self.host_copies = Some(who);
        self
    }
}
