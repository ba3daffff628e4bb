//! Blocks that other processes and other GPUs use.

use core::ffi::{c_int, c_void};
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use forebay::hal::PageHandle;
use forebay::quantity::DeviceOrdinal;
use forebay::{Address, Pool};
use forebay_sync::lock;

use super::origins::{self, Origin};
use super::{allocate, private};
use crate::device_pools;
use crate::error::{code_of, guarded};
use crate::status::Failure;
use crate::text::write_optional;

/// A page that another process can map.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct ExportedPage {
    /// The page as a file descriptor of this process.
    pub descriptor: i32,
    /// Not used.
    pub reserved: i32,
    /// Its size.
    pub size: u64,
}

/// Called for each page of a block.
pub type VisitPage = unsafe extern "C" fn(context: *mut c_void, *const ExportedPage);

/// The exported blocks and the pages behind them.
static EXPORTED: Mutex<Exported> =
    Mutex::new(Exported { blocks: BTreeMap::new(), pages: BTreeMap::new() });

/// How many blocks are exported.
static COUNT: AtomicUsize = AtomicUsize::new(0);

struct Exported {
    /// By address.
    blocks: BTreeMap<u64, ExportedBlock>,
    /// Each page has one descriptor, which is open as long as an exported block in the page is live.
    pages: BTreeMap<PageHandle, (OwnedFd, usize)>,
}

struct ExportedBlock {
    offset: u64,
    page_size: u64,
    pages: Vec<PageHandle>,
}

/// Closes the descriptors of pages that no exported block is in after this one is freed.
#[inline(always)]
pub(super) fn forget(address: u64) {
    if COUNT.load(Ordering::Relaxed) != 0 {
        forget_exported(address);
    }
}

#[cold]
#[inline(never)]
fn forget_exported(address: u64) {
    let mut exported = lock(&EXPORTED);
    let Some(gone) = exported.blocks.remove(&address) else { return };
    COUNT.fetch_sub(1, Ordering::Relaxed);
    exported.release(gone.pages);
}

impl Exported {
    /// Takes one block off each page.
    fn release(&mut self, pages: Vec<PageHandle>) {
        for page in pages {
            if let Entry::Occupied(mut found) = self.pages.entry(page) {
                found.get_mut().1 -= 1;
                if found.get().1 == 0 {
                    found.remove();
                }
            }
        }
    }

    /// Exports a block, unless it is.
    fn add(&mut self, address: u64) -> Result<(), Failure> {
        if self.blocks.contains_key(&address) {
            return Ok(());
        }
        let origin = origins::of(address);
        let main = device_pools::pool(origin.device)?;
        let private = private::of_key(origin.private);
        let pool = private.as_ref().map_or(main, |(_, pool)| pool);
        let parts = pool.pages_of(Address::new(address))?;
        let first =
            parts.first().ok_or("the block is not in pages that another process can map")?;
        if parts.iter().any(|part| part.page_size != first.page_size) {
            return Err("the block lies in pages of several sizes, and PyTorch maps pages of one \
                 size: share it through torch.multiprocessing, which moves it"
                .into());
        }
        let sharing =
            pool.device().sharing().ok_or("the device shares no memory between processes")?;
        let mut pages = Vec::with_capacity(parts.len());
        for part in &parts {
            match self.pages.entry(part.page) {
                Entry::Occupied(mut found) => found.get_mut().1 += 1,
                Entry::Vacant(place) => match sharing.export_page(part.page) {
                    Ok(descriptor) => drop(place.insert((descriptor, 1))),
                    Err(error) => {
                        self.release(pages);
                        return Err(error.into());
                    }
                },
            }
            pages.push(part.page);
        }
        let (offset, page_size) = (first.offset.get(), first.page_size.get());
        self.blocks.insert(address, ExportedBlock { offset, page_size, pages });
        COUNT.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }
}

/// Exports the pages behind a live block: calls `visit` for each, in the order of addresses, and tells the offset of
/// the block in the first. All are of one size.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_export(
    block: *mut c_void,
    offset: *mut u64,
    visit: VisitPage,
    context: *mut c_void,
) -> c_int {
    code_of(|| {
        let address = block.addr() as u64;
        let mut exported = lock(&EXPORTED);
        exported.add(address)?;
        let found = exported.blocks.get(&address).ok_or("the block was not exported")?;
        // SAFETY: as the caller promised.
        unsafe { write_optional(offset, found.offset) };
        for page in &found.pages {
            let Some((descriptor, _)) = exported.pages.get(page) else { continue };
            let descriptor = descriptor.as_raw_fd();
            let page = ExportedPage { descriptor, reserved: 0, size: found.page_size };
            // SAFETY: as the caller promised.
            unsafe { visit(context, &raw const page) };
        }
        Ok(())
    })
}

/// Allocates as [`forebay_torch_allocate`](super::forebay_torch_allocate) does, so that [`forebay_torch_export`] can
/// export the block.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn forebay_torch_allocate_shareable(
    size: usize,
    device: c_int,
    stream: *mut c_void,
) -> *mut c_void {
    guarded(core::ptr::null_mut(), || {
        let (held, size) = match private::shareable(device, size as u64) {
            Ok((held, size)) => (Ok(held), size),
            Err(reason) => (Err(reason), 0),
        };
        let (block, private) = allocate::allocate_private(size, device, stream, held, false);
        let stream = stream.addr() as u64;
        origins::note(block.addr() as u64, Origin { device, private, stream });
        block
    })
}

/// Lets GPU `peer` read and write the memory of GPU `device`'s pools.
#[unsafe(no_mangle)]
pub extern "C" fn forebay_torch_enable_peer(device: c_int, peer: c_int) -> c_int {
    code_of(|| {
        let peer = u32::try_from(peer).map_err(|_| format!("{peer} is no ordinal of a GPU"))?;
        let grant = |pool: &Pool| Ok(pool.grant_access(DeviceOrdinal(peer))?);
        // The GPU's own first: a private pool that is created from now on takes over its peers.
        grant(device_pools::pool(device)?)?;
        private::pools_of(device).iter().try_for_each(|(.., pool)| grant(pool))
    })
}
