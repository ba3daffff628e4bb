//! Copies and fills.
//!
//! A call is first split into [`Command`]s, each of which is one OpenCL call, before anything is enqueued. So a call
//! that is refused for its addresses has enqueued nothing.

use core::ffi::c_void;
use core::ptr;
use std::sync::Arc;

use cl3::command_queue::{
    enqueue_copy_buffer, enqueue_copy_buffer_rect, enqueue_fill_buffer, enqueue_read_buffer,
    enqueue_read_buffer_rect, enqueue_write_buffer, enqueue_write_buffer_rect,
};
use cl3::error_codes::CL_INVALID_VALUE;
use cl3::types::{CL_FALSE, cl_command_queue, cl_event, cl_uint};
use forebay_core::transfer::{CopyEnd, CopyShape};
use forebay_core::{Address, Bytes, Span};
use forebay_hal::{self as hal, Asked, Call, Pattern, Priority, Result, StreamHandle, Transfers};
use forebay_sync::lock;

use crate::code::{DriverError, Lost, Outcome};
use crate::context::Context;
use crate::memory::part_of;
use crate::object::{Buffer, Event};
use crate::space::BufferOffset;
use crate::stream::{QueueOrder, StreamQueue, Submission};
use crate::{HostCopies, OpenClDevice, task};

/// One end of a copy.
#[derive(Clone, Debug)]
enum CopyOperand {
    Host(Address),
    Device(BufferOffset),
}

impl CopyOperand {
    /// The same, `bytes` further on.
    fn advanced(&self, bytes: u64) -> Self {
        let bytes = Bytes::new(bytes);
        match self {
            Self::Host(address) => Self::Host(address.checked_add(bytes).unwrap_or(*address)),
            Self::Device(found) => Self::Device(BufferOffset {
                memory: Arc::clone(&found.memory),
                offset: found.offset.saturating_add(bytes),
            }),
        }
    }
}

/// Who makes a copy.
#[derive(Clone, Debug)]
enum Copier {
    /// The driver, when it comes to the command.
    Driver,
    /// A thread, when the stream comes to it. What it cannot do is noted.
    Thread(Lost),
}

/// One call of OpenCL.
#[derive(Debug)]
enum Command {
    Copy { shape: CopyShape, to: CopyOperand, from: CopyOperand, by: Copier },
    Fill { to: BufferOffset, window: Option<Buffer>, offset: Bytes, size: Bytes, pattern: Pattern },
}

/// How far into a buffer fills reach. NVIDIA's driver counts in 32 bits with a sign there, and writes elsewhere
/// or nothing at all; so what lies further on is filled through parts of the buffer, each no longer than this.
const FILL_REACH: Bytes = Bytes::gib(1);

/// The host pointer of an address.
fn pointer(address: Address) -> *mut u8 {
    ptr::with_exposed_provenance_mut(usize::try_from(address.get()).unwrap_or(0))
}

/// A size of memory that is there, or of addresses: it fits.
fn length(value: u64) -> usize {
    usize::try_from(value).unwrap_or(usize::MAX)
}

/// The start, the pitches and the extent of one side of a rectangle, as OpenCL takes them.
struct Rectangle {
    origin: [usize; 3],
    row: usize,
    slice: usize,
}

impl Rectangle {
    fn of(shape: &CopyShape, end: CopyEnd, offset: Bytes) -> Self {
        let slice = if shape.slices > 1 { length(end.slice) } else { 0 };
        Self { origin: [length(offset.get()), 0, 0], row: length(end.row), slice }
    }
}

