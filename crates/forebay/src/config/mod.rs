//! Settings: the keys, the sources they come from, and the effective values.
//!
//! ```text
//!   lowest                                                                      highest
//!   defaults ─ preset ─ file ─ FOREBAY_CONF ─ FOREBAY_<KEY> ─ code ─ change at run time
//!              │        └──────────── keys that someone set ───────────────────────┘
//!              └ named by any of them, and below every key that someone set
//! ```
//!
//! All keys are in one table, in `table.rs`, which drives parsing, checking, the documentation and `forebay doctor`. A
//! [`Settings`] holds only values that were set explicitly, each with its [`Source`]; other values come from the preset
//! and then from the table. So setting one option does not affect the others.
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
//! Only [`Settings::from_environment`], [`Settings::from_file`] and [`Sources::here`] read the process's environment or
//! a file. No file is read unless named: a library has no business with whatever lies in the working directory.

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
