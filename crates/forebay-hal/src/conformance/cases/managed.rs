//! Managed memory.

use forebay_core::{Address, Bytes, DeviceOrdinal, MIB, Span};

use super::prelude::*;
use crate::{Advice, Call, Location, StreamHandle};

cases! { Managed "managed":
    zero_managed_bytes_is_null needs MANAGED,
    host_and_device_share_managed_memory needs MANAGED | DATA,
    managed_memory_is_counted_apart needs MANAGED,
    prefetching_changes_no_byte needs MANAGED | DATA,
    prefetching_keeps_the_order_of_its_stream needs MANAGED | DATA | HOST_TASKS,
    advice_changes_no_byte needs MANAGED | DATA,
    spans_outside_managed_memory_are_refused needs MANAGED,
    prefetching_on_a_dead_stream_is_refused needs MANAGED,
    prefetching_to_no_device_is_refused needs MANAGED,
    double_free_of_managed_memory_is_refused needs MANAGED,
    more_managed_memory_than_there_is_is_refused needs MANAGED,
}

/// A value of managed memory, seen by the host in place.
struct Managed {
    start: Address,
    size: u64,
}

impl Managed {
    fn new(bench: &Bench, size: u64) -> Step<Self> {
        Ok(Self { start: bench.allocate_managed(size)?, size })
    }

    fn span(&self) -> Step<Span> {
        Ok(Span::new(self.start, Bytes::new(self.size))?)
    }

    fn host_write(&self, bytes: &[u8]) -> Verdict {
        host_write(self.start, bytes)
    }

    fn host_read(&self) -> Step<Vec<u8>> {
        host_read(self.start, self.size)
    }
}

fn raw_free(bench: &Bench, address: Address) -> crate::Result<()> {
    let Some(memory) = bench.device().managed_memory() else { return Ok(()) };
    // SAFETY: no work uses the address; where the call must be refused, it is none of its own.
    unsafe { memory.free_managed(address) }
}

fn zero_managed_bytes_is_null(bench: &Bench) -> Verdict {
    let memory = bench.managed_memory()?.allocate_managed(Bytes::ZERO)?;
    ensure_equal!("the address of no bytes", memory, Address::NULL);
    raw_free(bench, Address::NULL)?;
    ensure_equal!("bytes held for no bytes", bench.held()?, Bytes::ZERO);
    Ok(())
}

fn host_and_device_share_managed_memory(bench: &Bench) -> Verdict {
    for size in [1, 4095, 4097, MIB + 1] {
        let managed = Managed::new(bench, size)?;
        managed.host_write(&picture(1, size))?;
        bench.ensure_holds("seen by the device", managed.start, &picture(1, size))?;
        bench.write(managed.start, &picture(2, size))?;
        ensure_bytes("seen by the host", &managed.host_read()?, &picture(2, size))?;
        bench.fill(managed.start, size, 0x31, StreamHandle::DEFAULT)?;
        bench.synchronize(StreamHandle::DEFAULT)?;
        let found = managed.host_read()?;
        ensure_bytes("filled by the device", &found, &vec![0x31; found.len()])?;
        // And as the host's side of a copy.
        let plain = bench.allocate(size)?;
        let stream = StreamHandle::DEFAULT;
        bench.copy(device(plain, 0), Location::Host(managed.start), size, stream)?;
        bench.ensure_holds("copied from it", plain, &found)?;
    }
    Ok(())
}

fn managed_memory_is_counted_apart(bench: &Bench) -> Verdict {
    let memory = bench.allocate_managed(4 * MIB)?;
    ensure_equal!("bytes of managed memory", bench.info()?.managed, Bytes::mib(4));
    bench.free_managed(memory)?;
    ensure_equal!("bytes of it after free", bench.info()?.managed, Bytes::ZERO);
    Ok(())
}

fn prefetching_changes_no_byte(bench: &Bench) -> Verdict {
    let (size, stream) = (2 * MIB + 77, bench.stream()?);
    let managed = Managed::new(bench, size)?;
    managed.host_write(&picture(3, size))?;
    let part = Span::new(at(managed.start, 4097), Bytes::new(MIB))?;
    for (span, to) in [
        (managed.span()?, Some(bench.ordinal())),
        (managed.span()?, None),
        (part, Some(bench.ordinal())),
        (part, None),
    ] {
        bench.managed_memory()?.prefetch(span, to, stream)?;
        bench.synchronize(stream)?;
        let what = format!("after {span} was sent to {to:?}");
        ensure_bytes(&what, &managed.host_read()?, &picture(3, size))?;
        bench.ensure_holds(&what, managed.start, &picture(3, size))?;
    }
    Ok(())
}

