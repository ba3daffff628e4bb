//! Snapshots of forebay's own pools, `forebay.pool.v1`: a pool at one moment, for reports. As a run, a snapshot allocates each
//! live block once, the lowest first.

use std::io::BufRead;

use forebay_core::Bytes;
use serde::{Deserialize, Serialize};

use super::{Format, FormatError, Intake, Position, ReadOptions};
use crate::Trace;

/// The id of the form.
pub(super) const SCHEMA: &str = "forebay.pool.v1";

/// How the text begins that `oom_report` writes. The snapshot is in the file beside it.
pub(super) const TEXT_OF_REFUSAL: &str = "forebay: pool ";

/// The contents of a snapshot. The fields are those of `forebay::snapshot`; missing ones are zero or empty.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// The schema.
    pub schema: String,
    /// The name of the file.
    #[serde(skip)]
    pub name: String,
    /// The time, in milliseconds since 1970.
    pub taken_unix_ms: u64,
    /// The number of the pool.
    pub pool: u64,
    /// Its device.
    pub device: SnapshotDevice,
    /// Its memory class.
    pub class: String,
    /// Its limit in bytes.
    pub limit_bytes: u64,
    /// Its settings.
    pub settings: Vec<SnapshotSetting>,
    /// Its counters.
    pub statistics: SnapshotStatistics,
    /// Its live blocks.
    pub blocks: Vec<SnapshotBlock>,
    /// The number of live blocks left out.
    pub blocks_left_out: u64,
    /// Addresses with memory.
    pub spans: Vec<SnapshotRange>,
    /// The number of spans left out.
    pub spans_left_out: u64,
    /// Free memory.
    pub holes: Vec<SnapshotRange>,
    /// The number of holes left out.
    pub holes_left_out: u64,
    /// Call stacks.
    pub stacks: Vec<String>,
    /// The refused request.
    pub refusal: Option<Refusal>,
}

/// The device of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SnapshotDevice {
    /// The kind of device.
    pub kind: String,
    /// Its number among those of its kind.
    pub ordinal: u32,
    /// Its name.
    pub name: String,
    /// Its memory.
    pub total_bytes: Option<u64>,
    /// Its free memory.
    pub free_bytes: Option<u64>,
}

/// A setting of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SnapshotSetting {
    /// Its name.
    pub name: String,
    /// Its value.
    pub value: String,
    /// The kind of source the value came from.
    pub source: String,
}

/// Counters of a snapshot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SnapshotStatistics {
    /// Bytes in live blocks.
    pub live_bytes: u64,
    /// Live blocks.
    pub blocks: u64,
    /// Bytes in free blocks that threads have cached.
    pub cached_bytes: u64,
    /// Bytes held from the device.
    pub held_bytes: u64,
    /// Bytes held that are in no live block.
    pub free_bytes: u64,
    /// The largest hole.
    pub largest_free_bytes: u64,
    /// Live bytes by tag.
    pub tags: Vec<SnapshotTag>,
}

/// Live bytes of a tag.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default)]
#[non_exhaustive]
pub struct SnapshotTag {
    /// Its name.
    pub tag: String,
    /// The bytes.
    pub live_bytes: u64,
}

/// A live block.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[non_exhaustive]
pub struct SnapshotBlock {
    /// Its address.
    pub address: u64,
    /// Its size, after rounding up.
    #[serde(default)]
    pub size_bytes: u64,
    /// The size that was requested.
    pub requested_bytes: u64,
    /// Its tag.
    #[serde(default)]
    pub tag: String,
    /// The stream it was allocated on.
    #[serde(default)]
    pub stream: Option<u64>,
    /// Its age.
    #[serde(default)]
    pub age_ms: Option<u64>,
    /// The index of its call stack.
    #[serde(default)]
    pub stack: Option<u64>,
}

/// A range of addresses.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[non_exhaustive]
pub struct SnapshotRange {
    /// The first address.
    pub address: u64,
    /// The size in bytes.
    pub size_bytes: u64,
    /// "small" or "large".
    #[serde(default)]
    pub side: String,
}

