//! Coherence of a buffer that has a replica on the host and one on a device: which of them has the current contents of
//! each range, what an access must copy first, and what it leaves behind.
//!
//! ```text
//!   offset     0          1000        2000                     6000
//!   contents   |   Both   |   Host    |   Zero (untouched)     |
//!              current on  the host's  nobody wrote it: zero on
//!              both        is newer    either replica, by definition
//!
//!   read 500..3000 on the device:   copy 1000..2000 to it, zero 2000..3000 there; 500..1000 needs nothing
//! ```
//!
//! Ranges are merged when they touch and are alike, so a buffer that is used whole has one range, and writing ten
//! elements of a million moves ten. An access first asks [`needs`](Coherence::needs) what to do to the replica it uses.
//! After each step the caller reports it ([`updated`](Coherence::updated)), so that a failure in between keeps the
//! steps already done. Last it reports the access itself ([`written`](Coherence::written)).

use core::ops::Range;
use std::collections::BTreeMap;

#[cfg(test)]
mod tests;

/// One of the two places where the elements of a buffer may be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Replica {
    /// Host memory.
    Host,
    /// Memory of the device.
    Device,
}

impl Replica {
    /// The other replica.
    pub const fn other(self) -> Self {
        match self {
            Self::Host => Self::Device,
            Self::Device => Self::Host,
        }
    }
}

/// Which replicas have the current contents of a range.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Contents {
    /// Never written, so it is zero. Each flag says whether the memory of that replica is zero already.
    Zero {
        /// On the host.
        host: bool,
        /// On the device.
        device: bool,
    },
    /// The host's replica alone.
    Host,
    /// The device's replica alone.
    Device,
    /// Both.
    Both,
}

impl Contents {
    /// Never written, and no memory was zeroed for it.
    const UNTOUCHED: Self = Self::Zero { host: false, device: false };

    fn only(replica: Replica) -> Self {
        match replica {
            Replica::Host => Self::Host,
            Replica::Device => Self::Device,
        }
    }

    fn is_current_on(self, replica: Replica) -> bool {
        match (self, replica) {
            (Self::Both, _) => true,
            (Self::Zero { host, .. }, Replica::Host) => host,
            (Self::Zero { device, .. }, Replica::Device) => device,
            (only, replica) => only == Self::only(replica),
        }
    }

    /// After the memory of `replica` got the contents.
    fn with(self, replica: Replica) -> Self {
        match (self, replica) {
            (Self::Zero { device, .. }, Replica::Host) => Self::Zero { host: true, device },
            (Self::Zero { host, .. }, Replica::Device) => Self::Zero { host, device: true },
            (any, replica) if any.is_current_on(replica) => any,
            _ => Self::Both,
        }
    }

    /// After the contents in the memory of `replica` are gone. What was there alone is lost, and zero from then on.
    fn without(self, replica: Replica) -> Self {
        match (self, replica) {
            (Self::Zero { device, .. }, Replica::Host) => Self::Zero { host: false, device },
            (Self::Zero { host, .. }, Replica::Device) => Self::Zero { host, device: false },
            (Self::Both, replica) => Self::only(replica.other()),
            (only, replica) if only == Self::only(replica) => Self::UNTOUCHED,
            (only, _) => only,
        }
    }
}

/// How a replica gets the contents of a range that it lacks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum UpdateKind {
    /// A copy from the other replica.
    Copy,
    /// Zeros: the range was never written.
    Zero,
}

/// A step that makes a replica current.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Update {
    /// Where.
    pub range: Range<u64>,
    /// How.
    pub kind: UpdateKind,
}

/// The state of a whole buffer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum BufferState {
    /// Nothing was written yet: all zero.
    Uninitialized,
    /// There is memory on the host alone.
    HostOnly,
    /// There is memory on the device alone.
    DeviceOnly,
    /// Both replicas have everything.
    Synchronized,
    /// The host has everything; parts on the device are out of date.
    HostDirty,
    /// The device has everything; parts on the host are out of date.
    DeviceDirty,
    /// Each replica has parts that the other lacks.
    Mixed,
}

/// The ranges of a buffer with their contents.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Coherence {
    length: u64,
    /// The contents from each offset to the next. The first is 0 unless the buffer is empty; neighbours differ.
    runs: BTreeMap<u64, Contents>,
    /// The contents of all, if there is one run: most buffers are used whole, and most uses find everything there.
    uniform: Option<Contents>,
    /// Whether there is memory, of the host and of the device.
    present: [bool; 2],
}

impl Coherence {
    /// A buffer of `length` bytes that was never written, with no memory yet.
    pub fn new(length: u64) -> Self {
        let runs = (length > 0).then_some((0, Contents::UNTOUCHED)).into_iter().collect();
        let uniform = Some(Contents::UNTOUCHED);
        Self { length, runs, uniform, present: [false; 2] }
    }

    /// Its length in bytes.
    pub fn length(&self) -> u64 {
        self.length
    }

    /// Whether a replica has memory.
    pub fn is_present(&self, replica: Replica) -> bool {
        self.present[replica as usize]
    }

