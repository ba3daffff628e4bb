//! Retrying of calls.

/// Retries a failed call once. For teardown and waits, which cannot be retried later.
pub(crate) fn retry_once<T, E>(
    mut call: impl FnMut() -> core::result::Result<T, E>,
) -> core::result::Result<T, E> {
    call().or_else(|_| call())
}