fn prefetching_keeps_the_order_of_its_stream(bench: &Bench) -> Verdict {
    let (stream, managed) = (bench.stream()?, Managed::new(bench, 4096)?);
    managed.host_write(&[1; 4096])?;
    let gate = Latch::close(bench, stream)?;
    bench.managed_memory()?.prefetch(managed.span()?, Some(bench.ordinal()), stream)?;
    bench.fill(managed.start, 4096, 2, stream)?;
    bench.managed_memory()?.prefetch(managed.span()?, None, stream)?;
    bench.stays_pending("a stream held before a prefetch", stream)?;
    gate.open()?;
    bench.done_soon("a stream with two prefetches", stream)?;
    ensure_bytes("what was filled between them", &managed.host_read()?, &[2; 4096])
}

fn advice_changes_no_byte(bench: &Bench) -> Verdict {
    let size = MIB + 5;
    let managed = Managed::new(bench, size)?;
    managed.host_write(&picture(4, size))?;
    let here = Some(bench.ordinal());
    for advice in [
        Advice::ReadMostly,
        Advice::NotReadMostly,
        Advice::PreferredLocation(here),
        Advice::PreferredLocation(None),
        Advice::NoPreferredLocation,
        Advice::AccessedBy(here),
        Advice::AccessedBy(None),
        Advice::NotAccessedBy(here),
        Advice::NotAccessedBy(None),
    ] {
        bench.managed_memory()?.advise(managed.span()?, advice)?;
        let what = format!("after {advice:?}");
        ensure_bytes(&what, &managed.host_read()?, &picture(4, size))?;
        bench.ensure_holds(&what, managed.start, &picture(4, size))?;
    }
    Ok(())
}

fn spans_outside_managed_memory_are_refused(bench: &Bench) -> Verdict {
    // Whole pages, so that no device has bytes to spare behind them.
    let size = 2 * MIB;
    let (one, two) = (bench.allocate_managed(size)?, bench.allocate_managed(size)?);
    let (low, high) = (one.min(two), one.max(two));
    let plain = bench.allocate(size)?;
    let across = high.offset_from(low).unwrap_or_default().get() + size;
    for (what, start, size) in [
        ("one byte too many", high, size + 1),
        ("the byte after the last", at(high, size), 1),
        ("two allocations and what lies between", low, across),
        ("plain memory", plain, size),
        ("null", Address::NULL, 4096),
    ] {
        let span = Span::new(start, Bytes::new(size))?;
        let managed = bench.managed_memory()?;
        let fetched = managed.prefetch(span, None, StreamHandle::DEFAULT);
        invalid(Call::Prefetch, what, fetched)?;
        invalid(Call::Advise, what, managed.advise(span, Advice::ReadMostly))?;
    }
    Ok(())
}

fn prefetching_on_a_dead_stream_is_refused(bench: &Bench) -> Verdict {
    let (stream, managed) = (bench.stream()?, Managed::new(bench, 4096)?);
    bench.destroy_stream(stream)?;
    let result = bench.managed_memory()?.prefetch(managed.span()?, None, stream);
    invalid(Call::Prefetch, "a destroyed stream", result)
}

fn prefetching_to_no_device_is_refused(bench: &Bench) -> Verdict {
    let managed = Managed::new(bench, 4096)?;
    let nowhere = Some(DeviceOrdinal(u32::MAX - 1));
    let memory = bench.managed_memory()?;
    let fetched = memory.prefetch(managed.span()?, nowhere, StreamHandle::DEFAULT);
    invalid(Call::Prefetch, "a device that is not there", fetched)?;
    let advised = memory.advise(managed.span()?, Advice::PreferredLocation(nowhere));
    invalid(Call::Advise, "a device that is not there", advised)
}

fn double_free_of_managed_memory_is_refused(bench: &Bench) -> Verdict {
    let (memory, plain) = (bench.allocate_managed(8192)?, bench.allocate(8192)?);
    invalid(Call::FreeManaged, "an inner address", raw_free(bench, at(memory, 4096)))?;
    invalid(Call::FreeManaged, "plain memory", raw_free(bench, plain))?;
    // SAFETY: no work uses it; the call must be refused.
    invalid(Call::Free, "managed memory", unsafe { bench.device().free(memory) })?;
    bench.free_managed(memory)?;
    invalid(Call::FreeManaged, "freed memory", raw_free(bench, memory))
}

fn more_managed_memory_than_there_is_is_refused(bench: &Bench) -> Verdict {
    let total = bench.info()?.total;
    // Managed memory may exceed the device on hardware that moves it out, but not the numbers.
    let beyond = Bytes::new(total.get() + MIB);
    match bench.managed_memory()?.allocate_managed(beyond) {
        Ok(memory) => raw_free(bench, memory)?,
        error => {
            out_of_memory(Call::AllocateManaged, beyond, error)?;
        }
    }
    for size in [u64::MAX, 1 << 63] {
        let result = bench.managed_memory()?.allocate_managed(Bytes::new(size));
        refused(Call::AllocateManaged, &format!("{size} B"), result)?;
    }
    Ok(())
}
