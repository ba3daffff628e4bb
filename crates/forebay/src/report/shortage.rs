//! Why a request was refused, and what would have helped. Every claim follows from the reported figures.

use core::fmt;
use std::path::PathBuf;

use forebay_core::{Alignment, Bytes};

/// What kept a pool from serving a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum RefusalCause {
    /// The live blocks plus the request exceed the limit.
    #[default]
    Limit,
    /// They exceed the device's total memory.
    DeviceTooSmall,
    /// Other programs, libraries or pools hold the missing memory.
    DeviceFull,
    /// Enough memory is free in total, but fragmented, and the limit or the device leaves no room to grow.
    Fragmented,
    /// A hole is large enough, but work of another stream used it for longer than the request may wait, or another
    /// thread has only just freed it.
    Busy,
    /// The limit and the device leave room, but the driver provided no memory.
    Driver,
    /// The request was made to fail ([`Failing`](crate::adaptor::Failing)).
    Injected,
}

impl RefusalCause {
    /// Its name in snapshots.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Limit => "limit",
            Self::DeviceTooSmall => "device_too_small",
            Self::DeviceFull => "device_full",
            Self::Fragmented => "fragmented",
            Self::Busy => "busy",
            Self::Driver => "driver",
            Self::Injected => "injected",
        }
    }
}

/// The file that describes a refusal, written by the setting `oom_report`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReportFile {
    /// The file; if writing failed, the one that failed: the text, or the snapshot beside it.
    pub path: PathBuf,
    /// Why writing failed, if it did.
    pub failure: Option<String>,
}

/// The state of a pool when it refused a request for lack of memory.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Shortage {
    /// The requested size.
    pub requested: Bytes,
    /// The contiguous bytes needed: after rounding, with alignment and debugging aids.
    pub needed: Bytes,
    /// Why the pool could not serve it.
    pub cause: RefusalCause,
    /// The most the pool may hold.
    pub limit: Bytes,
    /// Bytes the pool holds.
    pub held: Bytes,
    /// Bytes of `held` in live blocks.
    pub live: Bytes,
    /// Bytes of `held` in free blocks in thread caches.
    pub cached: Bytes,
    /// Bytes of `held` outside live blocks, including cached blocks. They may be too fragmented, or still in use by
    /// work.
    pub free: Bytes,
    /// Bytes of `free` in whole pages that the pool can map elsewhere or return to the device. 0 if addresses must keep
    /// their memory, or if there are too many pages to search.
    pub free_pages: Bytes,
    /// The largest hole on the side (small or large blocks) of the request.
    pub largest_free: Bytes,
    /// Bytes free on the device.
    pub device_free: Bytes,
    /// Bytes of the device that are neither free nor held by this pool, but by other programs, libraries or pools, or
    /// by the driver.
    pub held_elsewhere: Bytes,
    /// Bytes of `held_elsewhere` in pools that [share the limit](crate::PoolOptions::sharing_limit_with).
    pub held_by_group: Bytes,
    /// A limit at which the request would have been served alongside the live blocks. `None` if the limit did not keep
    /// the pool from growing, or if the device has too little memory for that.
    pub enough_limit: Option<Bytes>,
    /// The largest request that would have been served instead, on any stream, once work is done.
    pub fits: Bytes,
    /// Live bytes by tag, as name and bytes, largest first. After a few tags, one entry sums up the rest, so that the
    /// total is `live`.
    pub owners: Vec<(String, Bytes)>,
    /// The file that describes this refusal, if the setting `oom_report` asks for one. At most one per second is
    /// written.
    pub report: Option<ReportFile>,
}

impl Shortage {
    /// The total memory of the device; 0 if unknown.
    fn whole_device(&self) -> Bytes {
        self.held.saturating_add(self.device_free).saturating_add(self.held_elsewhere)
    }

    /// The total of the live blocks and the request.
    fn wanted(&self) -> Bytes {
        self.live.saturating_add(self.needed.max(self.requested))
    }

