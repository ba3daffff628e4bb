//! Transfers through an engine: ordinary and pinned memory, in both directions, as rows, in batches, from files.

use std::fs::File;
use std::sync::Arc;

use forebay::transfer::{Region, TransferEngine, TransferOptions};
use forebay::{Bytes, DeviceArray, Error, PinnedPool, Pool, Stream};

use crate::stage::{Numbers, Stage};
use crate::{Step, ensure};

/// An engine of small pieces, so that every transfer of some size is several of them.
const CHUNK: Bytes = Bytes::kib(64);

/// A pool, a stream and an engine of one device.
struct Site {
    pool: Pool,
    stream: Stream,
    engine: TransferEngine,
}

impl Site {
    fn of(stage: &Stage) -> Step<Self> {
        let engine =
            TransferOptions::new().chunk(CHUNK).slots(3).threads(2).build(&stage.device)?;
        Ok(Self { pool: Pool::new(&stage.device)?, stream: stage.stream()?, engine })
    }

    fn array(&self, length: usize) -> Step<DeviceArray<u8, Pool>> {
        Ok(self.pool.on(self.stream.handle()).uninit(length)?)
    }

    /// An array that holds these bytes.
    fn holding(&self, bytes: &[u8]) -> Step<DeviceArray<u8, Pool>> {
        let mut array = self.array(bytes.len())?;
        self.engine.scope(|transfers| transfers.upload(bytes, &mut array).submit().map(drop))??;
        Ok(array)
    }
}

/// Bytes that differ from place to place, and from seed to seed.
fn data(length: usize, seed: u64) -> Vec<u8> {
    let mut numbers = Numbers(seed);
    (0..length.div_ceil(8)).flat_map(|_| numbers.next().to_ne_bytes()).take(length).collect()
}

/// Up through the engine and back by the array's own copy; then up by the array's own and back through the engine.
pub(crate) fn sizes(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    for length in [0, 1, 4097, 65_535, 65_536, 65_537, 1_000_003, 5_000_000] {
        let (first, second) = (data(length, 1), data(length, 2));
        let ticket = site.engine.upload(first, site.array(length)?).submit()?;
        let (first, mut array) = ticket.order()?;
        ensure!(array.to_vec()? == first, "{length} bytes went up");
        array.copy_from_slice(&second)?;
        let ticket = site.engine.download(array, vec![0; length]).submit()?;
        let (_, back) = ticket.wait()?;
        ensure!(back == second, "{length} bytes came back");
    }
    let statistics = site.engine.statistics();
    ensure!(statistics.uploads.bytes == statistics.downloads.bytes, "{statistics:?}");
    ensure!((statistics.uploads.failures, statistics.under_way) == (0, 0), "{statistics:?}");
    stage.no_findings()
}

/// The device copies pinned memory itself: the engine pins nothing of its own.
pub(crate) fn pinned(stage: &Stage) -> Step {
    let (site, pinned) = (Site::of(stage)?, PinnedPool::new(&stage.device)?);
    let right = data(300_000, 3);
    let mut source = pinned.array::<u8>(right.len())?;
    source.host_mut()?.copy_from_slice(&right);
    let ticket = site.engine.upload(source, site.array(right.len())?).submit()?;
    let (_, array) = ticket.wait()?;
    let ticket = site.engine.download(array, pinned.array::<u8>(right.len())?).submit()?;
    let (_, sink) = ticket.wait()?;
    ensure!(sink.host()? == right, "other bytes came back");
    let taken = site.engine.statistics().pinned;
    ensure!(taken == Bytes::ZERO, "the engine pinned {taken}");
    stage.no_findings()
}

/// Columns of a picture, packed on the device and put into their places again.
pub(crate) fn region(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    let (width, rows, columns) = (517, 700, 311);
    let picture = data(width * rows, 4);
    let packed: Vec<u8> =
        picture.chunks(width).flat_map(|row| row.iter().take(columns)).copied().collect();
    let mut array = site.array(columns * rows)?;
    let mut back = vec![0; picture.len()];
    let region = Region::rows(columns, rows).host_pitch(width, 0);
    site.engine.scope(|transfers| {
        transfers.upload(&picture, &mut array).region(region).submit()?.wait()
    })??;
    ensure!(array.to_vec()? == packed, "the columns arrived as others");
    site.engine.scope(|transfers| {
        transfers.download(&array, &mut back).region(region).submit()?.wait()
    })??;
    let right = back.chunks(width).zip(picture.chunks(width)).all(|(found, row)| {
        let (columns, gap) = found.split_at(columns);
        row.starts_with(columns) && gap.iter().all(|&byte| byte == 0)
    });
    ensure!(right, "the columns came back as others, or the gap was written to");
    stage.no_findings()
}

