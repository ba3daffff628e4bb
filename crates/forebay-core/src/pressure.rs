//! Pressure: how close a pool is to its limit, and how it responds.

use core::fmt;

use crate::Bytes;

/// How close a pool is to its limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Level {
    /// The pool holds so little that caches may grow again.
    #[default]
    Low,
    /// Between low and moderate.
    Normal,
    /// The pool flushes its caches and keeps them small.
    Moderate,
    /// The pool warns the program.
    High,
    /// The pool releases idle memory, some pages with each request that makes it grow.
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
        match held {
            _ if held >= self.critical => Level::Critical,
            _ if held >= self.high => Level::High,
            _ if held >= self.moderate => Level::Moderate,
            _ if held >= self.low => Level::Normal,
            _ => Level::Low,
        }
    }
}

/// How a pool responds to a change of level.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Response {
    /// Nothing.
    Nothing,
    /// Let caches grow to their configured size.
    Expand,
    /// Flush the caches, and keep them small from now on.
    Clean,
    /// Clean, and release idle memory as far as that takes no waiting.
    ReleaseIdle,
}

/// Tracks the pressure level of a pool.
///
/// ```
/// use forebay_core::Bytes;
/// use forebay_core::pressure::{Response, Gauge, Level, Thresholds};
///
/// let thresholds = Thresholds {
///     low: Bytes::new(30),
///     moderate: Bytes::new(80),
///     high: Bytes::new(90),
///     critical: Bytes::new(95),
/// };
/// let mut gauge = Gauge::default();
/// assert_eq!(gauge.read(&thresholds, Bytes::new(50)), None, "neither little nor much");
/// let (level, response) = gauge.read(&thresholds, Bytes::new(91)).ok_or("a change")?;
/// assert_eq!((level, response), (Level::High, Response::Clean));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, Default)]
pub struct Gauge {
    level: Level,
    /// Whether caches were made small and not allowed to grow since.
    cleaned: bool,
}

impl Gauge {
    /// The level at the last reading.
    pub fn level(&self) -> Level {
        self.level
    }

    /// Updates the level and, if the change matters, returns the new level and the response. Between low
    /// and moderate there is no response, so that a pool near a threshold does not alternate between
    /// cleaning and expanding.
    pub fn read(&mut self, thresholds: &Thresholds, held: Bytes) -> Option<(Level, Response)> {
        let before = core::mem::replace(&mut self.level, thresholds.level(held));
        if self.level == before {
            return None;
        }
        let rising = self.level > before;
        let response = match self.level {
            Level::Critical => Response::ReleaseIdle,
            Level::High | Level::Moderate if rising => Response::Clean,
            Level::Low if self.cleaned => Response::Expand,
            _ => Response::Nothing,
        };
        self.cleaned = match response {
            Response::Clean | Response::ReleaseIdle => true,
            Response::Expand => false,
            Response::Nothing => self.cleaned,
        };
        let tells = self.level >= Level::Moderate || before >= Level::Moderate;
        (tells || response != Response::Nothing).then_some((self.level, response))
    }
}

#[cfg(test)]
mod tests;