    /// What the pool would hold after returning its free pages and taking new ones for the request.
    fn grown(&self, new_pages: Bytes) -> Bytes {
        self.held.saturating_sub(self.free_pages).saturating_add(new_pages)
    }

    /// Derives the cause, the sufficient limit and the largest fitting request from the other figures. `new_pages` is
    /// the size of new pages for the request, `granule` the size of a page, `largest_hole` the largest piece free for
    /// any request.
    pub(crate) fn explain(&mut self, new_pages: Bytes, granule: Alignment, largest_hole: Bytes) {
        let grown = self.grown(new_pages);
        let needed = self.needed.max(self.requested);
        let max_by_device = self.held.saturating_add(self.device_free);
        let is_limited = grown.saturating_add(self.held_by_group) > self.limit;
        let has_memory = grown <= max_by_device;
        let whole = self.whole_device();
        self.cause = if self.wanted() > whole && !whole.is_zero() {
            RefusalCause::DeviceTooSmall
        } else if self.largest_free >= needed {
            RefusalCause::Busy
        } else if self.wanted().saturating_add(self.held_by_group) > self.limit {
            RefusalCause::Limit
        } else if self.wanted() > max_by_device {
            RefusalCause::DeviceFull
        } else if is_limited || !has_memory {
            RefusalCause::Fragmented
        } else {
            RefusalCause::Driver
        };
        let enough = grown.saturating_add(self.held_by_group);
        self.enough_limit = (is_limited && has_memory).then_some(enough);
        let most = self.limit.saturating_sub(self.held_by_group).min(max_by_device);
        let room = most.saturating_sub(self.grown(Bytes::ZERO)).align_down(granule);
        self.fits = largest_hole.max(room);
    }

    /// Whether it would help if another pool on the device returned memory: one with the same limit, or any.
    pub(crate) fn is_helped_by(&self, shares_limit: bool) -> bool {
        match self.cause {
            RefusalCause::DeviceFull => true,
            RefusalCause::Limit | RefusalCause::Fragmented => shares_limit,
            _ => false,
        }
    }

