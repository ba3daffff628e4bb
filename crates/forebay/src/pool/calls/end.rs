//! The end of a pool.

use core::mem::ManuallyDrop;

use crate::pool::backing::page_provider::retry_once;
use crate::pool::calls::registry;
use crate::pool::shared::Shared;

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        registry::remove(self.id);
        if let Some(callback) = &self.options.drop_callback
            && let Some(report) = self.drop_report()
        {
            // There is nobody left to tell of a panic but the hook, which was told.
            let _ = self.callbacks.call(|| callback(&report));
        }
        // Work may still use what is about to be given back; where waiting fails the device is lost, and
        // its work with it.
        let _ = retry_once(|| self.device.synchronize_device());
        self.backing().tear_down(self.context());
        // SAFETY: nobody uses the parts after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}
