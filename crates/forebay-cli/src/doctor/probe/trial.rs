//! A small piece of work that exercises a device: memory, a page mapped into a region if the device has pages, a
//! stream, a fill, two copies. "Ready" means that this succeeded.
//!
//! ```text
//!   page, or memory ──fill──► region ──copy──► plain memory ──copy──► the host, where it is looked at
//! ```

use std::sync::Arc;

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::{
    Access, Call, Copy, Device, Error, Fill, Location, PageHandle, PageOptions, Pattern, Priority,
    Result, Stream, VirtualMemory,
};

/// What is written: no value that fresh or forgotten memory is likely to hold.
const PATTERN: Pattern = Pattern::U32(0x5a17_c3e9);

/// How much is tried where there are no pages.
const WITHOUT_PAGES: Bytes = Bytes::kib(64);

/// Tries `device`, and gives back everything it took. After an error the device is to be dropped,
/// which takes the rest back.
pub(super) fn trial(device: &Arc<dyn Device>) -> Result<()> {
    let pages = device.virtual_memory();
    let size = pages.map_or(WITHOUT_PAGES, |pages| pages.granularity().minimum.bytes());
    let plain = device.allocate(size, Alignment::BLOCK)?;
    let mapped = pages.map(|pages| mapped(device, pages, size)).transpose()?;
    let first = match &mapped {
        Some((at, _)) => at.start(),
        None => device.allocate(size, Alignment::BLOCK)?,
    };
    let stream = Stream::new(device, Priority::Normal)?;
    let length = size.to_usize().map_err(|error| Error::quantity(Call::Copy, "size", &error))?;
    let mut back = vec![0_u8; length];
    let fill = Fill::linear(first, size, PATTERN)?;
    let over = Copy::linear(Location::Device(plain), Location::Device(first), size)?;
    let host = Location::Host(Address::of_pointer(back.as_mut_ptr()));
    let out = Copy::linear(host, Location::Device(plain), size)?;
    // SAFETY: what is filled and copied was taken above and is given back below, after the stream
    // was waited for; on an error the device keeps its own memory until its work is done, and
    // `back` is left alone.
    let done = unsafe {
        device
            .fill(&fill, stream.handle())
            .and_then(|()| device.copy(&over, stream.handle()))
            .and_then(|()| device.copy(&out, stream.handle()))
    };
    if let Err(error) = done.and_then(|()| stream.synchronize()) {
        // A copy may still be on its way there: better lost than written to when it is others'.
        core::mem::forget(back);
        return Err(error);
    }
    if let Some(at) = back.chunks(4).position(|bytes| bytes != PATTERN.four_bytes()) {
        let at = at * 4;
        let found = back.get(at..at + 4).unwrap_or_default();
        let reason = format!(
            "byte {at} on was filled with {:02x?} and came back as {found:02x?}",
            PATTERN.four_bytes()
        );
        return Err(Error::Lost { call: Call::Copy, reason: reason.into() });
    }
    drop(stream);
    // SAFETY: the stream was waited for, so no work uses the page, the region or the memory; all
    // are this function's own.
    unsafe {
        match pages.zip(mapped) {
            Some((pages, (at, page))) => {
                pages.unmap(at)?;
                pages.release_page(page)?;
                pages.release_region(at.start())?;
            }
            None => device.free(first)?,
        }
        device.free(plain)
    }
}

/// A page of `size`, mapped where the device may write.
fn mapped(
    device: &Arc<dyn Device>,
    pages: &dyn VirtualMemory,
    size: Bytes,
) -> Result<(Span, PageHandle)> {
    let region = pages.reserve(size, Alignment::ONE)?;
    let page = pages.create_page(size, PageOptions::default())?;
    pages.map(region.start(), page)?;
    let at = Span::new(region.start(), size)
        .map_err(|error| Error::quantity(Call::Map, "at", &error))?;
    // SAFETY: the page was mapped there just now, and no work uses it yet.
    unsafe { pages.set_access(at, Access::ReadWrite, device.descriptor().ordinal) }?;
    Ok((at, page))
}

#[cfg(test)]
mod tests {
    use forebay_sim::{Fault, FaultKind, SimMachine, When};

    use super::*;

    fn simulated() -> (SimMachine, Arc<dyn Device>) {
        let machine = SimMachine::builder().build().unwrap();
        let device = machine.device(0).unwrap();
        (machine, device)
    }

    #[test]
    fn nothing_is_left_behind() {
        let (machine, device) = simulated();
        trial(&device).unwrap();
        assert_eq!(machine.census(), SimMachine::builder().build().unwrap().census());
        assert_eq!(machine.findings(), []);
        let host = forebay_host::HostDevice::open().unwrap();
        let device: Arc<dyn Device> = Arc::<forebay_host::HostDevice>::clone(&host);
        trial(&device).unwrap();
        device.synchronize_device().unwrap();
        let machine = SimMachine::builder()
            .without(forebay_hal::Capabilities::VIRTUAL_MEMORY)
            .build()
            .unwrap();
        let segments: Arc<dyn Device> = machine.device(0).unwrap();
        let fresh = machine.census();
        trial(&segments).unwrap();
        assert_eq!(machine.census(), fresh);
        assert_eq!(host.census(), forebay_host::Census::default());
    }

    #[test]
    fn whichever_call_fails_is_told() {
        for call in [
            Call::Allocate,
            Call::Reserve,
            Call::CreatePage,
            Call::Map,
            Call::SetAccess,
            Call::CreateStream,
            Call::Fill,
            Call::Copy,
            Call::SynchronizeStream,
            Call::Unmap,
            Call::ReleasePage,
            Call::ReleaseRegion,
            Call::Free,
        ] {
            let (machine, device) = simulated();
            machine.plan(Fault::new(When::Every(call), FaultKind::Transient));
            assert_eq!(trial(&device).unwrap_err().call(), call);
        }
    }
}
