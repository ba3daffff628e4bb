//! Other devices of the same machine.

use forebay_core::{Bytes, DeviceOrdinal};
use forebay_hal::{Access, Call, PeerCopy, Peers, Result, StreamHandle, invalid};

use super::SimDevice;
use super::transfer::peer_moves;
use crate::engine::{Job, State, Work, unknown_device};

impl SimDevice {
    /// Refuses an ordinal that names no device of this machine.
    fn known_peer(&self, state: &State, call: Call, peer: DeviceOrdinal) -> Result<()> {
        let count = state.spaces.len();
        if peer.0 as usize >= count {
            return Err(unknown_device(call, peer, count));
        }
        Ok(())
    }
}

// SAFETY: all devices of a machine are behind one engine, so every copy is possible, enabled or
// not; what is enabled is a table of pairs that is looked up before it is changed.
unsafe impl Peers for SimDevice {
    fn can_reach(&self, peer: DeviceOrdinal) -> Result<bool> {
        let state = self.engine.enter(self.ordinal, Call::CanReach, Bytes::ZERO)?;
        self.known_peer(&state, Call::CanReach, peer)?;
        Ok(true)
    }

    fn enable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        let call = Call::EnablePeer;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        self.known_peer(&state, call, peer)?;
        if peer == self.ordinal || !state.peers.insert((self.ordinal, peer)) {
            let given = format!("sim:{peer}, the device itself or enabled already");
            return Err(invalid(call, "peer", given, "another device, not enabled yet"));
        }
        Ok(())
    }

    fn disable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        let call = Call::DisablePeer;
        let (mut state, verdict) = self.engine.enter_release(self.ordinal, call)?;
        self.known_peer(&state, call, peer)?;
        if !state.peers.remove(&(self.ordinal, peer)) {
            return Err(invalid(call, "peer", peer, "a device that was enabled"));
        }
        verdict
    }

    unsafe fn copy_peer(&self, copy: &PeerCopy, stream: StreamHandle) -> Result<()> {
        let call = Call::CopyPeer;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let stream = state.stream(call, self.ordinal, stream)?;
        let (to, from) = (copy.to().device, copy.from().device);
        self.known_peer(&state, call, to)?;
        self.known_peer(&state, call, from)?;
        if copy.size().is_zero() {
            return Ok(());
        }
        let space = state.space(call, to)?;
        let written = space.resolve(call, "to", copy.written()?, Access::ReadWrite)?;
        let read = state.space(call, from)?.resolve(call, "from", copy.read()?, Access::Read)?;
        let duration = state.costs().to_peer(copy.size());
        let (moves, uses) = peer_moves((to, written), (from, read));
        let mut job = Job::named(call.name());
        job.uses = uses;
        job.duration = duration;
        state.enqueue(stream, job, Work::Moves(moves));
        drop(self.engine.relieve(state, stream));
        Ok(())
    }
}
