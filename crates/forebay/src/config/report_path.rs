//! Where a report is written.

use std::collections::BTreeSet;
use std::path::Path;

use super::kind::Kind;
use crate::sync::fork::ForkSafeMutex;

/// Longest path in bytes: the usual limit of systems.
const LONGEST: usize = 4096;

/// All paths ever set. Kept forever, so that a setting is a plain value; a program sets few.
static PATHS: ForkSafeMutex<BTreeSet<&'static str>> = ForkSafeMutex::new(BTreeSet::new());

/// The path of a report file, or none.
///
/// ```
/// use forebay::config::{ReportPath, Settings};
///
/// let settings = Settings::builder().set("oom_report", "/tmp/oom.txt")?.build()?;
/// assert_eq!(settings.oom_report().path(), Some("/tmp/oom.txt".as_ref()));
/// assert_eq!(ReportPath::NONE.path(), None);
/// # Ok::<(), forebay::config::ConfigError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub struct ReportPath(Option<&'static str>);

impl ReportPath {
    /// No report.
    pub const NONE: Self = Self(None);

    /// The path, if a report is to be written.
    pub fn path(self) -> Option<&'static Path> {
        self.0.map(Path::new)
    }
}

impl Kind for ReportPath {
    const NAME: &'static str = "path or none";
    const FORM: &'static str = "the path of a file, without commas, or none";

    fn read(text: &str) -> Option<Self> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("none") {
            return Some(Self::NONE);
        }
        let is_odd = |letter: char| letter.is_control() || letter == ',';
        if text.is_empty() || text.len() > LONGEST || text.contains(is_odd) {
            return None;
        }
        let mut paths = PATHS.lock();
        let kept = paths.get(text).copied().unwrap_or_else(|| {
            let kept: &'static str = Box::leak(text.into());
            paths.insert(kept);
            kept
        });
        Some(Self(Some(kept)))
    }

    fn write(&self) -> String {
        self.0.unwrap_or("none").to_owned()
    }
}
