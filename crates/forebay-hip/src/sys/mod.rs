//! HIP's interface, as far as forebay uses it: structures, constants, error names, and the table of its functions.
//!
//! Declared here by hand, and checked against an independent set of bindings in the tests. Handles, and structures that
//! lie as CUDA's do, are [CUDA's types](forebay_cuda::sys).

mod code;
mod structs;
mod table;
pub mod values;

pub use code::HIP;
pub use structs::{Copy3d, NarrowCopy3d, PointerAttributes};
pub use table::{SYMBOLS, Table};
