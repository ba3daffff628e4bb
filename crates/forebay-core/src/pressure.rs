//! Pressure: how near a pool is to its limit, and what that calls for.

use core::fmt;

use crate::Bytes;

/// How near a pool is to its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// So little is held that caches may grow again.
    #[default]
    Low,
    /// Neither little nor much.
    Normal,
    /// Idle memory is cleaned up.
    Moderate,
    /// The program is warned.
    High,
    /// Everything idle is given back at once.
    Critical,
}

impl fmt::Display for Level {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(match self {
            Self::Low => "low",
            Self::Normal => "normal",
            Self::Moderate => "moderate",
            Self::High => "high",
            Self::Critical => "critical",
        })
    }
}

/// Where the levels begin, in bytes held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Thresholds {
    /// Below this the level is low.
    pub low: Bytes,
    /// From here on it is moderate.
    pub moderate: Bytes,
    /// From here on it is high.
    pub high: Bytes,
    /// From here on it is critical.
    pub critical: Bytes,
}

impl Thresholds {
    /// The level at `held` bytes.
    pub fn level(&self, held: Bytes) -> Level {
        if held >= self.critical {
            Level::Critical
        } else if held >= self.high {
            Level::High
        } else if held >= self.moderate {
            Level::Moderate
        } else if held >= self.low {
            Level::Normal
        } else {
            Level::Low
        }
    }
}

/// What a change of level calls for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Answer {
    /// Nothing.
    Nothing,
    /// Let caches be as large as they are set to be.
    Expand,
    /// Fold what caches hold, and keep them small from now on.
    Clean,
    /// That, and give back everything idle that needs no waiting for.
    GiveBack,
}

/// The level a pool is at, and was.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_core::pressure::{Answer, Gauge, Level, Thresholds};
///
/// let thresholds = Thresholds {
///     low: Bytes::new(30),
///     moderate: Bytes::new(80),
///     high: Bytes::new(90),
///     critical: Bytes::new(95),
/// };
/// let mut gauge = Gauge::default();
/// assert_eq!(gauge.read(&thresholds, Bytes::new(50)), None, "neither little nor much");
/// let (level, answer) = gauge.read(&thresholds, Bytes::new(91)).ok_or("a change")?;
/// assert_eq!((level, answer), (Level::High, Answer::Clean));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    level: Level,
    /// Whether caches were made small and have not been let grow since.
    cleaned: bool,
}

impl Gauge {
    /// The level at the last reading.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Reads the gauge: where the level has changed in a way that matters, gives the new one and what
    /// to do. Between low and moderate nothing is done, so that a pool at a threshold does not clean
    /// and expand in turns.
    pub fn read(&mut self, thresholds: &Thresholds, held: Bytes) -> Option<(Level, Answer)> {
        let before = core::mem::replace(&mut self.level, thresholds.level(held));
        if self.level == before {
            return None;
        }
        let rising = self.level > before;
        let answer = match self.level {
            Level::Critical => Answer::GiveBack,
            Level::High | Level::Moderate if rising => Answer::Clean,
            Level::Low if self.cleaned => Answer::Expand,
            _ => Answer::Nothing,
        };
        self.cleaned = match answer {
            Answer::Clean | Answer::GiveBack => true,
            Answer::Expand => false,
            Answer::Nothing => self.cleaned,
        };
        let tells = self.level >= Level::Moderate || before >= Level::Moderate;
        (tells || answer != Answer::Nothing).then_some((self.level, answer))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thresholds() -> Thresholds {
        let at = Bytes::new;
        Thresholds { low: at(30), moderate: at(80), high: at(90), critical: at(95) }
    }

    #[test]
    fn levels_begin_where_they_are_set() {
        let levels = [0, 29, 30, 79, 80, 89, 90, 94, 95, 100, u64::MAX];
        let levels = levels.map(|held| thresholds().level(Bytes::new(held)));
        use Level::*;
        let expected = [
            Low, Low, Normal, Normal, Moderate, Moderate, High, High, Critical, Critical, Critical,
        ];
        assert_eq!(levels, expected);
    }

    #[test]
    fn a_rise_is_answered_once_and_a_fall_expands_only_at_low() {
        let mut gauge = Gauge::default();
        let mut read = |held| gauge.read(&thresholds(), Bytes::new(held));
        assert_eq!(read(40), None);
        assert_eq!(read(85), Some((Level::Moderate, Answer::Clean)));
        assert_eq!(read(86), None);
        assert_eq!(read(92), Some((Level::High, Answer::Clean)));
        assert_eq!(read(99), Some((Level::Critical, Answer::GiveBack)));
        assert_eq!(read(91), Some((Level::High, Answer::Nothing)));
        assert_eq!(read(50), Some((Level::Normal, Answer::Nothing)));
        assert_eq!(read(10), Some((Level::Low, Answer::Expand)));
        assert_eq!(read(50), None);
        assert_eq!(read(10), None, "nothing was cleaned since");
    }
}
