//! Plain memory.

use forebay_core::{Address, Alignment, Bytes, Span};
use forebay_hal::address_book::{MemoryEntry, MemoryKind};
use forebay_hal::{Asked, Call, DriverErrorKind, Memory, PinnedFlags, Result, valid_span};

use crate::device::{ALIGNMENT, CudaDevice};
use crate::refusal::meaning;
use crate::space::{Entry, Taken};
use crate::sys::{DriverError, Outcome, Symbols};

/// The alignment that `cuMemAlloc` keeps on every driver seen.
const USUAL: Alignment = Alignment::BLOCK;

/// From this size on memory comes in whole units of the same size.
const WHOLE_UNITS_FROM: Alignment = Alignment::DEVICE_PAGE;

impl CudaDevice {
    /// Gets memory by `allocate` at a multiple of `alignment`, by asking for more than is needed
    /// where the driver would hardly keep it. Gives what was asked for and what was taken.
    pub(crate) fn obtain(
        &self,
        call: Call,
        size: Bytes,
        alignment: Alignment,
        allocate: impl Fn(&Symbols, *mut u64, u64) -> Outcome,
    ) -> Result<(Span, Span)> {
        let usual = if size >= WHOLE_UNITS_FROM.bytes() { WHOLE_UNITS_FROM } else { USUAL };
        let most = alignment.bytes().saturating_sub(ALIGNMENT.bytes());
        let mut slack = if alignment > usual { most } else { Bytes::ZERO };
        let span = |start, size| valid_span(call, "size", start, size);
        let mut in_the_way = None;
        loop {
            let whole = size.checked_add(slack).ok_or_else(|| self.out_of_memory(call, size))?;
            let mut start = 0;
            let got = self.context.call(|table| allocate(table, &raw mut start, whole.get()));
            if let Some(stray) = in_the_way.take() {
                // SAFETY: got in the round before, and nobody knows of it.
                let _ = self.context.call(|table| unsafe { table.mem_free(stray) });
            }
            got.map_err(|refusal| self.no_memory(call, refusal, size))?;
            let taken = span(Address::new(start), whole)?;
            let aligned = taken.start().checked_align_up(alignment).unwrap_or(taken.start());
            let asked = span(aligned, size)?;
            if taken.contains_span(asked) || slack >= most {
                return Ok((asked, taken));
            }
            // Not as usual: once more, with room. The free waits for the device, and comes after, so
            // that the same place is not given again.
            (slack, in_the_way) = (most, Some(start));
        }
    }

    /// The error of a refused allocation. A size beyond all bounds is answered as an invalid value
    /// by some drivers, and is a lack of memory all the same.
    pub(crate) fn no_memory(
        &self,
        call: Call,
        refusal: DriverError,
        size: Bytes,
    ) -> forebay_hal::Error {
        match meaning(refusal) {
            DriverErrorKind::Invalid => self.out_of_memory(call, size),
            _ => self.refused(call, refusal, &Asked::size(size)),
        }
    }

    /// Gives memory back by `free`; where the driver does not take it, it stays as it was.
    pub(crate) fn give_back(
        &self,
        call: Call,
        memory: MemoryEntry<Taken>,
        free: impl FnOnce(&Symbols, u64) -> Outcome,
    ) -> Result<()> {
        let start = memory.owner.span.start().get();
        match self.context.call(|table| free(table, start)) {
            Ok(()) => {
                self.space().settle(&memory);
                Ok(())
            }
            Err(refusal) => {
                let asked = Asked::of("address", memory.span.start(), "memory of this device");
                if meaning(refusal) == DriverErrorKind::Lost {
                    // It went with the device.
                    memory.owner.leak_pages();
                    self.space().settle(&memory);
                } else {
                    self.space().book.insert(Entry::Memory(memory));
                }
                Err(self.refused(call, refusal, &asked))
            }
        }
    }
}

// SAFETY: the driver's allocations overlap nothing else of its, at multiples of 256, and `obtain`
// makes room for larger alignments where they are not kept. What is freed is taken out of the books before the driver gets
// it, so it is never found there while the driver gives it to another. `cuMemFree` waits for all
// work of the device, which is why the device does not say that it frees promptly.
unsafe impl Memory for CudaDevice {
    fn allocate(&self, size: Bytes, alignment: Alignment) -> Result<Address> {
        if size.is_zero() {
            return Ok(Address::NULL);
        }
        let (span, taken) =
            self.obtain(Call::Allocate, size, alignment, |table, address, size| {
                // SAFETY: the address is written to a place of `obtain`'s, and read from there.
                unsafe {
                    table.mem_alloc(address, size)?;
                    table.mem_alloc.check_allocated(*address)
                }
            })?;
        let taken = Taken::by_driver(taken);
        self.space().insert(span, MemoryKind::Plain, PinnedFlags::empty(), taken);
        Ok(span.start())
    }

    unsafe fn free(&self, address: Address) -> Result<()> {
        if address.is_null() {
            return Ok(());
        }
        let (call, kind) = (Call::Free, MemoryKind::Plain);
        let memory = self.space().book.remove_memory(call, "address", address, kind)?;
        self.give_back(call, memory, |table, start| {
            // SAFETY: it came from `cuMemAlloc` and was not freed, and no work uses it, as the
            // caller promised.
            unsafe { table.mem_free(start) }
        })
    }
}
