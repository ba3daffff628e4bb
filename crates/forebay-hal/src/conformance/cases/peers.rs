//! Another device's memory.

use forebay_core::{Address, Bytes, DeviceOrdinal, MIB};

use super::prelude::*;
use crate::{Call, PeerCopy, PeerLocation, StreamHandle};

cases! { Peers "peers":
    a_device_reaches_itself needs PEERS,
    a_device_that_is_not_there_is_refused needs PEERS,
    the_two_of_a_pair_differ needs PEERS wants Pair,
    enabling_twice_is_refused needs PEERS wants Pair,
    disabling_what_is_not_enabled_is_refused needs PEERS wants Pair,
    peer_copies_arrive_whole_and_alone needs PEERS | DATA wants Pair,
    peer_copies_need_no_enabling needs PEERS | DATA wants Pair,
    peer_copies_keep_the_order_of_their_stream needs PEERS | DATA | HOST_TASKS wants Pair,
    peer_copies_on_a_dead_stream_are_refused needs PEERS wants Pair,
    an_event_orders_two_devices needs PEERS | DATA | HOST_TASKS wants Pair,
    a_devices_memory_is_its_own needs PEERS wants Pair,
}

/// Room around what is written, which must stay as it is.
const MARGIN: u64 = 33;

/// A device no machine has.
const NOWHERE: DeviceOrdinal = DeviceOrdinal(u32::MAX - 1);

fn place(bench: &Bench, address: Address) -> PeerLocation {
    PeerLocation { device: bench.ordinal(), address }
}

/// Enqueues a copy between devices on a stream of `bench`.
fn enqueue(
    bench: &Bench,
    to: PeerLocation,
    from: PeerLocation,
    size: u64,
    stream: StreamHandle,
) -> crate::Result<()> {
    let copy = PeerCopy::new(to, from, Bytes::new(size))?;
    let Some(peers) = bench.device().peers() else { return Ok(()) };
    // SAFETY: both sides are memory of the case's own, given back when both devices are done; or
    // the call must be refused.
    unsafe { peers.copy_peer(&copy, stream) }
}

fn a_device_reaches_itself(bench: &Bench) -> Verdict {
    ensure!(bench.peers()?.can_reach(bench.ordinal())?, "a device cannot reach its own memory");
    Ok(())
}

fn a_device_that_is_not_there_is_refused(bench: &Bench) -> Verdict {
    let (peers, memory) = (bench.peers()?, bench.allocate(4096)?);
    let what = "a device that is not there";
    invalid(Call::CanReach, what, peers.can_reach(NOWHERE))?;
    invalid(Call::EnablePeer, what, peers.enable_peer(NOWHERE))?;
    invalid(Call::DisablePeer, what, peers.disable_peer(NOWHERE))?;
    let (here, there) = (place(bench, memory), PeerLocation { device: NOWHERE, address: memory });
    let out = enqueue(bench, there, here, 16, StreamHandle::DEFAULT);
    invalid(Call::CopyPeer, what, out)?;
    let back = enqueue(bench, here, there, 16, StreamHandle::DEFAULT);
    invalid(Call::CopyPeer, what, back)
}

fn the_two_of_a_pair_differ(bench: &Bench) -> Verdict {
    let partner = bench.partner()?;
    ensure!(
        bench.ordinal() != partner.ordinal(),
        "both devices of the pair are number {}",
        bench.ordinal()
    );
    let kinds = [bench, partner].map(|bench| bench.device().descriptor().kind);
    ensure_equal!("the kind of the second", kinds[1], kinds[0]);
    // The answer may be no; it has to be one.
    bench.peers()?.can_reach(partner.ordinal())?;
    partner.peers()?.can_reach(bench.ordinal())?;
    Ok(())
}

fn enabling_twice_is_refused(bench: &Bench) -> Verdict {
    let (peers, there) = (bench.peers()?, bench.partner()?.ordinal());
    ensure!(peers.can_reach(there)?, "the devices of a pair must reach each other");
    for _ in 0..2 {
        peers.enable_peer(there)?;
        invalid(Call::EnablePeer, "a peer enabled already", peers.enable_peer(there))?;
        peers.disable_peer(there)?;
    }
    Ok(())
}

fn disabling_what_is_not_enabled_is_refused(bench: &Bench) -> Verdict {
    let (peers, there) = (bench.peers()?, bench.partner()?.ordinal());
    invalid(Call::DisablePeer, "a peer never enabled", peers.disable_peer(there))?;
    // One direction is not the other.
    peers.enable_peer(there)?;
    let back = bench.partner()?.peers()?.disable_peer(bench.ordinal());
    invalid(Call::DisablePeer, "the other direction", back)?;
    peers.disable_peer(there)?;
    invalid(Call::DisablePeer, "a peer disabled already", peers.disable_peer(there))
}

