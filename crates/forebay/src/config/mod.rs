//! Settings: the keys, the sources they come from, and the effective values.
//!
//! ```text
//!   lowest                                                                      highest
//!   defaults ─ preset ─ file ─ FOREBAY_CONF ─ FOREBAY_<KEY> ─ code ─ change at run time
//!              │        └──────────── keys that someone set ───────────────────────┘
//!              └ named by any of them, and below every key that someone set
//! ```
//!
//! All keys are in one table, in `key.rs`, which drives parsing, checking, the documentation and `forebay doctor`. A
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

mod error;
mod key;
mod settings;
mod source;
mod sources;
#[cfg(test)]
mod tests;
mod value;

pub use forebay_core::SizeClasses;
pub use forebay_core::address_space::Growth;

pub use error::ConfigError;
pub use key::Key;
pub use settings::{Settings, SettingsBuilder};
pub use source::{Entry, Source};
pub use sources::{Examined, Sources};
pub use value::{Counting, Fraction, PoolName, Preset, Zeroing};