/// A refused request, with the figures of the pool at that moment.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct Refusal {
    /// The bytes that were requested.
    pub requested_bytes: u64,
    /// The contiguous bytes that it needs.
    pub needed_bytes: u64,
    /// "small" or "large".
    pub side: String,
    /// Its alignment.
    pub alignment_bytes: u64,
    /// Its stream.
    pub stream: u64,
    /// Its tag.
    pub tag: String,
    /// The index of its call stack.
    pub stack: Option<u64>,
    /// Why the pool could not serve it.
    pub cause: String,
    /// The message of the error.
    pub message: String,
    /// Remedies.
    pub remedies: Vec<String>,
    /// The most the pool may hold.
    pub limit_bytes: u64,
    /// Bytes it holds.
    pub held_bytes: u64,
    /// Bytes of those in live blocks.
    pub live_bytes: u64,
    /// Bytes of those that threads have cached.
    pub cached_bytes: u64,
    /// Bytes of those in no live block.
    pub free_bytes: u64,
    /// Bytes of those in whole free pages.
    pub free_pages_bytes: u64,
    /// The largest hole on the side of the request.
    pub largest_free_bytes: u64,
    /// The largest request that would have been served.
    pub fits_bytes: u64,
    /// A limit that would have sufficed.
    pub enough_limit_bytes: Option<u64>,
    /// Bytes the device has free.
    pub device_free_bytes: u64,
    /// Bytes of the device that are neither free nor held by the pool.
    pub held_elsewhere_bytes: u64,
    /// Bytes of those in pools that share the limit.
    pub held_by_group_bytes: u64,
    /// Other pools of the process on the device.
    pub other_pools: Vec<OtherPool>,
}

/// Another pool of the process.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default)]
#[non_exhaustive]
pub struct OtherPool {
    /// Its number.
    pub pool: u64,
    /// Bytes it holds.
    pub held_bytes: u64,
    /// Bytes of those in no live block.
    pub free_bytes: u64,
    /// Whether it has the same limit.
    pub shares_limit: bool,
}

/// The tag of blocks without one.
const UNTAGGED: &str = "untagged";

/// Whether a file that begins like this may be a snapshot.
pub(super) fn is_begun_by(head: &[u8]) -> bool {
    let head = String::from_utf8_lossy(head);
    let head: String = head.chars().filter(|letter| !letter.is_whitespace()).collect();
    head.starts_with(&format!("{{\"schema\":\"{SCHEMA}\""))
}

pub(super) fn read(
    input: &mut dyn BufRead,
    name: &str,
    options: &ReadOptions,
) -> Result<PoolSnapshot, FormatError> {
    let format = Format::PoolSnapshot;
    let bytes = super::whole(input, options)?;
    let mut snapshot: PoolSnapshot = serde_json::from_slice(&bytes).map_err(|error| {
        let lines = bytes.split_inclusive(|&byte| byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = Position::Byte((before + error.column().saturating_sub(1)) as u64);
        FormatError::malformed(format, at, &error, format!("JSON of {SCHEMA}"))
    })?;
    if snapshot.schema != SCHEMA {
        let found = format!("the schema \"{}\"", snapshot.schema);
        return Err(FormatError::malformed(format, Position::Byte(0), found, SCHEMA));
    }
    snapshot.blocks.sort_by_key(|block| block.address);
    name.clone_into(&mut snapshot.name);
    // A block that is listed twice is refused here, for reports too.
    snapshot.to_trace(options)?;
    Ok(snapshot)
}

impl PoolSnapshot {
    /// The live blocks as a run that allocates each of them once.
    pub fn to_trace(&self, options: &ReadOptions) -> Result<Trace, FormatError> {
        let mut intake = Intake::new(&self.name, Format::PoolSnapshot, options);
        for SnapshotBlock { address, requested_bytes, tag, stack, .. } in &self.blocks {
            let size = Bytes::new(*requested_bytes);
            // Sorted by now, blocks have lost their places in the file.
            intake.event(Position::Byte(0), |builder| builder.allocate(*address, size, 0))?;
            if tag != UNTAGGED {
                intake.builder.tag(tag);
            }
            if let Some(stack) = self.stack(*stack) {
                intake.builder.stack(stack);
            }
            intake.builder.details().addresses.push(*address);
            intake.builder.remarks().live_at_start += 1;
        }
        Ok(intake.builder.finish())
    }

    /// The call stack with that index.
    pub fn stack(&self, index: Option<u64>) -> Option<&str> {
        self.stacks.get(usize::try_from(index?).ok()?).map(String::as_str)
    }

    /// The tag as displayed.
    pub fn shown_tag(tag: &str) -> &str {
        if tag == UNTAGGED || tag.is_empty() { "(no tag)" } else { tag }
    }
}
