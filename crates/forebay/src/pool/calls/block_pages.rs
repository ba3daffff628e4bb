//! The pages behind the addresses of a block.

use forebay_core::{Address, Bytes, Span};
use forebay_hal::PageHandle;

use crate::pool::calls::put;
use crate::pool::heap::span_of;
use crate::pool::inner::PoolInner;
use crate::sync::map::Side;
use crate::sync::tracked::lock;
use crate::{MemoryClass, Result};

/// A part of a block that lies in one page.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PagePart {
    /// Its addresses.
    pub span: Span,
    /// The page behind them.
    pub page: PageHandle,
    /// The size of the whole page. A process that imports the page needs it.
    pub page_size: Bytes,
    /// The offset of the part in the page.
    pub offset: Bytes,
}

pub(in crate::pool) fn pages_of(pool: &PoolInner, address: Address) -> Result<Vec<PagePart>> {
    pool.fork_generation.check()?;
    let (_, known) = put::live(pool, address)?;
    let block = Span::new(address, known.size()).unwrap_or_default();
    if let Some(guards) = &pool.debug.guards {
        let guarded = lock(&guards.state).live.get(&address).copied();
        let part = guarded.and_then(|guarded| part(block, guarded.pages, guarded.page));
        return Ok(part.into_iter().collect());
    }
    let heap = pool.heap();
    let space = heap.spaces.of(Side::of(known.size().saturating_add(pool.debug.tail())));
    if pool.options.class.contains(MemoryClass::PLAIN) || pool.source.pages().is_none() {
        return Ok(Vec::new());
    }
    let pages = space.page_table().pages_in(block.start().get(), block.end().get());
    let pages = pages.map(|(at, page, size)| (span_of(at, size), PageHandle(page)));
    Ok(pages.filter_map(|(pages, page)| part(block, pages, page)).collect())
}

/// The part of `block` that lies in a page.
fn part(block: Span, pages: Span, page: PageHandle) -> Option<PagePart> {
    let (start, end) = (block.start().max(pages.start()), block.end().min(pages.end()));
    let size = end.offset_from(start).filter(|size| !size.is_zero())?;
    let span = Span::new(start, size).ok()?;
    let (page_size, offset) = (pages.size(), start.offset_from(pages.start())?);
    Some(PagePart { span, page, page_size, offset })
}
