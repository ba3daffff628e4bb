//! A trial: a program played on a pool, with an oracle that knows what the pool may not do.
//!
//! ```text
//!   Program ──► Run ──► Pool ──► Front ──► device        a script fails or swallows the pool's calls
//!    of a seed,  │  └─ Hands: which thread makes the call
//!    of bytes    ├──► Oracle: what is live, by address
//!                └──► Stage ───────────► device        writes and checks every block, late
//!                       └─ findings, and what is left at the end
//! ```
//!
//! Everything here goes through the pool's public face, so it outlives what is behind it.

mod front;
mod hands;
mod oracle;
mod program;
mod run;
mod setting;
mod stage;
mod verdict;
mod ways;

pub(crate) use front::{Failing, Front, Script, Target};
pub(crate) use hands::Hands;
pub(crate) use oracle::Oracle;
pub(crate) use program::{FreedOn, Operation, Program, Record, Wrong};
pub(crate) use run::{Run, is_refusal, try_on_sim};
pub(crate) use setting::{Room, Setting};
pub(crate) use stage::Stage;
pub(crate) use verdict::{Complaint, Failure, Outcome};
pub(crate) use ways::{Given, WAYS, Way, free_by};
