//! The allocators on which a run can be replayed.

use std::fmt;
use std::sync::Arc;

use clap::ValueEnum;
use clap::builder::PossibleValue;
use forebay::{PoolOptions, Settings};
use forebay_hal::Device;
use forebay_trace::{Model, Player, PoolPlayer, Recorder};

/// An allocator to play on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Policy {
    /// forebay's own pool.
    Forebay,
    /// A model of another allocator.
    Model(Model),
}

impl Policy {
    /// Every policy there is.
    pub const ALL: &'static [Self] = &[
        Self::Forebay,
        Self::Model(Model::Torch),
        Self::Model(Model::TorchExpandable),
        Self::Model(Model::PowersOfTwo),
        Self::Model(Model::Direct),
    ];

    /// The name in commands and files.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Forebay => "forebay",
            Self::Model(model) => model.name(),
        }
    }

    /// The settings for a comparison of `policies`: those of the environment, or the defaults if forebay's pool is
    /// not compared: other policies have no settings.
    pub fn settings(policies: &[Self]) -> Result<Settings, forebay::config::ConfigError> {
        match policies.contains(&Self::Forebay) {
            true => Settings::from_environment(),
            false => Ok(Settings::default()),
        }
    }

    /// A player of this kind on `device`; forebay's pool goes by `settings`.
    pub fn player(
        self,
        device: Arc<dyn Device>,
        settings: &Settings,
    ) -> Result<Box<dyn Player>, forebay::Error> {
        match self {
            Self::Forebay => {
                let options = PoolOptions::with(settings.clone());
                Ok(Box::new(PoolPlayer::with(device, options)?))
            }
            Self::Model(model) => Ok(model.player(device)?),
        }
    }
}

/// forebay's own pool on `device`, with a recorder beside it.
pub(super) fn watched(
    device: Arc<dyn Device>,
    settings: &Settings,
    recorder: &Recorder,
) -> Result<PoolPlayer, forebay::Error> {
    PoolPlayer::with(device, recorder.watch(PoolOptions::with(settings.clone())))
}

impl ValueEnum for Policy {
    fn value_variants<'a>() -> &'a [Self] {
        Self::ALL
    }

    fn to_possible_value(&self) -> Option<PossibleValue> {
        let about = match self {
            Self::Forebay => "forebay's own pool, configured by the FOREBAY_ variables",
            Self::Model(Model::Torch) => "a model of PyTorch's allocator",
            Self::Model(Model::TorchExpandable) => {
                "a model of PyTorch's allocator with expandable segments"
            }
            Self::Model(Model::PowersOfTwo) => {
                "a model of an allocator that rounds sizes up to powers of two"
            }
            Self::Model(Model::Direct) => "no pool: every request goes to the driver",
            Self::Model(_) => "a model of another allocator",
        };
        Some(PossibleValue::new(self.name()).help(about))
    }
}

impl fmt::Display for Policy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}
