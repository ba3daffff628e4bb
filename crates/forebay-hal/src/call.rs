//! The names of all calls, for errors, counters and injected faults.

use core::fmt;

/// Which part of the contract a call belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum CallGroup {
    /// The device's properties and memory figures.
    Info,
    /// Plain memory.
    Memory,
    /// Host memory that the device can access directly.
    Pinned,
    /// Memory that migrates between host and device.
    Managed,
    /// Address ranges, separate from the memory mapped there.
    Virtual,
    /// Streams and events.
    Streams,
    /// Copies and fills.
    Transfers,
    /// Another device's memory.
    Peers,
    /// Another process's memory.
    Sharing,
}

macro_rules! calls {
    ($($group:ident: $($(#[$doc:meta])* $call:ident = $name:literal),+;)+) => {
        /// One call of the contract.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Call {
            $($(
                #[doc = concat!("`", $name, "`")]
                $(#[$doc])*
                $call,
            )+)+
        }

        impl Call {
            /// Every call.
            pub const ALL: &'static [Self] = &[$($(Self::$call,)+)+];

            /// The name of the method.
            pub const fn name(self) -> &'static str {
                match self { $($(Self::$call => $name,)+)+ }
            }

            /// The part of the contract it belongs to.
            pub const fn group(self) -> CallGroup {
                match self { $($(Self::$call)|+ => CallGroup::$group,)+ }
            }
        }
    };
}

calls! {
    Info:
        /// Not a trait method: each kind of device is opened in its own way.
        Open = "open", MemoryInfo = "memory_info", Classify = "classify";
    Memory: Allocate = "allocate", Free = "free";
    Pinned: AllocatePinned = "allocate_pinned", FreePinned = "free_pinned", Register = "register",
        Unregister = "unregister", DeviceAddress = "device_address";
    Managed: AllocateManaged = "allocate_managed", FreeManaged = "free_managed",
        Prefetch = "prefetch", Advise = "advise";
    Virtual: Reserve = "reserve", ReleaseRegion = "release_region", CreatePage = "create_page",
        ReleasePage = "release_page", Map = "map", SetAccess = "set_access", Unmap = "unmap";
    Streams: CreateStream = "create_stream", DestroyStream = "destroy_stream",
        StreamId = "stream_id", QueryStream = "query_stream",
        SynchronizeStream = "synchronize_stream", SynchronizeDevice = "synchronize_device",
        EnqueueHost = "enqueue_host", CreateEvent = "create_event", DestroyEvent = "destroy_event",
        RecordEvent = "record_event", WaitEvent = "wait_event", QueryEvent = "query_event",
        SynchronizeEvent = "synchronize_event", Elapsed = "elapsed",
        AdoptStream = "adopt_stream", ForgetStream = "forget_stream",
        /// Not a call of the contract: devices that can launch kernels use this name for it.
        Launch = "launch";
    Transfers: Copy = "copy", Fill = "fill", Decompress = "decompress";
    Peers: CanReach = "can_reach", EnablePeer = "enable_peer", DisablePeer = "disable_peer",
        CopyPeer = "copy_peer";
    Sharing: ExportPage = "export_page", ImportPage = "import_page";
}

impl fmt::Display for Call {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}
