//! Splits copies into rounds through a staging buffer.

use forebay_core::{Address, Span};

/// A part of a copy between memory of the host and a buffer of the device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Part {
    /// The host's side.
    pub(crate) host: u64,
    /// From the first byte of the device's side.
    pub(crate) device: u64,
    /// From the first byte of the staging buffer.
    pub(crate) stage: u64,
    /// The size in bytes.
    pub(crate) bytes: u64,
}

/// Staged parts begin at multiples of this, so that they can be blitted if the device's side can.
const STEP: u64 = 4;

/// Splits rows, as pairs of spans of the host's side and the device's, into rounds that fit into a staging buffer of
/// `capacity` bytes, a multiple of 4 above 0. `base` is where the device's side begins.
pub(crate) fn rounds(
    rows: impl IntoIterator<Item = (Span, Span)>,
    base: Address,
    capacity: u64,
) -> Vec<Vec<Part>> {
    let mut rounds = Vec::new();
    let mut round = Vec::new();
    let mut used = 0;
    for (host, device) in rows {
        let (mut done, bytes) = (0, host.size().get());
        let start = device.start().offset_from(base).unwrap_or_default().get();
        while done < bytes {
            if used >= capacity {
                rounds.push(core::mem::take(&mut round));
                used = 0;
            }
            let part = (bytes - done).min(capacity - used);
            round.push(Part {
                host: host.start().get() + done,
                device: start + done,
                stage: used,
                bytes: part,
            });
            done += part;
            used = (used + part).next_multiple_of(STEP);
        }
    }
    if !round.is_empty() {
        rounds.push(round);
    }
    rounds
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

    use forebay_core::Bytes;

    use super::*;

    fn row(host: u64, device: u64, size: u64) -> (Span, Span) {
        let span = |start| Span::new(Address::new(start), Bytes::new(size)).unwrap();
        (span(host), span(device))
    }

    #[test]
    fn every_byte_goes_once_and_no_round_is_too_large() {
        let rows = [row(1000, 500, 10), row(2000, 520, 3), row(3000, 540, 30)];
        for capacity in (4..64).step_by(4) {
            let rounds = rounds(rows, Address::new(500), capacity);
            let mut seen = Vec::new();
            for round in &rounds {
                let mut end = 0;
                for part in round {
                    assert!(part.bytes > 0 && part.stage >= end && part.stage.is_multiple_of(4));
                    end = part.stage + part.bytes;
                    assert!(end <= capacity, "{end} of {capacity}");
                    seen.extend((0..part.bytes).map(|byte| (part.host + byte, part.device + byte)));
                }
            }
            let expected = rows.iter().flat_map(|(host, device)| {
                let (host, device) = (*host, device.start().get() - 500);
                (0..host.size().get()).map(move |byte| (host.start().get() + byte, device + byte))
            });
            assert_eq!(seen, expected.collect::<Vec<_>>(), "capacity {capacity}");
        }
    }

    #[test]
    fn rows_that_fit_share_a_round() {
        let all = rounds([row(0, 0, 5), row(16, 8, 5)], Address::NULL, 16);
        assert_eq!(all.len(), 1);
        let stages: Vec<_> = all.iter().flatten().map(|part| part.stage).collect();
        assert_eq!(stages, [0, 8]);
        assert!(rounds([], Address::NULL, 16).is_empty());
    }
}