impl Command {
    /// Enqueues the command.
    ///
    /// # Safety
    ///
    /// * Rows on the host are memory until the command is done, and no row written shares a byte with one
    ///   read. The device's sides are live, which their places see to.
    unsafe fn enqueue(
        &self,
        queue: cl_command_queue,
        count: cl_uint,
        events: *const cl_event,
    ) -> core::result::Result<cl_event, i32> {
        let (shape, to, from) = match self {
            Self::Fill { to, window, offset, size, pattern } => {
                let four = pattern.four_bytes();
                let width = length(pattern.width().get());
                let (start, size) = (length(offset.get()), length(size.get()));
                let buffer = window.as_ref().unwrap_or(&to.memory.buffer).raw();
                let bytes: *const c_void = four.as_ptr().cast();
                // SAFETY: the pattern is read before the call returns; what is filled lies in the buffer.
                return unsafe {
                    enqueue_fill_buffer(queue, buffer, bytes, width, start, size, count, events)
                };
            }
            Self::Copy { shape, to, from, .. } => (shape, to, from),
        };
        let region = [length(shape.width), length(shape.rows), length(shape.slices)];
        let (extent, linear) = (region.as_ptr(), shape.rows == 1 && shape.slices == 1);
        let [size, ..] = region;
        let far = |offset| Rectangle::of(shape, shape.to, offset);
        let near = |offset| Rectangle::of(shape, shape.from, offset);
        // SAFETY: as the caller promised; the shape was checked when it was made, and lies in the buffers.
        unsafe {
            match (to, from) {
                (CopyOperand::Device(to), CopyOperand::Host(from)) => {
                    let (buffer, from) = (to.memory.buffer.raw(), pointer(*from).cast());
                    let (b, h) = (far(to.offset), near(Bytes::ZERO));
                    if linear {
                        let [start, ..] = b.origin;
                        enqueue_write_buffer(
                            queue, buffer, CL_FALSE, start, size, from, count, events,
                        )
                    } else {
                        let (at, home) = (b.origin.as_ptr(), h.origin.as_ptr());
                        enqueue_write_buffer_rect(
                            queue, buffer, CL_FALSE, at, home, extent, b.row, b.slice, h.row,
                            h.slice, from, count, events,
                        )
                    }
                }
                (CopyOperand::Host(to), CopyOperand::Device(from)) => {
                    let (buffer, to) = (from.memory.buffer.raw(), pointer(*to).cast());
                    let (b, h) = (near(from.offset), far(Bytes::ZERO));
                    if linear {
                        let [start, ..] = b.origin;
                        enqueue_read_buffer(queue, buffer, CL_FALSE, start, size, to, count, events)
                    } else {
                        let (at, home) = (b.origin.as_ptr(), h.origin.as_ptr());
                        enqueue_read_buffer_rect(
                            queue, buffer, CL_FALSE, at, home, extent, b.row, b.slice, h.row,
                            h.slice, to, count, events,
                        )
                    }
                }
                (CopyOperand::Device(to), CopyOperand::Device(from)) => {
                    let (here, there) = (from.memory.buffer.raw(), to.memory.buffer.raw());
                    let (f, t) = (near(from.offset), far(to.offset));
                    if linear {
                        let ([start, ..], [end, ..]) = (f.origin, t.origin);
                        enqueue_copy_buffer(queue, here, there, start, end, size, count, events)
                    } else {
                        let (at, to) = (f.origin.as_ptr(), t.origin.as_ptr());
                        enqueue_copy_buffer_rect(
                            queue, here, there, at, to, extent, f.row, f.slice, t.row, t.slice,
                            count, events,
                        )
                    }
                }
                // Not OpenCL's: `push_one` has a thread of ours do it.
                (CopyOperand::Host(_), CopyOperand::Host(_)) => Err(CL_INVALID_VALUE),
            }
        }
    }

    /// A rectangle as two: all but the last slice or row, and that one. Some drivers count the gap after the last
    /// row as part of a rectangle, and refuse one whose gap would pass the end of the buffer.
    fn halves(&self) -> Option<[Self; 2]> {
        let Self::Copy { shape, to, from, by } = self else { return None };
        let (most, last, steps) = if shape.slices > 1 {
            let count = shape.slices - 1;
            let steps = (shape.to.slice * count, shape.from.slice * count);
            (CopyShape { slices: count, ..*shape }, CopyShape { slices: 1, ..*shape }, steps)
        } else if shape.rows > 1 {
            let count = shape.rows - 1;
            let steps = (shape.to.row * count, shape.from.row * count);
            (CopyShape { rows: count, ..*shape }, CopyShape { rows: 1, ..*shape }, steps)
        } else {
            return None;
        };
        let (far, near) = (to.advanced(steps.0), from.advanced(steps.1));
        Some([
            Self::Copy { shape: most, to: to.clone(), from: from.clone(), by: by.clone() },
            Self::Copy { shape: last, to: far, from: near, by: by.clone() },
        ])
    }

