//! The operations that wait on a stream, and how they run.

use core::ptr;
use std::sync::Arc;

use forebay_core::{Address, Bytes, StreamId};
use forebay_hal::{HostTask, Pattern};

use super::space::PageRun;
use super::store::Store;
use crate::kernel::{KernelBody, KernelMemory};

/// One end of a move.
#[derive(Clone, Debug)]
pub(crate) enum CopyEnd {
    /// Host memory that the caller of `copy` promised.
    Host(Address),
    /// Memory of a simulated device.
    Store(Arc<Store>, Bytes),
}

impl CopyEnd {
    /// The pointer; `None` for phantom memory.
    fn pointer(&self) -> Option<*mut u8> {
        match self {
            Self::Host(address) => {
                let address = usize::try_from(address.get()).ok()?;
                Some(ptr::with_exposed_provenance_mut(address))
            }
            Self::Store(store, offset) => store.pointer(*offset).map(core::ptr::NonNull::as_ptr),
        }
    }
}

/// Bytes to be copied in one go.
#[derive(Clone, Debug)]
pub(crate) struct CopyPiece {
    pub(crate) to: CopyEnd,
    pub(crate) from: CopyEnd,
    pub(crate) size: usize,
}

/// What is to be done.
pub(crate) enum Work {
    /// Copy bytes.
    Moves(Vec<CopyPiece>),
    /// Fill bytes.
    Fill(Vec<PageRun>, Pattern),
    /// Run a simulated kernel.
    Kernel(KernelBody, KernelMemory),
    /// Run a host function, on a thread of its own.
    Task(HostTask),
    /// Nothing: a record, or memory that is already where it is wanted.
    Nothing,
    /// Wait until a stream has done so much.
    Wait(StreamId, u64),
}

impl Work {
    /// Carries it out. Host functions and waits are the scheduler's business.
    pub(crate) fn run(self) {
        match self {
            Self::Moves(moves) => moves.iter().for_each(run_move),
            Self::Fill(pieces, pattern) => {
                // Rows are multiples of the pattern, but a row may go on in another memory: the
                // pattern goes on where it was.
                let mut phase = 0;
                for piece in &pieces {
                    phase = run_fill(piece, pattern.four_bytes(), phase);
                }
            }
            Self::Kernel(body, mut memory) => body(&mut memory),
            Self::Task(_) | Self::Nothing | Self::Wait(..) => {}
        }
    }
}

fn run_move(step: &CopyPiece) {
    let (Some(to), Some(from)) = (step.to.pointer(), step.from.pointer()) else { return };
    // SAFETY: a store's pointer is good for the rest of the store, which the move holds alive and
    // within which `resolve` cut it. A host address was promised by the caller of `copy` to be
    // valid until the copy is done. `copy` allows overlap.
    unsafe { ptr::copy(from, to, step.size) };
}

/// Fills `piece` with the four bytes from number `phase` on; gives the phase after it.
fn run_fill(piece: &PageRun, four: [u8; 4], phase: usize) -> usize {
    let Ok(size) = piece.size.to_usize() else { return phase };
    if let Some(start) = piece.store.pointer(piece.offset) {
        // SAFETY: `resolve` cut the piece to lie within the store, which it holds alive; work runs
        // one piece at a time, and the host keeps away from memory in use by the contract.
        let bytes = unsafe { core::slice::from_raw_parts_mut(start.as_ptr(), size) };
        let [first, ..] = four;
        if four == [first; 4] {
            bytes.fill(first);
        } else {
            let mut turned = four;
            turned.rotate_left(phase);
            let (words, rest) = bytes.as_chunks_mut();
            words.fill(turned);
            rest.iter_mut().zip(turned).for_each(|(byte, value)| *byte = value);
        }
    }
    (phase + size) % four.len()
}
