//! Stub for platforms without abstract sockets: only Linux has socket names that leave no file behind.

use core::panic::Location;
use core::time::Duration;
use std::sync::Arc;

use forebay_core::Address;
use forebay_hal::Device;

use super::error::SharedError;
use super::request::{Element, Request};
use crate::Result;
use crate::buffer::{BufferManager, SharedRegistration};

/// A shared buffer; cannot exist on this platform.
#[derive(Debug)]
pub(super) enum RawShared {}

/// The guard of a lock that can never be acquired.
pub(super) type RawLock<'a> = &'a RawShared;

fn unsupported<T>() -> Result<T> {
    let missing = "named shared buffers need Linux".into();
    Err(SharedError::Unsupported { missing }.into())
}

impl RawShared {
    pub(super) fn create(_: &Arc<dyn Device>, _: &Request<'_>, _: u64) -> Result<Self> {
        unsupported()
    }

    pub(super) fn open(_: &Arc<dyn Device>, _: &Request<'_>, _: Option<u64>) -> Result<Self> {
        unsupported()
    }

    pub(super) fn create_or_open(_: &Arc<dyn Device>, _: &Request<'_>, _: u64) -> Result<Self> {
        unsupported()
    }

    pub(super) fn enter(&self, _: &BufferManager, _: &'static Location<'static>) -> SharedRegistration {
        match *self {}
    }

    pub(super) fn name(&self) -> &str {
        match *self {}
    }

    pub(super) fn open_any(_: &Arc<dyn Device>, _: &Request<'_>) -> Result<Self> {
        unsupported()
    }

    pub(super) fn element(&self) -> &Element {
        match *self {}
    }

    pub(super) fn unlock(&self) -> Result<()> {
        match *self {}
    }

    pub(super) fn abandon_lock(&self) {
        match *self {}
    }

    pub(super) fn length(&self) -> u64 {
        match *self {}
    }

    pub(super) fn creator(&self) -> (u32, u32) {
        match *self {}
    }

    pub(super) fn is_reachable(&self) -> bool {
        match *self {}
    }

    pub(super) fn device(&self) -> &Arc<dyn Device> {
        match *self {}
    }

    pub(super) fn address(&self) -> Address {
        match *self {}
    }

    pub(super) fn pointer(&self) -> Option<*mut u8> {
        match *self {}
    }

    pub(super) fn read(&self, _: u64, _: &mut [u8]) -> Result<()> {
        match *self {}
    }

    pub(super) fn write(&self, _: u64, _: &[u8]) -> Result<()> {
        match *self {}
    }

    pub(super) fn lock(&self, _: Option<Duration>) -> Result<Option<RawLock<'_>>> {
        match *self {}
    }
}