    /// Records that a replica got memory; `zeroed` says whether it is zero.
    pub fn allocated(&mut self, replica: Replica, zeroed: bool) {
        self.present[replica as usize] = true;
        if zeroed {
            let is_zero = |contents| matches!(contents, Contents::Zero { .. });
            self.change(0..self.length, |contents| {
                if is_zero(contents) { contents.with(replica) } else { contents }
            });
        }
    }

    /// Records that a replica's memory is gone. The caller has copied [what it alone had](Self::needs) to the other, or
    /// means to lose it.
    pub fn dropped(&mut self, replica: Replica) {
        self.invalidated(replica, 0..self.length);
        self.present[replica as usize] = false;
    }

    /// The ranges of `range` with their contents, lowest first.
    pub fn runs(&self, range: Range<u64>) -> impl Iterator<Item = (Range<u64>, Contents)> + '_ {
        let end = range.end.min(self.length);
        let start = range.start.min(end);
        let first = self.runs.range(..=start).next_back().map_or(start, |(&at, _)| at);
        let mut runs = self.runs.range(first..end.max(first)).peekable();
        core::iter::from_fn(move || {
            let (&at, &contents) = runs.next()?;
            let next = runs.peek().map_or(end, |&(&next, _)| next);
            Some((at.max(start)..next.min(end), contents))
        })
        .filter(|(run, _)| !run.is_empty())
    }

    /// Whether a replica has all contents of `range`, so that it needs nothing.
    #[inline]
    pub fn is_current(&self, replica: Replica, range: Range<u64>) -> bool {
        match self.uniform {
            Some(contents) => contents.is_current_on(replica) || self.runs(range).next().is_none(),
            None => self.runs(range).all(|(_, contents)| contents.is_current_on(replica)),
        }
    }

    /// The updates that make a replica current in `range`, lowest first. Nothing that it has or that was never written
    /// is copied, and touching copies are merged.
    pub fn needs(&self, replica: Replica, range: Range<u64>) -> Vec<Update> {
        let mut needs: Vec<Update> = Vec::new();
        for (range, contents) in self.runs(range) {
            if contents.is_current_on(replica) {
                continue;
            }
            let kind = match contents {
                Contents::Zero { .. } => UpdateKind::Zero,
                _ => UpdateKind::Copy,
            };
            match needs.last_mut() {
                Some(last) if last.kind == kind && last.range.end == range.start => {
                    last.range.end = range.end;
                }
                _ => needs.push(Update { range, kind }),
            }
        }
        needs
    }

    /// Records that a replica got the contents of `range`, as [`needs`](Self::needs) said.
    pub fn updated(&mut self, replica: Replica, range: Range<u64>) {
        self.change(range, |contents| contents.with(replica));
    }

    /// Records that `range` was written, or may be from now on, on one replica: the other's contents are out of date.
    pub fn written(&mut self, replica: Replica, range: Range<u64>) {
        self.change(range, |_| Contents::only(replica));
    }

    /// Forgets the contents of `range` on a replica. Where the other has none either, they are lost.
    pub fn invalidated(&mut self, replica: Replica, range: Range<u64>) {
        self.change(range, |contents| contents.without(replica));
    }

    /// Makes `range` zero from now on, whatever it was, without touching memory.
    pub fn cleared(&mut self, range: Range<u64>) {
        self.change(range, |_| Contents::UNTOUCHED);
    }

    /// The state of the whole buffer.
    pub fn state(&self) -> BufferState {
        let (mut written, mut host_lacks, mut device_lacks) = (false, false, false);
        for &contents in self.runs.values() {
            written |= !matches!(contents, Contents::Zero { .. });
            host_lacks |= contents == Contents::Device;
            device_lacks |= contents == Contents::Host;
        }
        match (self.present, host_lacks, device_lacks) {
            _ if !written => BufferState::Uninitialized,
            ([true, false], ..) => BufferState::HostOnly,
            ([false, true], ..) => BufferState::DeviceOnly,
            (_, true, true) => BufferState::Mixed,
            (_, true, false) => BufferState::DeviceDirty,
            (_, false, true) => BufferState::HostDirty,
            (_, false, false) => BufferState::Synchronized,
        }
    }

    /// Changes the contents of every run in `range`.
    fn change(&mut self, range: Range<u64>, to: impl Fn(Contents) -> Contents) {
        let (start, end) = (range.start.min(self.length), range.end.min(self.length));
        if start >= end {
            return;
        }
        self.split_at(start);
        self.split_at(end);
        for (_, contents) in self.runs.range_mut(start..end) {
            *contents = to(*contents);
        }
        let within: Vec<u64> = self.runs.range(start..end).map(|(&at, _)| at).collect();
        for at in within.into_iter().chain([end]) {
            self.merge_at(at);
        }
        let mut runs = self.runs.values();
        self.uniform = runs.next().copied().filter(|_| runs.next().is_none());
    }

    /// Makes a run begin at `at`.
    fn split_at(&mut self, at: u64) {
        if at >= self.length {
            return;
        }
        if let Some((_, &contents)) = self.runs.range(..=at).next_back() {
            self.runs.insert(at, contents);
        }
    }

    /// Merges the run that begins at `at` with the one before it, if they are alike.
    fn merge_at(&mut self, at: u64) {
        let before = self.runs.range(..at).next_back().map(|(_, &contents)| contents);
        if before.is_some() && before == self.runs.get(&at).copied() {
            self.runs.remove(&at);
        }
    }
}
