//! What is pooled in a context, for all devices opened in it.
//!
//! None of it is ever destroyed, because destroying streams and events while other threads call the driver can crash it.

use std::sync::Arc;

use crate::context::Context;
use crate::event::EventPool;
use crate::kernel::Kernel;
use crate::staging::StagingBuffers;
use crate::stream::{SideStreams, StreamCore, StreamPool};
use crate::sys::RawStream;
use crate::task::Tasks;

/// A context and its pools.
#[derive(Debug)]
pub(crate) struct ContextPools {
    pub(crate) context: &'static Context,
    pub(crate) streams: StreamPool,
    pub(crate) events: &'static EventPool,
    pub(crate) tasks: Tasks,
    pub(crate) stages: StagingBuffers,
    pub(crate) sides: SideStreams,
    pub(crate) lz4: Kernel,
    pub(crate) copy: Kernel,
    /// The legacy default stream, which all devices opened in the context share.
    pub(crate) default_stream: Arc<StreamCore>,
}

impl ContextPools {
    /// Keeps a context until the end of the process, with empty pools.
    pub(crate) fn leak(context: Context) -> &'static Self {
        let context: &'static Context = Box::leak(Box::new(context));
        let events: &'static EventPool = Box::leak(Box::new(EventPool::new(context)));
        Box::leak(Box::new(Self {
            context,
            streams: StreamPool::new(context),
            events,
            tasks: Tasks::new(context),
            stages: StagingBuffers::new(context, events),
            sides: SideStreams::new(context),
            lz4: Kernel::lz4(context),
            copy: Kernel::copy(context),
            default_stream: Arc::new(StreamCore::lent(RawStream::NULL)),
        }))
    }
}
