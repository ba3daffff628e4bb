use std::sync::Arc;

use forebay_core::Bytes;
use forebay_hal::{Device, StreamHandle};
use forebay_host::HostDevice;

use crate::{Error, Pool};

/// A handle is refused after its address was reused as often as the first word of a slot counts.
#[test]
#[cfg_attr(miri, ignore = "a million pairs")]
fn a_handle_is_refused_however_often_its_address_was_reused() {
    let device: Arc<dyn Device> = HostDevice::open().unwrap();
    let pool = Pool::new(&device).unwrap();
    let (size, stream) = (Bytes::new(4096), StreamHandle::DEFAULT);
    let stale = pool.allocate(size, stream).unwrap();
    let address = stale.address();
    pool.free(address, stream).unwrap();
    for reuses in 2..(1 << 20) + 4_u64 {
        let block = pool.allocate(size, stream).unwrap();
        assert_eq!((block.address(), block.generation()), (address, reuses));
        if reuses > 1 << 20 {
            assert_eq!(pool.free_block(stale, stream), Err(Error::StaleBlock { address, size }));
            assert_eq!(pool.block_at(address), Some(block), "live still");
        }
        pool.free_block(block, stream).unwrap();
    }
    assert_eq!(pool.free_block(stale, stream), Err(Error::DoubleFree { address, size }));
}
