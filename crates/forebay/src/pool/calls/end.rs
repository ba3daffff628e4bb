//! The end of a pool.

use core::mem::ManuallyDrop;

use crate::pool::backing::page_provider::twice;
use crate::pool::calls::registry;
use crate::pool::shared::Shared;

impl Drop for Shared {
    fn drop(&mut self) {
        if self.is_inherited() {
            return;
        }
        registry::remove(self.id);
        if let Some(told) = &self.options.told
            && let Some(report) = self.left()
        {
            // There is nobody left to tell of a panic but the hook, which was told.
            let _ = self.callbacks.call(|| told(&report));
        }
        // Work may still use what is about to be given back; where waiting fails the device is lost, and
        // its work with it.
        let _ = twice(|| self.device.synchronize_device());
        self.backing().tear_down(self.site());
        // SAFETY: nobody uses the parts after this.
        unsafe { ManuallyDrop::drop(&mut self.0) };
    }
}
