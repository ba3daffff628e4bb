//! Fault injection.

use core::fmt;

use forebay_core::Random;
use forebay_hal::{Call, named_enum};

/// When a fault strikes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum When {
    /// At the call with this number, counted from 1 over all calls of the machine.
    Call(u64),
    /// At the call of this kind with this number, counted from 1 for each kind.
    Kind(Call, u64),
    /// At every call of this kind.
    Every(Call),
    /// At any call, this many times in a million, as the seed decides.
    PerMillion(u32),
}

named_enum! {
    /// What a fault does to the call it strikes.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum FaultKind {
        /// The call runs out of memory.
        OutOfMemory = "out of memory",
        /// The call fails for a temporary reason.
        Transient = "transient",
        /// The device is lost, from this call on.
        Lost = "device lost",
    }
}

/// A planned fault.
///
/// ```
/// use forebay_hal::Call;
/// use forebay_sim::{Fault, FaultKind, When};
/// // The third page the program asks for cannot be had.
/// let fault = Fault::new(When::Kind(Call::CreatePage, 3), FaultKind::OutOfMemory);
/// assert_eq!(fault.to_string(), "out of memory at create_page number 3");
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fault {
    when: When,
    kind: FaultKind,
}

impl Fault {
    /// Creates a fault of that kind at that time.
    pub const fn new(when: When, kind: FaultKind) -> Self {
        Self { when, kind }
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.when {
            When::Call(number) => write!(f, "{} at call {number}", self.kind),
            When::Kind(call, number) => write!(f, "{} at {call} number {number}", self.kind),
            When::Every(call) => write!(f, "{} at every {call}", self.kind),
            When::PerMillion(times) => write!(f, "{} {times} times in a million", self.kind),
        }
    }
}

/// The faults to come, and the chance that decides some of them.
#[derive(Debug)]
pub(crate) struct Faults {
    planned: Vec<Fault>,
    /// Apart from the scheduler's, so that adding a fault does not change the order of work.
    random: Random,
}

impl Faults {
    pub(crate) fn new(seed: u64) -> Self {
        Self { planned: Vec::new(), random: Random::new(seed ^ 0xfa17) }
    }

    pub(crate) fn plan(&mut self, fault: Fault) {
        self.planned.push(fault);
    }

    pub(crate) fn clear(&mut self) {
        self.planned.clear();
    }

    /// What strikes `call`, the `number`th of all and the `of_kind`th of its kind.
    pub(crate) fn strike(&mut self, call: Call, number: u64, of_kind: u64) -> Option<FaultKind> {
        let random = &mut self.random;
        self.planned
            .iter()
            .find(|fault| match fault.when {
                When::Call(at) => at == number,
                When::Kind(kind, at) => kind == call && at == of_kind,
                When::Every(kind) => kind == call,
                When::PerMillion(times) => random.chance(u64::from(times), 1_000_000),
            })
            .map(|fault| fault.kind)
    }
}
