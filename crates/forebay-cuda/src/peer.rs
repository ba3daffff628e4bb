//! Other devices' memory.

use forebay_core::DeviceOrdinal;
use forebay_hal::{Asked, Call, PeerCopy, Peers, Result, StreamHandle, invalid};
use forebay_sync::lock;

use crate::context::PeerUse;
use crate::device::CudaDevice;
use crate::sys::{Code, RawContext};

impl CudaDevice {
    /// The context in which `device` keeps its memory.
    fn context_of(&self, call: Call, device: DeviceOrdinal) -> Result<RawContext> {
        if device == self.context.ordinal {
            return Ok(self.context.raw);
        }
        self.driver.checked_ordinal(call, "device", device)?;
        Ok(self.driver.primary_context(call, device)?.context.raw)
    }

    /// Takes this device's part in a peer's being reachable back.
    pub(crate) fn let_go_of_peer(&self, call: Call, peer: DeviceOrdinal) -> Result<()> {
        let mut peers = lock(&self.context.peers);
        let Some(found) = peers.get_mut(&peer.0) else { return Ok(()) };
        if found.count > 1 {
            found.count -= 1;
            return Ok(());
        }
        if found.was_enabled {
            peers.remove(&peer.0);
            return Ok(());
        }
        let theirs = self.context_of(call, peer)?;
        // SAFETY: both contexts are live.
        let disabled = self.context.call(|table| unsafe { table.context_disable_peer(theirs) });
        // It is off the books only when the driver has done it.
        disabled
            .map_err(self.refusing(call, || Asked::of("peer", peer, "a peer that was enabled")))?;
        peers.remove(&peer.0);
        Ok(())
    }
}

// SAFETY: ordinals are held against the driver's count; copies go from context to context, which
// works between any two. What is enabled is counted for each device, and for the context they share.
unsafe impl Peers for CudaDevice {
    fn can_reach(&self, peer: DeviceOrdinal) -> Result<bool> {
        let call = Call::CanReach;
        let number = self.driver.checked_ordinal(call, "peer", peer)?;
        if peer == self.context.ordinal {
            return Ok(true);
        }
        let mut can = 0;
        let told = self.context.call(|table| {
            // SAFETY: the answer is written to a place of our own.
            unsafe { table.device_can_access_peer(&raw mut can, self.context.device, number) }
        });
        told.map_err(self.refusing(call, || Asked::of("peer", peer, "a device of this machine")))?;
        Ok(can != 0)
    }

    fn enable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        let call = Call::EnablePeer;
        self.driver.checked_ordinal(call, "peer", peer)?;
        let mut enabled = lock(&self.enabled_peers);
        if peer == self.context.ordinal || enabled.contains(&peer) {
            let given = format!("device {peer}, which is reachable already");
            return Err(invalid(call, "peer", given, "another device, not yet enabled"));
        }
        let theirs = self.context_of(call, peer)?;
        let mut peers = lock(&self.context.peers);
        if let Some(found) = peers.get_mut(&peer.0) {
            found.count += 1;
        } else {
            // SAFETY: both contexts are live.
            let outcome =
                self.context.call(|table| unsafe { table.context_enable_peer(theirs, 0) });
            let was_enabled = match outcome {
                Ok(()) => false,
                // Another library was first: then it is not ours to undo.
                Err(refusal) if refusal.code == Code::ERROR_PEER_ACCESS_ALREADY_ENABLED => true,
                Err(refusal) => {
                    let asked = Asked::of("peer", peer, "a device that this one can reach");
                    return Err(self.refused(call, refusal, &asked));
                }
            };
            peers.insert(peer.0, PeerUse { count: 1, was_enabled });
        }
        enabled.insert(peer);
        Ok(())
    }

    fn disable_peer(&self, peer: DeviceOrdinal) -> Result<()> {
        let call = Call::DisablePeer;
        self.driver.checked_ordinal(call, "peer", peer)?;
        let mut enabled = lock(&self.enabled_peers);
        if !enabled.contains(&peer) {
            let given = format!("device {peer}, which is not enabled");
            return Err(invalid(call, "peer", given, "a device that enable_peer enabled"));
        }
        self.let_go_of_peer(call, peer)?;
        enabled.remove(&peer);
        Ok(())
    }

    unsafe fn copy_peer(&self, copy: &PeerCopy, stream: StreamHandle) -> Result<()> {
        let call = Call::CopyPeer;
        let core = self.stream(call, stream)?;
        let (to, from) = (copy.to(), copy.from());
        let to_context = self.context_of(call, to.device)?;
        let from_context = self.context_of(call, from.device)?;
        if copy.size().is_zero() {
            return Ok(());
        }
        // SAFETY: live contexts and a live stream; both spans are memory until the copy is done, as
        // the caller promised.
        let copied = self.context.call(|table| unsafe {
            table.memcpy_peer(
                to.address.get(),
                to_context,
                from.address.get(),
                from_context,
                copy.size().get(),
                core.raw,
            )
        });
        copied.map_err(|refusal| {
            let given = format!(
                "{} B from {} of device {} to {} of device {}",
                copy.size().get(),
                from.address,
                from.device,
                to.address,
                to.device
            );
            self.refused(call, refusal, &Asked::of("copy", given, "memory of both devices"))
        })
    }
}
