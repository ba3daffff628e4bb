//! Settings: what can be set, from where, and what is in force.
//!
//! ```text
//!   lowest                                                                      highest
//!   defaults ─ preset ─ file ─ FOREBAY_CONF ─ FOREBAY_<KEY> ─ code ─ change at run time
//!              │        └──────────── keys that someone set ───────────────────────┘
//!              └ named by any of them, and below every key that someone set
//! ```
//!
//! There is one table of keys, in `table.rs`. Reading, checking, the documentation and
//! `forebay doctor` all go by it. A [`Settings`] holds only what someone set, each value with its
//! [`Source`]; what nobody set is looked up in the preset and then in the table. So setting one
//! option leaves all others as they were.
//!
//! ```
//! use forebay::config::{Settings, Source};
//! use forebay::Bytes;
//!
//! let outer = Settings::parse_conf("preset:high_frequency, max_bytes:8GiB, pressure_moderate:75%")?;
//! let settings = outer.into_builder().magazine_bytes(Bytes::mib(4)).build()?;
//! assert_eq!(settings.max_bytes(), Some(Bytes::gib(8)));
//! assert_eq!(settings.magazine_bytes(), Bytes::mib(4));
//! assert_eq!(settings.collect_after(), None, "as the preset has it");
//! assert_eq!(settings.get("magazine_bytes")?.source, Source::Code);
//!
//! let refusal = Settings::parse_conf("max_byte:8GiB").unwrap_err().to_string();
//! assert!(refusal.ends_with("did you mean max_bytes?"), "{refusal}");
//! # Ok::<(), forebay::config::ConfigError>(())
//! ```
//!
//! Nothing here reads the process's environment or a file but [`Settings::from_environment`],
//! [`Settings::from_file`] and [`Sources::here`]. No file is looked for that nobody named: a
//! library has no business with what happens to lie in the working directory.

mod builder;
mod choice;
mod conf;
mod error;
mod file;
mod fraction;
mod key;
mod kind;
mod layer;
mod nearest;
mod preset;
mod report_path;
mod settings;
mod source;
mod sources;
mod table;
#[cfg(test)]
mod tests;

pub use forebay_core::address_space::Growth;

pub use builder::SettingsBuilder;
pub use choice::{Counting, Rounding, Zeroing};
pub use error::ConfigError;
pub use fraction::Fraction;
pub use key::Key;
pub use preset::Preset;
pub use report_path::ReportPath;
pub use settings::{Entry, Settings};
pub use source::Source;
pub use sources::{Examined, Sources};
