//! How a report is made.

use forebay::Settings;
use forebay_core::Bytes;

/// How a report is made.
pub(super) struct Terms<'a> {
    /// What forebay's pool goes by.
    pub(super) settings: &'a Settings,
    /// What the simulated device has; unless said, more than any run asks for.
    pub(super) capacity: Option<Bytes>,
    /// Whether to replay on devices of many sizes and with other settings.
    pub(super) is_thorough: bool,
    /// Told what begins.
    pub(super) tell: &'a dyn Fn(&'static str),
}
