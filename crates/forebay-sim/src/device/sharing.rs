//! Pages shared with other processes.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_core::Bytes;
use forebay_hal::{Call, PageHandle, PageOptions, Result, Sharing, VirtualMemory, invalid};
use forebay_host::mapping::MemoryFile;

use super::SimDevice;
use crate::engine::{Store, system_refused};

// SAFETY: what is exported is the page's own memory file, sealed in size, and what is imported is
// checked to be such a file of that size: the memory is one, and lives while any process has it.
unsafe impl Sharing for SimDevice {
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd> {
        let call = Call::ExportPage;
        let mut state = self.engine.enter(self.ordinal, call, Bytes::ZERO)?;
        let info = state.memory_info(self.ordinal);
        let space = state.space(call, self.ordinal)?;
        let found = space.book.live_page(call, page)?;
        match found.owner.store.file().filter(|_| found.owner.options.shareable) {
            Some(file) => {
                file.export().map_err(|errno| system_refused(call, found.size, info, errno))
            }
            None => {
                let given = format!("{page}, which is not shareable");
                Err(invalid(call, "page", given, "a page created with PageOptions::shareable"))
            }
        }
    }

    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle> {
        let call = Call::ImportPage;
        let page = self.granularity().minimum;
        let mut state = self.engine.enter(self.ordinal, call, size)?;
        let file = MemoryFile::import(descriptor, size)
            .ok()
            .filter(|_| !size.is_zero() && size.is_aligned_to(page.alignment()));
        let Some(file) = file else {
            let given = format!("a descriptor that is not a page of {} B", size.get());
            return Err(invalid(call, "descriptor", given, "an exported page, with its size"));
        };
        // Released pages count too: they live on where they are mapped.
        let known = state.spaces.iter().flat_map(|space| space.book.pages()).find(|page| {
            page.owner.store.file().is_some_and(|theirs| theirs.is_same_memory(&file))
        });
        // A page of this very machine keeps its name, so that the checker sees one memory.
        let store = match known {
            Some(page) => Arc::clone(&page.owner.store),
            None => {
                let info = state.memory_info(self.ordinal);
                Store::of_file(file).map_err(|errno| system_refused(call, size, info, errno))?
            }
        };
        self.add_page(&mut state, call, (size, Bytes::ZERO), store, PageOptions::shareable())
    }
}
