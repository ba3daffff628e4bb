//! The CUDA driver's interface, as far as forebay uses it: handles, structures, constants, result
//! codes, and the table of its functions.
//!
//! Declared by hand, and checked in the tests against an independent set of bindings: every size, offset, alignment and
//! value. Sizes and addresses are 64 bits wide because the driver is, on every platform that has one.

#[cfg(not(target_pointer_width = "64"))]
compile_error!("CUDA has no driver for processes whose pointers are not 64 bits wide");

mod code;
mod structs;
mod table;
pub mod values;

pub use code::{CUDA, Code, Interface};
pub use structs::{
    AccessDescription, AllocationFlags, AllocationProperties, Copy2d, Copy3d, CopyAttributes,
    MemoryLocation, RawContext, RawEvent, RawFunction, RawMemoryPool, RawModule, RawPage,
    RawStream,
};
pub use table::{DriverError, Function, HostFunction, Need, Outcome, SYMBOLS, Symbol, Symbols};
