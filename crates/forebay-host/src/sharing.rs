//! Pages shared with other processes, as memory files.

use std::os::fd::{BorrowedFd, OwnedFd};
use std::sync::Arc;

use forebay_core::Bytes;
use forebay_hal::{Call, PageHandle, Result, Sharing, invalid, multiple};
use rustix::io::Errno;

use crate::mapping::MemoryFile;
use crate::page::PageBacking;
use crate::{HostDevice, errno};

/// What a descriptor must be.
const A_PAGE: &str = "a descriptor that export_page gave, with the size its page was created with";

// SAFETY: a shareable page is a memory file of its own, and an imported one the same file, so both
// are one memory, which lives as long as a descriptor or a mapping of it anywhere. Files are sealed
// in size when they are made and refused when they are not, so neither side can pull memory from
// under the other. Descriptors are duplicated with close-on-exec.
unsafe impl Sharing for HostDevice {
    fn export_page(&self, page: PageHandle) -> Result<OwnedFd> {
        let call = Call::ExportPage;
        self.descriptor.check_process(call)?;
        let substance = self.space.table().book.live_page(call, page)?.owner.clone();
        match substance {
            PageBacking::Part(..) => {
                Err(invalid(call, "page", page, "a page that was created shareable"))
            }
            PageBacking::Whole(file) | PageBacking::Imported(file) => {
                file.export().map_err(|errno| errno::refused(call, errno))
            }
        }
    }

    fn import_page(&self, descriptor: BorrowedFd<'_>, size: Bytes) -> Result<PageHandle> {
        let call = Call::ImportPage;
        self.descriptor.check_process(call)?;
        multiple(call, "size", size, self.space.settings.unit())?;
        let file = MemoryFile::import(descriptor, size).map_err(|errno| match errno {
            Errno::INVAL | Errno::BADF => {
                invalid(call, "descriptor", format!("no page of {} B", size.get()), A_PAGE)
            }
            Errno::NOSPC => errno::no_memory(call, size, self.space.info(), errno),
            _ => errno::refused(call, errno),
        })?;
        let (theirs, ours) = (
            file.alignment().map_err(|errno| errno::refused(call, errno))?,
            self.space.settings.unit(),
        );
        if theirs > ours {
            let given = format!("a page made of pages of {theirs}");
            let allowed = format!(
                "one made of pages of {ours} or less; open this device with the same huge pages as \
                 the exporter's"
            );
            return Err(invalid(call, "descriptor", given, allowed));
        }
        Ok(self.space.enter_page(size, PageBacking::Imported(Arc::new(file))))
    }
}
