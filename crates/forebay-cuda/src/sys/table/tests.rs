use core::ffi::c_void;
use core::ptr::NonNull;

use super::*;

/// Stands for any function: it is never called but as one that takes no argument it looks at.
unsafe extern "C" fn answers(_: u32) -> Code {
    Code::ERROR_UNKNOWN
}

fn address() -> Option<NonNull<c_void>> {
    let function: unsafe extern "C" fn(u32) -> Code = answers;
    NonNull::new(function as *mut c_void)
}

#[test]
fn a_missing_function_that_is_needed_is_named() {
    for needed in SYMBOLS.iter().filter(|symbol| symbol.need == Need::Required) {
        let find = |symbol: &'static Symbol| if symbol == needed { None } else { address() };
        // SAFETY: the table is dropped without a call.
        let missing = unsafe { Symbols::load(find) }.map(drop);
        assert_eq!(missing, Err(needed));
    }
}

#[test]
fn optional_functions_may_be_missing_and_say_so() {
    let find = |symbol: &'static Symbol| match symbol.need {
        Need::Required => address(),
        Need::Optional => None,
    };
    // SAFETY: of those that are there only `init` is called, whose signature is right.
    let table = unsafe { Symbols::load(find) }.unwrap();
    assert!(table.mem_create.is_none() && table.stream_get_id.is_none());
    let mut id = 0;
    // SAFETY: nothing is called.
    let refused = unsafe { table.stream_get_id(RawStream::NULL, &raw mut id) }.unwrap_err();
    assert_eq!(refused.code, Code::MISSING);
    assert_eq!(refused.symbol.name, "cuStreamGetId");
    // SAFETY: the signature is right.
    let answered = unsafe { table.init(0) }.unwrap_err();
    assert_eq!((answered.code, answered.symbol.name), (Code::ERROR_UNKNOWN, "cuInit"));
}

#[test]
fn the_table_and_the_list_are_in_the_same_order() {
    // Each symbol is given as its own place in the list; what is asked for must come in order.
    let asked = std::cell::RefCell::new(Vec::new());
    let find = |symbol: &'static Symbol| {
        asked.borrow_mut().push(symbol.export);
        address()
    };
    // SAFETY: the table is dropped without a call.
    unsafe { Symbols::load(find) }.unwrap();
    let right: Vec<_> = SYMBOLS.iter().map(|symbol| symbol.export).collect();
    assert_eq!(asked.into_inner(), right);
}
