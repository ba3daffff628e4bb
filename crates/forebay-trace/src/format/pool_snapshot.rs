//! Snapshots of forebay's own pools, `forebay.pool.v1`: the live blocks at one moment, as a run that allocates each of
//! them once, the lowest first.

use std::io::BufRead;

use forebay_core::Bytes;
use serde::Deserialize;

use super::{Format, FormatError, Intake, Position, ReadOptions};
use crate::Trace;

/// The id of the form.
pub(super) const SCHEMA: &str = "forebay.pool.v1";

/// What is read of a snapshot.
#[derive(Deserialize)]
struct PoolSnapshot {
    schema: String,
    blocks: Vec<Block>,
}

#[derive(Deserialize)]
struct Block {
    address: u64,
    requested_bytes: u64,
    #[serde(default)]
    tag: String,
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
) -> Result<Trace, FormatError> {
    let format = Format::PoolSnapshot;
    let bytes = super::whole(input, options)?;
    let snapshot: PoolSnapshot = serde_json::from_slice(&bytes).map_err(|error| {
        let lines = bytes.split_inclusive(|&byte| byte == b'\n');
        let before: usize = lines.take(error.line().saturating_sub(1)).map(<[u8]>::len).sum();
        let at = Position::Byte((before + error.column().saturating_sub(1)) as u64);
        FormatError::malformed(format, at, &error, format!("JSON of {SCHEMA}"))
    })?;
    let PoolSnapshot { schema, mut blocks } = snapshot;
    if schema != SCHEMA {
        let found = format!("the schema \"{schema}\"");
        return Err(FormatError::malformed(format, Position::Byte(0), found, SCHEMA));
    }
    blocks.sort_by_key(|block| block.address);
    let mut intake = Intake::new(name, format, options);
    for Block { address, requested_bytes, tag } in blocks {
        let size = Bytes::new(requested_bytes);
        // Sorted by now, blocks have lost their places in the file.
        intake.event(Position::Byte(0), |builder| builder.allocate(address, size, 0))?;
        if tag != UNTAGGED {
            intake.builder.tag(&tag);
        }
        intake.builder.details().addresses.push(address);
        intake.builder.remarks().live_at_start += 1;
    }
    Ok(intake.builder.finish())
}
