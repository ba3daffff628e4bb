//! Transfers between host and device, on the time line of the events.

use forebay_trace::{Trace, Transfer, TransferDirection};

use super::data::{TransferRow, Transfers};
use super::series::SeriesBuilder;
use crate::output::nanos;

/// How many single transfers are named.
const LISTED: usize = 40;

/// The transfers of a recording; `None` if it has none, or no clock to show them by.
pub(super) fn transfers(trace: &Trace) -> Option<Transfers> {
    let all = trace.transfers();
    if all.is_empty() || trace.time(0).is_none() {
        return None;
    }
    let directions = [TransferDirection::Upload, TransferDirection::Download];
    let of = |direction| {
        let them = all.iter().filter(move |transfer| transfer.direction == direction);
        them.collect::<Vec<&Transfer>>()
    };
    let mut largest: Vec<&Transfer> = all.iter().collect();
    largest.sort_by_key(|transfer| (core::cmp::Reverse(transfer.bytes), transfer.begin));
    let listed = largest.into_iter().take(LISTED).map(|transfer| TransferRow {
        direction: transfer.direction.name(),
        at: event_at(trace, transfer),
        begin_ns: nanos(transfer.begin),
        took_ns: nanos(transfer.end.saturating_sub(transfer.begin)),
        bytes: transfer.bytes.get(),
    });
    Some(Transfers {
        counts: directions.map(|direction| of(direction).len() as u64),
        bytes: directions.map(|direction| {
            of(direction).iter().map(|transfer| transfer.bytes.get()).fold(0, u64::saturating_add)
        }),
        under_way: directions.map(|direction| under_way(trace, direction, &of(direction))),
        listed: listed.collect(),
    })
}

/// The last event before a transfer began.
fn event_at(trace: &Trace, transfer: &Transfer) -> u64 {
    let (mut low, mut high) = (0, trace.len());
    while low < high {
        let middle = low.midpoint(high);
        if trace.time(middle).is_some_and(|time| time <= transfer.begin) {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    low.saturating_sub(1) as u64
}

/// The bytes of the transfers that were under way at any time between an event and the next.
fn under_way(
    trace: &Trace,
    direction: TransferDirection,
    transfers: &[&Transfer],
) -> super::data::Series {
    let mut begins: Vec<_> = transfers.iter().map(|one| (one.begin, one.bytes.get())).collect();
    let mut ends: Vec<_> = transfers.iter().map(|one| (one.end, one.bytes.get())).collect();
    begins.sort_unstable();
    ends.sort_unstable();
    let (mut begins, mut ends) = (begins.into_iter().peekable(), ends.into_iter().peekable());
    let mut series = SeriesBuilder::new(direction.name(), trace.len() as u64);
    let mut bytes = 0_u128;
    for event in 0..trace.len() {
        let (now, next) = (trace.time(event), trace.time(event + 1));
        while let Some((_, ended)) = ends.next_if(|&(end, _)| now.is_some_and(|now| end < now)) {
            bytes = bytes.saturating_sub(u128::from(ended));
        }
        // After the last event comes the rest of time.
        while let Some((_, begun)) =
            begins.next_if(|&(begin, _)| next.is_none_or(|next| begin < next))
        {
            bytes += u128::from(begun);
        }
        series.push(u64::try_from(bytes).unwrap_or(u64::MAX));
    }
    series.finish()
}
