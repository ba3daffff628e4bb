//! A limit, who has the memory when it is reached, and a cache that lets go.
//!
//! `cargo run -p forebay --example 03_limits_and_tags`

use std::error::Error;
use std::sync::{Arc, Mutex};

use forebay::{Block, Bytes, HostDevice, Pool, PoolOptions, StreamHandle, Tag};

const STREAM: StreamHandle = StreamHandle::DEFAULT;

/// Blocks that the program keeps for speed, and can do without.
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

    // What is allocated in a scope carries its tag.
    let weights = Tag::named("weights").ok_or("there are too many tags")?;
    let kept = {
        let _scope = weights.enter();
        pool.allocate(Bytes::mib(16), STREAM)?
    };
    if let Ok(mut cache) = cache.lock() {
        cache.0 = Some(pool.clone());
        cache.1.push(pool.allocate(Bytes::mib(12), STREAM)?);
    }

    // Only with what the cache lets go is there room.
    let block = pool.allocate(Bytes::mib(12), STREAM)?;
    // And now there is none: the error says who has it, and what would help.
    match pool.allocate(Bytes::mib(12), STREAM) {
        Err(error) => say(error),
        Ok(_) => return Err("32 MiB hold no 40".into()),
    }
    pool.free_block(block, STREAM)?;
    pool.free_block(kept, STREAM)?;
    if let Ok(mut cache) = cache.lock() {
        // The cache has the pool, and the pool has the cache: one of them lets go.
        cache.0 = None;
    }
    Ok(())
}

#[allow(clippy::print_stdout, reason = "an example talks to whoever runs it")]
fn say(what: impl std::fmt::Display) {
    println!("{what}");
}