/// Many small items and two large ones, one of which does not fit.
pub(crate) fn batch(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    let mut items: Vec<Vec<u8>> = (0..300).map(|seed| data(50 + 7 * seed, seed as u64)).collect();
    items.push(data(400_000, 5));
    let mut arrays = Vec::new();
    for item in &items {
        arrays.push(site.array(item.len())?);
    }
    let (large, mut small) = (data(400_000, 6), site.array(5)?);
    let results = site.engine.scope(|transfers| {
        let wrong = [(&large[..], &mut small)];
        let all = items.iter().map(Vec::as_slice).zip(&mut arrays).chain(wrong);
        transfers.upload_all(all.collect()).wait()
    })?;
    let failed: Vec<usize> =
        (0..).zip(&results).filter(|(_, result)| result.is_err()).map(|(at, _)| at).collect();
    ensure!(failed == [items.len()], "items {failed:?} failed");
    let mut back: Vec<Vec<u8>> = items.iter().map(|item| vec![0; item.len()]).collect();
    let results = site.engine.scope(|transfers| {
        let all = arrays.iter().zip(back.iter_mut().map(Vec::as_mut_slice));
        transfers.download_all(all.collect()).wait()
    })?;
    results.into_iter().collect::<Result<(), Error>>()?;
    let wrong = items.iter().zip(&back).position(|(item, back)| item != back);
    ensure!(wrong.is_none(), "item {wrong:?} came back as another");
    stage.no_findings()
}

/// A file to the device, and from there into another.
pub(crate) fn file(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    let folder = tempfile::tempdir()?;
    let (from, to) = (folder.path().join("from"), folder.path().join("to"));
    let bytes = data(700_000, 7);
    std::fs::write(&from, &bytes)?;
    let from = Arc::new(File::open(&from)?);
    let array = site.engine.upload_file(&from, 123, site.array(500_000)?).submit()?.wait()?;
    ensure!(array.to_vec()? == bytes[123..500_123], "the file arrived as another");
    let file = Arc::new(File::create(&to)?);
    let _array = site.engine.download_file(array, &file, 7).at(1000).submit()?.wait()?;
    ensure!(std::fs::read(&to)?[7..] == bytes[1123..500_123], "another file was written");
    // It ends before the array does.
    let short = site.engine.upload_file(&from, 600_000, site.array(500_000)?).submit()?.wait();
    let ended = matches!(&short, Err(refused) if matches!(refused.error(), Error::File { .. }));
    ensure!(ended, "a file that is too short: {short:?}");
    stage.no_findings()
}

/// Uploads and downloads at the same time, each of other memory.
pub(crate) fn both_directions(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    let on_device: Vec<Vec<u8>> = (0..3).map(|seed| data(1_500_000, 10 + seed)).collect();
    let on_host: Vec<Vec<u8>> = (0..3).map(|seed| data(1_500_000, 20 + seed)).collect();
    let mut sources = Vec::new();
    for bytes in &on_device {
        sources.push(site.holding(bytes)?);
    }
    let (mut up, mut down) = (Vec::new(), Vec::new());
    for (bytes, source) in on_host.iter().zip(sources) {
        up.push(site.engine.upload(bytes.clone(), site.array(bytes.len())?).submit()?);
        down.push(site.engine.download(source, vec![0; bytes.len()]).submit()?);
    }
    for (ticket, right) in up.into_iter().zip(&on_host) {
        let (_, array) = ticket.wait()?;
        ensure!(array.to_vec()? == *right, "other bytes went up");
    }
    for (ticket, right) in down.into_iter().zip(&on_device) {
        let (_, back) = ticket.wait()?;
        ensure!(back == *right, "other bytes came back");
    }
    stage.no_findings()
}

/// A transfer that was cancelled gives its memory back, and so do those beside it arrive.
pub(crate) fn cancelled(stage: &Stage) -> Step {
    let site = Site::of(stage)?;
    let bytes = data(8 << 20, 8);
    let ticket = site.engine.upload(bytes.clone(), site.array(bytes.len())?).submit()?;
    let other = site.engine.upload(bytes[..9999].to_vec(), site.array(9999)?).submit()?;
    // One that is done already is not cancelled.
    let cancelled = ticket.cancel();
    let (source, array) = match ticket.wait() {
        Err(refused) => {
            let (memory, error) = refused.into_parts();
            ensure!(cancelled && matches!(error, Error::Cancelled { .. }), "it failed: {error}");
            memory
        }
        Ok(memory) => {
            ensure!(!cancelled && memory.1.to_vec()? == bytes, "it was cancelled and arrived");
            memory
        }
    };
    let (small, there) = other.wait()?;
    ensure!(there.to_vec()? == small, "the other did not arrive");
    // The same memory, once more.
    let (source, array) = site.engine.upload(source, array).submit()?.wait()?;
    ensure!(source == bytes && array.to_vec()? == bytes, "it did not arrive at last");
    stage.no_findings()
}
