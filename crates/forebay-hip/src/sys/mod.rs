//! HIP's interface, as far as forebay uses it: structures, constants, error names, and the table of its functions.
//!
//! Declared by hand, and checked in the tests against an independent set of bindings. Handles, and structures with the
//! same layout as CUDA's, are [CUDA's types](forebay_cuda::sys).

mod code;
mod structs;
mod table;
pub mod values;

pub use code::HIP;
pub use structs::{Copy3d, NarrowCopy3d, PointerAttributes};
pub use table::{SYMBOLS, Symbols};