    /// What would have helped, one sentence each. Each is true of the figures and independent: any one is enough,
    /// unless it says "at least".
    pub fn remedies(&self) -> Vec<String> {
        let mut all = Vec::new();
        let needed = self.needed.max(self.requested);
        if let Some(limit) = self.enough_limit {
            let (exact, shown) = (limit.get(), limit.rounded_up());
            all.push(format!(
                "A limit of {exact} B ({shown}) would have served it: the device had {} free.",
                self.device_free
            ));
        }
        let beyond_limit =
            self.wanted().saturating_add(self.held_by_group).saturating_sub(self.limit);
        let max_by_device = self.held.saturating_add(self.device_free);
        let missing = beyond_limit.max(self.wanted().saturating_sub(max_by_device));
        let whose = if self.held_by_group.is_zero() {
            ""
        } else {
            ", of this pool or of those that share its limit,"
        };
        if !missing.is_zero() && missing <= self.live.saturating_add(self.held_by_group) {
            all.push(format!(
                "At least {} of live blocks{whose} would have to be freed, in pieces that together make room for {needed}.",
                missing.rounded_up()
            ));
        }
        if self.cause == RefusalCause::Fragmented {
            all.push(format!(
                "{} were free, more than the {needed} that were needed, but the largest hole had {} and whole free pages \
                 made up {}. Freeing the blocks between two holes, so that they and the blocks make {needed}, would have \
                 been enough.",
                self.free, self.largest_free, self.free_pages
            ));
        }
        if self.cause == RefusalCause::Busy {
            all.push(format!(
                "A hole of {} was free: work of another stream had not finished when the wait ended (max_wait), or \
                 another thread freed it just then. Trying again may be enough.",
                self.largest_free
            ));
        }
        if self.cause == RefusalCause::DeviceFull {
            all.push(format!(
                "Others held {} of the device: at least {} of it would have to be returned.",
                self.held_elsewhere,
                self.wanted().saturating_sub(max_by_device).rounded_up()
            ));
        }
        if self.cause == RefusalCause::DeviceTooSmall {
            all.push(format!("The whole device has only {}.", self.whole_device()));
        }
        if !self.fits.is_zero() && self.fits < self.requested {
            all.push(format!(
                "A request of up to {} B ({}) would have been served.",
                self.fits.get(),
                self.fits
            ));
        }
        all
    }
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "out of memory: {} ({} B) requested", self.requested, self.requested.get())?;
        // Do not mention mere rounding.
        if self.needed > self.requested.saturating_add(Alignment::BLOCK.bytes()) {
            write!(f, ", which need {} of contiguous memory", self.needed)?;
        }
        write!(
            f,
            "; the pool holds {} of at most {}: {} in live blocks and {} free, {} of that in thread caches",
            self.held, self.limit, self.live, self.free, self.cached
        )?;
        if !self.held_by_group.is_zero() {
            write!(f, "; pools that share the limit hold {}", self.held_by_group)?;
        }
        write!(
            f,
            "; the largest free piece for this request is {}; the device has {} free",
            self.largest_free, self.device_free
        )?;
        if !self.held_elsewhere.is_zero() {
            write!(f, " while others hold {} of it", self.held_elsewhere)?;
        }
        if !self.owners.is_empty() {
            write!(f, "; the tags with the most memory are ")?;
            for (index, (name, bytes)) in self.owners.iter().enumerate() {
                write!(f, "{}{name} ({bytes})", if index == 0 { "" } else { ", " })?;
            }
        }
        self.write_advice(f)?;
        match &self.report {
            None => Ok(()),
            Some(ReportFile { path, failure: None }) => {
                write!(f, "; {} describes this refusal", path.display())
            }
            Some(ReportFile { path, failure: Some(reason) }) => {
                write!(f, "; the report could not be written to {}: {reason}", path.display())
            }
        }
    }
}

impl Shortage {
    /// Brief advice.
    fn write_advice(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Freeing helps only if there is something to free and the request itself is not too large.
        let can_free = !self.live.is_zero();
        let fits_limit = self.needed <= self.limit;
        let mut is_first = true;
        match self.cause {
            RefusalCause::DeviceTooSmall => {
                let whole = self.whole_device();
                write!(f, "; the whole device has only {whole}: request less at a time")?;
                if can_free && self.needed <= whole {
                    f.write_str(", or free blocks")?;
                }
            }
            RefusalCause::Limit if can_free && fits_limit => {
                is_first = false;
                f.write_str("; free blocks")?;
            }
            RefusalCause::Limit => {}
            RefusalCause::DeviceFull => {
                f.write_str("; free blocks, or find out which other program uses the device")?;
            }
            RefusalCause::Fragmented => {
                is_first = false;
                f.write_str("; the free memory is in pieces that are too small: free blocks")?;
            }
            RefusalCause::Busy => f.write_str(
                "; enough is free by now, or in use by work of another stream: try again, or raise max_wait",
            )?,
            RefusalCause::Driver => {
                f.write_str("; the driver did not provide what limit and device allow")?;
                f.write_str(if can_free { ": free blocks" } else { "" })?;
            }
            RefusalCause::Injected => f.write_str("; this request was made to fail")?,
        }
        let is_stopped = matches!(self.cause, RefusalCause::Limit | RefusalCause::Fragmented);
        match self.enough_limit.filter(|_| is_stopped) {
            Some(enough) => {
                let (exact, shown) = (enough.get(), enough.rounded_up());
                let or = if is_first { ";" } else { ", or" };
                write!(f, "{or} raise the limit to {exact} B ({shown}) or more")
            }
            None if self.cause == RefusalCause::Limit => f.write_str(
                "; a higher limit does not help: the device has too little free memory for the request",
            ),
            None => Ok(()),
        }
    }
}