/// Copies there and back, and looks at every byte around.
fn ensure_there_and_back(bench: &Bench) -> Verdict {
    let (partner, stream) = (bench.partner()?, bench.stream()?);
    for size in [1, 3, 511, 513, 4095, 4097, MIB + 1] {
        let (background, bytes) = (picture(1, size + 2 * MARGIN), picture(2, size));
        let here = bench.allocate(size)?;
        let there = partner.allocate(size + 2 * MARGIN)?;
        bench.write(here, &bytes)?;
        partner.write(there, &background)?;
        let (from, to) = (place(bench, here), place(partner, at(there, MARGIN)));
        enqueue(bench, to, from, size, stream)?;
        bench.synchronize(stream)?;
        let found = partner.read(there, size + 2 * MARGIN)?;
        let mut right = background;
        right[index(MARGIN)?..index(MARGIN + size)?].copy_from_slice(&bytes);
        ensure_bytes(&format!("{size} B to the other device"), &found, &right)?;
        // Back again, over what was there, by the same device.
        bench.write(here, &picture(3, size))?;
        enqueue(bench, from, to, size, stream)?;
        bench.synchronize(stream)?;
        bench.ensure_holds(&format!("{size} B back"), here, &bytes)?;
    }
    enqueue(bench, place(bench, Address::NULL), place(partner, Address::NULL), 0, stream)?;
    Ok(())
}

fn peer_copies_arrive_whole_and_alone(bench: &Bench) -> Verdict {
    let there = bench.partner()?.ordinal();
    bench.peers()?.enable_peer(there)?;
    ensure_there_and_back(bench)?;
    bench.peers()?.disable_peer(there)?;
    Ok(())
}

fn peer_copies_need_no_enabling(bench: &Bench) -> Verdict {
    ensure_there_and_back(bench)
}

fn peer_copies_keep_the_order_of_their_stream(bench: &Bench) -> Verdict {
    let (partner, stream) = (bench.partner()?, bench.stream()?);
    let (here, there) = (bench.allocate(4096)?, partner.allocate(4096)?);
    bench.write(here, &[0; 4096])?;
    partner.write(there, &[0; 4096])?;
    let gate = Latch::close(bench, stream)?;
    bench.fill(here, 4096, 1, stream)?;
    enqueue(bench, place(partner, there), place(bench, here), 4096, stream)?;
    bench.fill(here, 4096, 2, stream)?;
    bench.stays_pending("a held stream with a peer copy", stream)?;
    gate.open()?;
    bench.done_soon("the stream of a peer copy", stream)?;
    partner.ensure_holds("the other device afterwards", there, &[1; 4096])
}

fn peer_copies_on_a_dead_stream_are_refused(bench: &Bench) -> Verdict {
    let (partner, stream) = (bench.partner()?, bench.stream()?);
    let (here, there) = (bench.allocate(64)?, partner.allocate(64)?);
    bench.destroy_stream(stream)?;
    for size in [64, 0] {
        let result = enqueue(bench, place(partner, there), place(bench, here), size, stream);
        invalid(Call::CopyPeer, "a destroyed stream", result)?;
    }
    Ok(())
}

fn an_event_orders_two_devices(bench: &Bench) -> Verdict {
    let partner = bench.partner()?;
    let (first, second) = (bench.stream()?, partner.stream()?);
    let (here, there) = (bench.allocate(4096)?, partner.allocate(4096)?);
    for round in 1..10 {
        let (event, seen) = (bench.event()?, partner.blank(4096, 0)?);
        let gate = Latch::close(bench, first)?;
        bench.fill(here, 4096, round, first)?;
        enqueue(bench, place(partner, there), place(bench, here), 4096, first)?;
        bench.device().record_event(event, first)?;
        partner.device().wait_event(second, event)?;
        partner.copy(seen.location(), device(there, 0), 4096, second)?;
        if round == 1 {
            partner.stays_pending("the second device", second)?;
        }
        gate.open()?;
        // The first device's work has to get on for the second's to be done.
        bench.synchronize(first)?;
        partner.done_soon("the second device", second)?;
        seen.ensure(&format!("round {round}"), &[round; 4096])?;
    }
    Ok(())
}

fn a_devices_memory_is_its_own(bench: &Bench) -> Verdict {
    let partner = bench.partner()?;
    let memory = bench.allocate(2 * MIB)?;
    ensure_equal!("bytes the other device holds", partner.held()?, Bytes::ZERO);
    let known = partner.device().classify(memory)?;
    ensure!(known.is_none(), "the other device knows {memory} as {known:?}");
    // SAFETY: no work uses it; the call must be refused.
    let freed = unsafe { partner.device().free(memory) };
    invalid(Call::Free, "another device's memory", freed)
}
