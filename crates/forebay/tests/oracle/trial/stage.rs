//! What a trial plays on: a device, its work in stream order, and what is left of it at the end.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use forebay::Block;
use forebay_core::Span;
use forebay_hal::{Device, Result, StreamHandle, Streams};
use forebay_host::HostDevice;
use forebay_sim::{Kernel, SimDevice, SimMachine};

use super::front::Lose;

/// What is done with the bytes of a block.
#[derive(Clone, Copy, Debug)]
enum Work {
    /// All of them are written.
    Write,
    /// Those that are not what was written are counted.
    Check,
}

/// A device and the machine it is of.
#[derive(Clone)]
pub(crate) enum Stage {
    /// The simulated device, late and looked upon; whether its memory keeps what is written.
    Sim(SimMachine, Arc<SimDevice>, bool),
    /// The host, with real threads for streams.
    Host(Arc<HostDevice>),
}

impl Stage {
    /// The device.
    pub(crate) fn device(&self) -> Arc<dyn Device> {
        match self {
            Self::Sim(_, device, _) => device.clone(),
            Self::Host(device) => device.clone(),
        }
    }

    /// What loses the device, where it can be lost.
    pub(crate) fn lose(&self) -> Lose {
        match self {
            Self::Sim(machine, ..) => {
                let machine = machine.clone();
                Box::new(move || machine.lose(0))
            }
            Self::Host(_) => Box::new(|| ()),
        }
    }

    /// Fills a live block with `tag`, in the order of `stream` and late. Counts in `wrong` where it
    /// could not be.
    pub(crate) fn write(
        &self,
        block: &Block,
        tag: u8,
        stream: StreamHandle,
        wrong: &Arc<AtomicU64>,
    ) -> Result<()> {
        self.enqueue(Work::Write, block, tag, stream, wrong)
    }

    /// Counts in `wrong` the bytes of a live block that are not `tag`, in the order of `stream`.
    pub(crate) fn check(
        &self,
        block: &Block,
        tag: u8,
        stream: StreamHandle,
        wrong: &Arc<AtomicU64>,
    ) -> Result<()> {
        self.enqueue(Work::Check, block, tag, stream, wrong)
    }

    fn enqueue(
        &self,
        work: Work,
        block: &Block,
        tag: u8,
        stream: StreamHandle,
        wrong: &Arc<AtomicU64>,
    ) -> Result<()> {
        let (span, size, wrong) = (span(block), length(block), Arc::clone(wrong));
        let count = move |bytes: u64| {
            wrong.fetch_add(bytes, Ordering::Relaxed);
        };
        match self {
            Self::Sim(_, device, data) => {
                let kernel = Kernel::new(format!("{work:?} {tag}"));
                let mut kernel = match work {
                    Work::Write => kernel.writes(span),
                    Work::Check => kernel.reads(span),
                };
                if *data {
                    kernel = kernel.body(move |memory| match work {
                        Work::Write => count(u64::from(!memory.write(span, &vec![tag; size]))),
                        Work::Check => count(match memory.read(span) {
                            Some(bytes) => differing(&bytes, tag),
                            None => size as u64,
                        }),
                    });
                }
                // SAFETY: the block is live, and the pool keeps what it is made of until it is
                // freed after this in stream order. Whether it does is what is tried; the device
                // tells where it does not.
                unsafe { device.launch(kernel, stream) }
            }
            Self::Host(device) => {
                let start = address(block);
                let task = move || {
                    let start = core::ptr::with_exposed_provenance_mut::<u8>(start);
                    match work {
                        // SAFETY: as above: the block is this task's until it is freed, which comes
                        // after it on its stream, and host memory is written by its address.
                        Work::Write => unsafe { start.write_bytes(tag, size) },
                        Work::Check => {
                            // SAFETY: likewise; every byte was written before, on the same stream.
                            let bytes = unsafe { core::slice::from_raw_parts(start, size) };
                            count(differing(bytes, tag));
                        }
                    }
                };
                device.enqueue_host(Box::new(task), stream)
            }
        }
    }

    /// The first mistake in ordering that was found, and how many there were.
    pub(crate) fn findings(&self) -> Option<String> {
        let Self::Sim(machine, ..) = self else { return None };
        let first = machine.findings().into_iter().next()?;
        Some(format!("{first}; {} in all", machine.finding_count()))
    }

    /// What is still there of what pools take: pages, mappings, regions, events.
    pub(crate) fn left(&self) -> Option<String> {
        let device = self.device();
        let held = device.memory_info().map_or(0, |info| info.held.get());
        let (parts, text) = match self {
            Self::Sim(machine, ..) => {
                let left = machine.census();
                let parts = [left.blocks, left.regions, left.pages, left.mappings, left.events];
                (parts, left.to_string())
            }
            Self::Host(device) => {
                let left = device.census();
                let parts =
                    [left.allocations, left.regions, left.pages, left.mappings, left.events];
                (parts, format!("{left:?}"))
            }
        };
        (parts != [0; 5] || held != 0).then(|| format!("{text}; {held} B held"))
    }
}

fn span(block: &Block) -> Span {
    // The oracle has looked at it before: it ends where addresses do at the latest.
    Span::new(block.address(), block.size()).expect("a block that ends")
}

/// The address as a number that pointers are made of.
fn address(block: &Block) -> usize {
    usize::try_from(block.address().get()).expect("an address of this machine")
}

fn length(block: &Block) -> usize {
    usize::try_from(block.size().get()).expect("a block of a size that can be written")
}

fn differing(bytes: &[u8], tag: u8) -> u64 {
    bytes.iter().filter(|&&byte| byte != tag).count() as u64
}
