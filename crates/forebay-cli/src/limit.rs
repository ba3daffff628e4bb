//! Limits on how much of a recording a command reads, and how long it may work on it.

use core::time::Duration;
use std::str::FromStr;

use clap::Args;
use forebay_trace::{ReadOptions, Trace, WorkBudget};

/// Every command may take this long, whatever the recording.
const BASE: Duration = Duration::from_secs(30);

/// What a command may take for each event on top: five to fifty times of what recorded training and serving runs take in
/// the longest of them.
const PER_EVENT: Duration = Duration::from_millis(1);

/// The options of every command that reads recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct ReadingOptions {
    /// The device whose history to read from a PyTorch snapshot of several, counted from 0.
    #[arg(long, value_name = "N")]
    pub of_device: Option<u32>,

    /// Refuse recordings of more events [default: 8388608, which can take about a gigabyte].
    #[arg(long, value_name = "N")]
    pub max_events: Option<u64>,
}

impl ReadingOptions {
    /// What the reader goes by.
    pub(crate) fn options(&self) -> ReadOptions {
        let mut reading = ReadOptions::default();
        reading.device = self.of_device;
        reading.events = self.max_events.unwrap_or(reading.events);
        reading
    }
}

/// The options of every command that replays recordings.
#[derive(Clone, Debug, Default, PartialEq, Eq, Args)]
#[non_exhaustive]
pub struct WorkOptions {
    /// How long to work on a recording before giving up, such as 90s, 10min or 2h; "none" sets no limit [default: 30 s,
    /// and 1 ms for each event].
    #[arg(long, value_name = "TIME")]
    pub limit: Option<TimeLimit>,
}

/// How long a command may work on one recording.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum TimeLimit {
    /// So long.
    Within(Duration),
    /// As long as it takes.
    None,
}

impl WorkOptions {
    /// The budget for a recording that is played `passes` times in all, roughly.
    pub(crate) fn budget(&self, trace: &Trace, passes: u64) -> WorkBudget<'static> {
        let events = trace.len() as u64;
        let budget = match self.limit {
            None => {
                let events = u32::try_from(events).unwrap_or(u32::MAX);
                WorkBudget::of(BASE.saturating_add(PER_EVENT.saturating_mul(events)))
            }
            Some(TimeLimit::Within(limit)) => WorkBudget::of(limit),
            Some(TimeLimit::None) => WorkBudget::unlimited(),
        };
        budget.expect(events.saturating_mul(passes));
        budget
    }
}

impl FromStr for TimeLimit {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        if text == "none" {
            return Ok(Self::None);
        }
        let digits = text.find(|letter: char| !letter.is_ascii_digit()).unwrap_or(text.len());
        let (count, unit) = text.split_at(digits);
        let unit = match unit.trim() {
            "" | "s" => Some(1),
            "m" | "min" => Some(60),
            "h" => Some(3600),
            _ => None,
        };
        let seconds = count.parse::<u64>().ok().zip(unit);
        let seconds =
            seconds.and_then(|(count, unit)| count.checked_mul(unit)).filter(|&all| all > 0);
        let limit = seconds.map(|seconds| Self::Within(Duration::from_secs(seconds)));
        limit.ok_or_else(|| "write a time such as 90s, 10min or 2h, or \"none\"".to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_read_as_people_write_them() {
        let within = |seconds| Ok(TimeLimit::Within(Duration::from_secs(seconds)));
        for (text, limit) in [
            ("45", within(45)),
            ("90s", within(90)),
            ("10min", within(600)),
            ("10 min", within(600)),
            ("2h", within(7200)),
            ("none", Ok(TimeLimit::None)),
        ] {
            assert_eq!(text.parse(), limit, "{text}");
        }
        for text in ["", "0", "-1", "1.5h", "fast", "99999999999999999999h", "5 days"] {
            assert!(text.parse::<TimeLimit>().unwrap_err().contains("90s"), "{text}");
        }
    }
}