    /// The function that does it, for errors.
    fn function(&self) -> &'static str {
        match self {
            Self::Fill { .. } => "clEnqueueFillBuffer",
            Self::Copy { to: CopyOperand::Device(_), from: CopyOperand::Host(_), .. } => {
                "clEnqueueWriteBuffer"
            }
            Self::Copy { to: CopyOperand::Host(_), .. } => "clEnqueueReadBuffer",
            Self::Copy { .. } => "clEnqueueCopyBuffer",
        }
    }
}

/// Enqueues commands after all that came before, in no order among themselves. Where that fails, gives the events
/// of those that the submission does not end with.
///
/// # Safety
///
/// * As for [`Command::enqueue`], for each of them; no row written shares a byte with a row of another.
unsafe fn push(
    submission: &mut Submission<'_>,
    commands: &[Command],
) -> core::result::Result<(), (DriverError, Vec<Event>)> {
    let mut beside: Vec<Event> = Vec::new();
    // SAFETY: as the caller promised.
    let each = |command| unsafe { push_one(submission, command, &mut beside) };
    let pushed = commands.iter().try_for_each(each);
    // What was enqueued counts, whatever came of the rest.
    let joined = match beside.as_slice() {
        [] => Ok(()),
        // The only one. Beside others the submission may end with a task that this does not wait for.
        [event] if commands.len() == 1 => {
            submission.advance(event.clone());
            Ok(())
        }
        all => submission.join(&all.iter().collect::<Vec<_>>()),
    };
    match joined {
        Ok(()) => pushed.map_err(|refusal| (refusal, Vec::new())),
        Err(refusal) => Err((refusal, beside)),
    }
}

/// Enqueues one command, in pieces where the driver refuses it whole. Its events go to `beside`, or make the end
/// of the submission where the queue keeps its order.
///
/// # Safety
///
/// * As for [`Command::enqueue`].
unsafe fn push_one(
    submission: &mut Submission<'_>,
    command: &Command,
    beside: &mut Vec<Event>,
) -> Outcome<()> {
    match command {
        Command::Copy { shape, to: CopyOperand::Host(_), from: CopyOperand::Host(_), .. } => {
            let shape = *shape;
            // SAFETY: as the caller promised, until the copy is done.
            return task::enqueue(submission, Box::new(move || unsafe { copy_on_host(&shape) }));
        }
        Command::Copy { shape, to, from, by: Copier::Thread(lost) } => {
            let (to, from, context) = (to.clone(), from.clone(), submission.queue().context);
            let command = Command::Copy { shape: *shape, to, from, by: Copier::Driver };
            let lost = lost.clone();
            return task::enqueue(
                submission,
                Box::new(move || {
                    // SAFETY: as the caller promised, until the copy is done.
                    let copied = unsafe { copy_aside(context, &command) };
                    // SAFETY: as above. What is refused may pass.
                    let copied = copied.or_else(|_| unsafe { copy_aside(context, &command) });
                    if let Err(refusal) = copied {
                        lost.note(refusal);
                    }
                }),
            );
        }
        _ => {}
    }
    // SAFETY: as the caller promised.
    unsafe { push_pieces(submission, command, beside) }
}

/// Enqueues a command by the driver: whole, or in ever smaller pieces where the driver refuses it. A list of what is
/// left instead of recursion: there may be as many pieces as rows.
///
/// # Safety
///
/// * As for [`Command::enqueue`].
unsafe fn push_pieces(
    submission: &mut Submission<'_>,
    command: &Command,
    beside: &mut Vec<Event>,
) -> Outcome<()> {
    // SAFETY: as the caller promised: the rows of the pieces are those of the command.
    let mut push = |piece: &Command| unsafe { push_whole(submission, piece, beside) };
    let split = |refusal: DriverError, piece: &Command| {
        piece.halves().filter(|_| refusal.code.0 == CL_INVALID_VALUE).ok_or(refusal)
    };
    let Err(refusal) = push(command) else { return Ok(()) };
    let [most, last] = split(refusal, command)?;
    let mut left = vec![last, most];
    while let Some(piece) = left.pop() {
        if let Err(refusal) = push(&piece) {
            let [most, last] = split(refusal, &piece)?;
            left.extend([last, most]);
        }
    }
    Ok(())
}

