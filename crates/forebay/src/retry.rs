//! Calls that are made once more.

/// Retries a failed call once. For tearing down and for waiting: nobody can retry later.
pub(crate) fn retry_once<T, E>(
    mut call: impl FnMut() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    call().or_else(|_| call())
}
