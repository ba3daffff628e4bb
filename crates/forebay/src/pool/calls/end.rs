//! Drops a pool: reports leaks, waits for the device, returns everything to it.

use core::mem::ManuallyDrop;

use forebay_hal::Error;

use crate::pool::calls::{registry, report};
use crate::pool::inner::PoolInner;
use crate::pool::turn;
use crate::retry::retry_once;

impl Drop for PoolInner {
    fn drop(&mut self) {
        if self.is_from_parent() {
            return;
        }
        let id = self.id;
        registry::remove(id);
        if let Some(callback) = &self.options.drop_callback
            && let Some(report) = report::drop_report(self)
        {
            // A panic has reached the panic hook; there is nothing left to report it to.
            let _ = self.callbacks.call(|| turn::in_program(|| callback(&report)));
        }
        // Work may still use the memory. If waiting fails, the device is lost, and its work with it.
        let waited = retry_once(|| self.device.synchronize_device());
        // A lost device may still read and write memory of the host, which is leaked.
        if !(matches!(waited, Err(Error::Lost { .. })) && self.source.outlives_device()) {
            self.backing().tear_down(self.context());
        }
        // The memory is back. With the parts go the callbacks, and what the program let them own.
        // SAFETY: this is the drop of the last reference, the parts are dropped nowhere else, and nothing below uses
        // them.
        turn::in_program(|| unsafe { ManuallyDrop::drop(&mut self.0) });
        id.forget_name();
    }
}