/// Enqueues a command by one call of the driver.
///
/// # Safety
///
/// * As for [`Command::enqueue`].
unsafe fn push_whole(
    submission: &mut Submission<'_>,
    command: &Command,
    beside: &mut Vec<Event>,
) -> Outcome<()> {
    // SAFETY: as the caller promised.
    let event = unsafe {
        submission.push_beside(command.function(), &mut |queue, count, events| {
            command.enqueue(queue, count, events)
        })
    }?;
    match submission.queue().order() {
        QueueOrder::InOrder => submission.advance(event),
        QueueOrder::OutOfOrder => beside.push(event),
    }
    Ok(())
}

/// Makes a copy now, on a queue of its own, and waits for it.
///
/// # Safety
///
/// * As for [`Command::enqueue`].
unsafe fn copy_aside(context: &'static Context, command: &Command) -> Outcome<()> {
    let queue = StreamQueue::take(context, QueueOrder::InOrder, Priority::Normal)?;
    // SAFETY: as the caller promised.
    let pushed = unsafe { push(&mut queue.begin(), core::slice::from_ref(command)) };
    let copied = pushed.map_err(|(refusal, _)| refusal).and(queue.wait());
    lock(&context.idle).push(queue);
    copied
}

/// Copies rows from the host to the host.
///
/// # Safety
///
/// * The rows are memory, and none written shares a byte with one read.
unsafe fn copy_on_host(shape: &CopyShape) {
    let at = |end: CopyEnd, slice: u64, row: u64| {
        pointer(Address::new(end.start + slice * end.slice + row * end.row))
    };
    for slice in 0..shape.slices {
        for row in 0..shape.rows {
            let (to, from) = (at(shape.to, slice, row), at(shape.from, slice, row));
            // SAFETY: as the caller promised; the shape's ends were checked when it was made.
            unsafe { ptr::copy_nonoverlapping(from, to, length(shape.width)) };
        }
    }
}

impl OpenClDevice {
    /// One end of a copy; the device's must lie in one allocation.
    fn operand(
        &self,
        argument: &'static str,
        place: hal::Location,
        span: Span,
    ) -> Result<CopyOperand> {
        match place {
            hal::Location::Host(address) => Ok(CopyOperand::Host(address)),
            hal::Location::Device(_) => {
                lock(&self.space).locate(Call::Copy, argument, span).map(CopyOperand::Device)
            }
        }
    }

    /// Who makes a copy: the driver, but for ordinary host memory where it would make the caller wait.
    fn copier(&self, copy: &hal::Copy) -> Copier {
        let host = match (copy.to(), copy.from()) {
            (hal::Location::Host(_), _) => copy.written(),
            (_, hal::Location::Host(_)) => copy.read(),
            _ => return Copier::Driver,
        };
        match self.host_copies {
            HostCopies::Thread if !lock(&self.space).is_pinned(host) => {
                Copier::Thread(self.lost.clone())
            }
            _ => Copier::Driver,
        }
    }

    /// The commands of a copy.
    fn commands(&self, copy: &hal::Copy, commands: &mut Vec<Command>) -> Result<()> {
        if copy.extent().is_empty() {
            return Ok(());
        }
        let shape = copy.shape();
        let sides = self
            .operand("to", copy.to(), copy.written())
            .and_then(|to| Ok((to, self.operand("from", copy.from(), copy.read())?)));
        let by = self.copier(copy);
        let whole = match &sides {
            // Drivers refuse rectangles of one buffer that interleave.
            Ok((CopyOperand::Device(to), CopyOperand::Device(from))) => {
                to.memory.buffer.raw() != from.memory.buffer.raw() || shape.rows == 1
            }
            Ok(_) => true,
            // The rows may still lie in several allocations.
            Err(_) => shape.rows == 1 && shape.slices == 1,
        };
        if whole {
            let (to, from) = sides?;
            commands.push(Command::Copy { shape, to, from, by });
            return Ok(());
        }
        for (to, from) in copy.rows() {
            let shape = CopyShape::linear(to.start().get(), from.start().get(), to.size().get());
            let place = |place: hal::Location, span: Span| match place {
                hal::Location::Host(_) => hal::Location::Host(span.start()),
                hal::Location::Device(_) => hal::Location::Device(span.start()),
            };
            let (to, from) = (
                self.operand("to", place(copy.to(), to), to)?,
                self.operand("from", place(copy.from(), from), from)?,
            );
            commands.push(Command::Copy { shape, to, from, by: by.clone() });
        }
        Ok(())
    }

