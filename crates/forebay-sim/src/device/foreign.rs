//! Streams created by another library on the same device; here the test plays that library.

use forebay_core::Bytes;
use forebay_hal::{
    Call, Capabilities, ForeignStreams, Priority, Result, StreamHandle, fresh_handle, invalid,
};

use super::SimDevice;
use crate::machine::HandleReuse;

impl SimDevice {
    /// Creates a stream as another library would, outside the contract. The device does not know it until it is adopted
    /// by the returned value.
    pub fn make_foreign_stream(&self) -> u64 {
        let mut state = self.engine.lock();
        let again = state.options.handles == HandleReuse::AtOnce;
        let spare = if again { state.spare_foreign.pop() } else { None };
        let raw = spare.unwrap_or_else(fresh_handle);
        let stream = state.add_lane(self.ordinal, Priority::Normal);
        state.foreign.insert((self.ordinal, raw), stream);
        raw
    }

    /// Destroys such a stream as its creator would, adopted or not; enqueued work still runs. Returns whether the
    /// stream existed.
    pub fn destroy_foreign_stream(&self, raw: u64) -> bool {
        let mut state = self.engine.lock();
        let Some(stream) = state.foreign.remove(&(self.ordinal, raw)) else { return false };
        if state.options.handles == HandleReuse::AtOnce {
            state.spare_foreign.push(raw);
        }
        state.close(stream);
        true
    }
}

// SAFETY: what is adopted is a table of its own, looked up by every call that takes a stream and
// not by the one that destroys them; entries are counted.
unsafe impl ForeignStreams for SimDevice {
    unsafe fn adopt_stream(&self, raw: u64) -> Result<StreamHandle> {
        let call = Call::AdoptStream;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        // The calling thread's default stream has no other value here than its handle's.
        let own = StreamHandle(raw) == StreamHandle::PER_THREAD
            && self.can(Capabilities::PER_THREAD_STREAMS);
        let default = raw == StreamHandle::DEFAULT.0 || own;
        if !default && !state.foreign.contains_key(&(self.ordinal, raw)) {
            let given = format!("{raw:#x}");
            return Err(invalid(call, "raw", given, "a live stream that others made"));
        }
        let handle = StreamHandle(raw);
        *state.adopted.entry((self.ordinal, handle)).or_default() += 1;
        Ok(handle)
    }

    fn forget_stream(&self, stream: StreamHandle) -> Result<()> {
        let call = Call::ForgetStream;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        // By either name of it.
        let own = stream == StreamHandle::of_this_thread();
        let key = (self.ordinal, if own { StreamHandle::PER_THREAD } else { stream });
        match state.adopted.get_mut(&key) {
            None => Err(invalid(call, "stream", stream, "a stream that was adopted")),
            Some(1) => {
                state.adopted.remove(&key);
                verdict
            }
            Some(count) => {
                *count -= 1;
                verdict
            }
        }
    }
}
