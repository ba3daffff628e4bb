//! Snapshots of forebay's own pools, `forebay.pool.v1`: a pool at one moment, for reports. Replayed, a snapshot
//! allocates each live block once, in address order.

use core::ops::Deref;
use std::io::BufRead;

use forebay::Tag;
use forebay::snapshot::{BlockSnapshot, Snapshot};
use forebay_core::Bytes;

use super::{Format, FormatError, Intake, Position, ReadOptions};
use crate::Trace;

/// The id of the form.
pub(super) const SCHEMA: &str = Snapshot::SCHEMA;

/// How the text begins that `oom_report` writes. The snapshot is in the file beside it.
pub(super) const TEXT_OF_REFUSAL: &str = "forebay: pool ";

/// A snapshot from a file.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolSnapshot {
    /// The name of the file.
    pub name: String,
    /// Its contents, with the blocks by address.
    pub snapshot: Snapshot,
}

impl Deref for PoolSnapshot {
    type Target = Snapshot;

    fn deref(&self) -> &Snapshot {
        &self.snapshot
    }
}

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
    let mut snapshot: Snapshot = serde_json::from_slice(&bytes).map_err(|error| {
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
    let snapshot = PoolSnapshot { name: name.to_owned(), snapshot };
    // A block that is listed twice is refused here, for reports too.
    snapshot.to_trace(options)?;
    Ok(snapshot)
}

impl PoolSnapshot {
    /// The live blocks as a run that allocates each of them once.
    pub fn to_trace(&self, options: &ReadOptions) -> Result<Trace, FormatError> {
        let mut intake = Intake::new(&self.name, Format::PoolSnapshot, options);
        for BlockSnapshot { address, requested_bytes, tag, stack, .. } in &self.blocks {
            let size = Bytes::new(*requested_bytes);
            // Sorted by now, blocks have lost their places in the file.
            intake.event(Position::Byte(0), |builder| builder.allocate(*address, size, 0))?;
            if tag != Tag::UNTAGGED {
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
    pub fn stack(&self, index: Option<usize>) -> Option<&str> {
        self.stacks.get(index?).map(String::as_str)
    }

    /// The tag as displayed.
    pub fn shown_tag(tag: &str) -> &str {
        if tag == Tag::UNTAGGED || tag.is_empty() { "(no tag)" } else { tag }
    }
}