    /// The commands that fill `size` bytes from a place on.
    fn fill_commands(
        &self,
        to: &BufferOffset,
        size: Bytes,
        pattern: Pattern,
        commands: &mut Vec<Command>,
    ) -> Result<()> {
        let (mut offset, mut left) = (to.offset, size);
        while !left.is_zero() {
            let to = to.clone();
            if offset.saturating_add(left) <= FILL_REACH {
                commands.push(Command::Fill { to, window: None, offset, size: left, pattern });
                break;
            }
            // A multiple of every pattern's width, since both ends of the reach are.
            let start = offset.align_down(self.context.info.alignment);
            let inside = offset.saturating_sub(start);
            let step = left.min(FILL_REACH.saturating_sub(inside));
            let window = part_of(&to.memory.buffer, start, inside.saturating_add(step));
            let window = window.map_err(|refusal| {
                let given = format!("{} B from byte {}", left.get(), offset.get());
                self.refused(Call::Fill, refusal, &Asked::of("to", given, "a part of a buffer"))
            })?;
            let window = Some(window);
            commands.push(Command::Fill { to, window, offset: inside, size: step, pattern });
            (offset, left) = (offset.saturating_add(step), left.saturating_sub(step));
        }
        Ok(())
    }

    /// Enqueues commands of one call.
    ///
    /// # Safety
    ///
    /// * As for [`push`].
    unsafe fn run(
        &self,
        call: Call,
        queue: &StreamQueue,
        commands: &[Command],
        asked: impl FnOnce() -> Asked,
    ) -> Result<()> {
        if commands.is_empty() {
            return Ok(());
        }
        let mut submission = queue.begin();
        // SAFETY: as the caller promised.
        let pushed = unsafe { push(&mut submission, commands) };
        drop(submission);
        pushed.map_err(|(refusal, stray)| {
            // The stream does not wait for these, so this call must: their memory may go after it.
            let _: Vec<_> = stray.iter().map(Event::wait).collect();
            self.refused(call, refusal, &asked())
        })
    }
}

// SAFETY: every address of the device is looked up before anything is enqueued, and its memory is kept alive
// until then. Commands go to the stream's queue in the order of the calls, and OpenCL writes the rows of the
// shape alone. Reads and writes use the host's memory when their turn comes, by the driver or by a thread.
unsafe impl Transfers for OpenClDevice {
    unsafe fn copy(&self, copy: &hal::Copy, stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Copy, stream)?;
        let mut commands = Vec::new();
        self.commands(copy, &mut commands)?;
        let asked = || Asked::of("copy", format!("{copy:?}"), "a copy that the driver takes");
        // SAFETY: as the caller promised.
        let done = unsafe { self.run(Call::Copy, &queue, &commands, asked) };
        if done.is_err() && (copy.to().is_host() || copy.from().is_host()) {
            // Part of it may be under way; the caller's memory is not to be used after this.
            let _ = queue.wait();
        }
        done
    }

    unsafe fn copy_all(&self, copies: &[hal::Copy], stream: StreamHandle) -> Result<()> {
        let queue = self.queue(Call::Copy, stream)?;
        let mut commands = Vec::new();
        copies.iter().try_for_each(|copy| self.commands(copy, &mut commands))?;
        let count = copies.len();
        let asked = || Asked::of("copies", count, "copies that the driver takes");
        // SAFETY: as the caller promised.
        unsafe { self.run(Call::Copy, &queue, &commands, asked) }
    }

    unsafe fn fill(&self, fill: &hal::Fill, stream: StreamHandle) -> Result<()> {
        let call = Call::Fill;
        let queue = self.queue(call, stream)?;
        if fill.extent().is_empty() {
            return Ok(());
        }
        let mut commands = Vec::new();
        for row in fill.rows() {
            let to = lock(&self.space).locate(call, "to", row)?;
            self.fill_commands(&to, row.size(), fill.pattern(), &mut commands)?;
        }
        let asked = || Asked::of("fill", format!("{fill:?}"), "a fill that the driver takes");
        // SAFETY: as the caller promised.
        unsafe { self.run(call, &queue, &commands, asked) }
    }
}
