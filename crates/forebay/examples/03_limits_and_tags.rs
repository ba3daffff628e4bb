//! A limit, tags that show who has the memory, and a cache that releases memory on demand.
//!
//! `cargo run -p forebay --example 03_limits_and_tags`

use std::error::Error;
use std::sync::{Arc, Mutex};

use forebay::{Block, Bytes, HostDevice, Pool, PoolOptions, StreamHandle, Tag};

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// Blocks that the program keeps for speed and can do without.
type Cache = Arc<Mutex<(Option<Pool>, Vec<Block>)>>;

fn main() -> Result<(), Box<dyn Error>> {
    let device = HostDevice::open()?;
    let cache: Cache = Arc::default();
    let asked = Arc::clone(&cache);
    let pool = PoolOptions::new()
        .max_bytes(Bytes::mib(32))
        .on_shortage(move |shortage| {
            say(format_args!("asked to let go: {} is wanted", shortage.requested));
            let Ok(mut cache) = asked.lock() else { return false };
            let (Some(pool), Some(block)) = (cache.0.clone(), cache.1.pop()) else { return false };
            pool.free_block(block, STREAM).is_ok()
        })
        .build(&device)?;

    // Blocks that are allocated in a scope carry its tag.
    let weights = Tag::named("weights");
    let kept = {
        let _scope = weights.enter();
        pool.allocate(Bytes::mib(16), STREAM)?
    };
    if let Ok(mut cache) = cache.lock() {
        cache.0 = Some(pool.clone());
        cache.1.push(pool.allocate(Bytes::mib(12), STREAM)?);
    }

    // There is room only after the cache releases its block.
    let block = pool.allocate(Bytes::mib(12), STREAM)?;
    // Now there is none. The error says who has the memory and what would help.
    match pool.allocate(Bytes::mib(12), STREAM) {
        Err(error) => say(error),
        Ok(_) => return Err("32 MiB hold no 40".into()),
    }
    pool.free_block(block, STREAM)?;
    pool.free_block(kept, STREAM)?;
    if let Ok(mut cache) = cache.lock() {
        // The cache holds the pool, and the pool's callback holds the cache: break the cycle.
        cache.0 = None;
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example prints what it does")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
