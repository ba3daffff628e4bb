//! Translates system errors into errors of the device contract.

use forebay_core::Bytes;
use forebay_hal::{Call, Error, MemoryInfo};
use rustix::io::Errno;

use crate::system::System;

/// The error for a call the system refused, where lack of memory is not the reason or is told
/// apart by the caller.
pub(crate) fn refused(call: Call, errno: Errno) -> Error {
    let transient = |reason: String| Error::Transient { call, reason: reason.into() };
    match errno {
        Errno::MFILE | Errno::NFILE => transient(format!(
            "{errno}: every shared page is an open file; close some, or raise the limit (ulimit -n)"
        )),
        Errno::FBIG => transient(format!(
            "{errno}: pages are memory files, and this process may make none above {}; raise the \
             limit (ulimit -f)",
            crate::mapping::largest_file()
        )),
        // What the mapping calls say where a process has too many mappings.
        Errno::NOMEM => transient(format!(
            "{errno}: the system refused another mapping{}; unmap something, use fewer and larger \
             pages, or raise vm.max_map_count",
            match System::here().limits().max_maps {
                Ok(most) => format!(" (a process may have {most})"),
                Err(_) => String::new(),
            }
        )),
        Errno::PERM | Errno::ACCESS | Errno::NOSYS | Errno::OPNOTSUPP => Error::Unsupported {
            call,
            missing: format!("the system does not allow it: {errno}").into(),
        },
        _ => transient(format!("the system said: {errno}")),
    }
}

/// The error for memory, where the figures were `info` when the system refused.
pub(crate) fn no_memory(call: Call, requested: Bytes, info: MemoryInfo, errno: Errno) -> Error {
    match errno {
        Errno::NOMEM | Errno::NOSPC => info.out_of_memory(call, requested),
        _ => refused(call, errno),
    }
}
