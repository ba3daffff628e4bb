//! How a device is opened.

/// How a device is opened. The defaults work on every device.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct OpenClOptions {
    /// See [`svm`](Self::svm).
    pub svm: bool,
    /// See [`out_of_order`](Self::out_of_order).
    pub out_of_order: bool,
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
}
