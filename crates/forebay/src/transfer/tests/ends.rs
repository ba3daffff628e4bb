//! What may be an end of a transfer, and what is refused.

use forebay_hal::Call;
use forebay_sim::{Fault, FaultKind, When};

use super::*;

#[test]
fn owned_memory_goes_there_and_comes_back() {
    let bench = Bench::new();
    for length in [0, 1, 4095, 4096, 4097, 50_000] {
        let from = data(length, 1);
        let ticket = bench.engine.upload(from.clone(), bench.array(length)).submit().unwrap();
        let (source, array) = ticket.wait().unwrap();
        assert_eq!(source, from);
        let ticket = bench.engine.download(array, vec![0; length]).submit().unwrap();
        let (array, back) = ticket.wait().unwrap();
        assert_eq!(back, from, "{length}");
        assert_eq!(array.to_vec().unwrap(), from);
    }
    let statistics = bench.engine.statistics();
    assert_eq!((statistics.uploads.transfers, statistics.downloads.transfers), (6, 6));
    assert_eq!((statistics.uploads.failures, statistics.under_way), (0, 0));
    assert_eq!(statistics.uploads.bytes, statistics.downloads.bytes);
    assert!(statistics.pinned <= bench.engine.options().max_pinned());
    bench.nothing_was_found();
}

/// Zeros are filled in on the device, and everything arrives all the same.
#[test]
fn long_runs_of_zeros_are_not_sent() {
    let bench = Bench::with(own_memory(), TransferOptions::new().chunk(Bytes::mib(1)).threads(2));
    let mut from = vec![0; 5 << 20];
    for at in [0, 3 << 20, (5 << 20) - 1] {
        from[at] = 7;
    }
    let mut array = bench.array(from.len());
    array.fill(0xee).unwrap();
    let sent = bench.machine.calls();
    let (from, array) = bench.engine.upload(from, array).submit().unwrap().wait().unwrap();
    assert!(bench.machine.calls().of(Call::Fill) > sent.of(Call::Fill));
    assert_eq!(array.to_vec().unwrap(), from);
    assert_eq!(bench.engine.statistics().uploads.zeros, Bytes::new((5 << 20) - 3 * 4096));
    bench.nothing_was_found();
}

/// Of every 80 KiB one page is not zero: one fill for each piece, and a copy for each page.
#[test]
fn pages_between_zeros_are_sent_alone() {
    let bench = Bench::with(own_memory(), TransferOptions::new().chunk(Bytes::kib(256)).threads(2));
    let mut from = vec![0; (768 << 10) + 5000];
    for page in from.chunks_mut(4096).step_by(20) {
        page.fill(9);
    }
    let mut array = bench.array(from.len());
    array.fill(0xee).unwrap();
    let fills = || bench.machine.calls().of(Call::Fill);
    let before = fills();
    let (from, array) = bench.engine.upload(from, array).submit().unwrap().wait().unwrap();
    assert!(array.to_vec().unwrap() == from);
    assert_eq!(fills() - before, 3);
    // 10 of 192 pages are not zero, and 33 at the ends of the three pieces are too few in a row to be skipped. The last
    // 5,000 bytes are a piece of their own, too short to be looked at.
    assert_eq!(bench.engine.statistics().uploads.zeros, Bytes::new((192 - 10 - 33) * 4096));
    bench.nothing_was_found();
}

/// Pinned memory goes straight: no slot is made.
#[test]
fn pinned_memory_needs_no_slot() {
    let bench = Bench::new();
    let pinned = PinnedPool::new(&bench.device).unwrap();
    let mut source = pinned.array::<u8>(30_000).unwrap();
    source.host_mut().unwrap().copy_from_slice(&data(30_000, 2));
    let ticket = bench.engine.upload(source, bench.array(30_000)).submit().unwrap();
    let (_, array) = ticket.wait().unwrap();
    let sink = pinned.array::<u8>(30_000).unwrap();
    let (_, sink) = bench.engine.download(array, sink).submit().unwrap().order().unwrap();
    assert_eq!(sink.host().unwrap(), data(30_000, 2));
    assert_eq!(bench.engine.statistics().pinned, Bytes::ZERO);
    bench.nothing_was_found();
}

#[test]
fn files_go_there_and_come_back() {
    let bench = Bench::new();
    let path = std::env::temp_dir().join(format!("forebay-transfer-{}", std::process::id()));
    std::fs::write(&path, data(100_000, 3)).unwrap();
    let file = Arc::new(std::fs::File::open(&path).unwrap());
    let array = bench.engine.upload_file(&file, 123, bench.array(50_000)).submit().unwrap();
    let array = array.wait().unwrap();
    assert_eq!(array.to_vec().unwrap(), data(100_000, 3)[123..50_123]);
    // It ends before the array does.
    let short = bench.engine.upload_file(&file, 60_000, bench.array(50_000)).submit().unwrap();
    let error = short.wait().unwrap_err();
    assert!(matches!(error.error(), Error::File { .. }), "{error}");
    let copy = path.with_extension("copy");
    let file = std::fs::File::create(&copy).unwrap();
    let ticket = bench.engine.download_file(array, &Arc::new(file), 7).at(1000).submit().unwrap();
    let _ = ticket.wait().unwrap();
    assert_eq!(std::fs::read(&copy).unwrap()[7..], data(100_000, 3)[1123..50_123]);
    // The system would ignore the offset.
    let appended = std::fs::OpenOptions::new().append(true).open(&copy).unwrap();
    let refused = bench.engine.download_file(bench.array(10), &Arc::new(appended), 0).submit();
    assert!(refused.unwrap_err().to_string().contains("appending"));
    for path in [path, copy] {
        std::fs::remove_file(path).unwrap();
    }
    bench.nothing_was_found();
}

#[test]
fn what_does_not_fit_is_refused_and_comes_back() {
    let bench = Bench::new();
    let refused = bench.engine.upload(vec![1_u8; 11], bench.array(10)).submit().unwrap_err();
    let ((source, array), error) = refused.into_parts();
    assert_eq!((source.len(), array.len()), (11, 10));
    assert!(error.to_string().contains("11 elements"), "{error}");
    let at = bench.engine.upload(source, array).at(usize::MAX).submit().unwrap_err();
    let (_, array) = at.into_handle();
    let region = Region::rows(4, 3).host_pitch(5, 0);
    let refused = bench.engine.upload(vec![1_u8; 13], array).region(region).submit().unwrap_err();
    assert!(refused.to_string().contains("14 B"), "{refused}");
    let (source, array) = refused.into_handle();
    let huge = Region::volume(usize::MAX, usize::MAX, usize::MAX);
    let refused = bench.engine.upload(source, array).region(huge).submit().unwrap_err();
    let (_, array) = refused.into_handle();
    let other = own_memory().devices(2).build().unwrap();
    let engine = TransferEngine::new(&other.device(1).unwrap()).unwrap();
    let refused = engine.download(array, vec![0; 10]).submit().unwrap_err();
    assert!(refused.to_string().contains("opened by the same call"), "{refused}");
}

#[test]
fn a_batch_says_which_item_failed() {
    let bench = Bench::new();
    let small: Vec<Vec<u8>> = (0..200).map(|seed| data(100 + seed, seed as u64)).collect();
    let large = data(100_000, 9);
    let mut arrays: Vec<_> = small.iter().map(|one| bench.array(one.len())).collect();
    arrays.extend([bench.array(100_000), bench.array(5)]);
    let results = bench.engine.scope(|transfers| {
        let sources = small.iter().map(Vec::as_slice).chain([&large[..], &large[..]]);
        transfers.upload_all(sources.zip(&mut arrays).collect()).wait()
    });
    let results = results.unwrap();
    assert!(results[..201].iter().all(Result::is_ok), "{results:?}");
    assert!(results[201].as_ref().unwrap_err().to_string().contains("5 elements"));
    let mut back: Vec<Vec<u8>> = small.iter().map(|one| vec![0; one.len()]).collect();
    let results = bench.engine.scope(|transfers| {
        let items = arrays.iter().zip(back.iter_mut().map(Vec::as_mut_slice));
        transfers.download_all(items.collect()).wait()
    });
    assert!(results.unwrap().iter().all(Result::is_ok));
    assert_eq!(back, small);
    bench.nothing_was_found();
}

/// More items than are staged together, of which the first, one in between and the last are refused.
#[test]
fn a_large_batch_arrives_whole() {
    let bench = Bench::new();
    let sources: Vec<Vec<u8>> = (0..2100).map(|seed| data(16, seed)).collect();
    let wrong = [0, 2047, 2099];
    let room = |number: &usize| if wrong.contains(number) { 8 } else { 16 };
    let mut arrays: Vec<_> = (0..2100).map(|number| bench.array(room(&number))).collect();
    let results = bench.engine.scope(|transfers| {
        transfers.upload_all(sources.iter().map(Vec::as_slice).zip(&mut arrays).collect()).wait()
    });
    for (number, result) in results.unwrap().iter().enumerate() {
        assert_eq!(result.is_err(), wrong.contains(&number), "item {number}: {result:?}");
    }
    for (number, (array, source)) in arrays.iter().zip(&sources).enumerate() {
        let right = wrong.contains(&number) || array.to_vec().unwrap() == *source;
        assert!(right, "item {number}");
    }
    bench.nothing_was_found();
}

/// Pinned memory of another device is ordinary memory for this one.
#[test]
fn pinned_memory_of_another_device_goes_through_slots() {
    let (bench, other) = (Bench::new(), Bench::new());
    let mut source = PinnedPool::new(&other.device).unwrap().array::<u8>(30_000).unwrap();
    source.host_mut().unwrap().copy_from_slice(&data(30_000, 5));
    let ticket = bench.engine.upload(source, bench.array(30_000)).submit().unwrap();
    let (_, array) = ticket.wait().unwrap();
    assert_eq!(array.to_vec().unwrap(), data(30_000, 5));
    assert!(bench.engine.statistics().pinned > Bytes::ZERO);
    bench.nothing_was_found();
}

/// What of a batch is staged together fails together, and is tried again one by one.
#[test]
fn a_fault_in_a_batch_is_reported_for_its_item_alone() {
    use forebay_sim::{Fault, FaultKind, When};
    let mut options = small().threads(1);
    options.backoff.retries = 0;
    let bench = Bench::with(own_memory(), options);
    let sources: Vec<Vec<u8>> = (0..5).map(|seed| data(100, seed)).collect();
    let mut arrays: Vec<_> = sources.iter().map(|_| bench.array(100)).collect();
    // The arrays are not adjacent: a copy each. The second of them fails, and then the third of those by themselves.
    let copies = bench.machine.calls().of(forebay_hal::Call::Copy);
    for number in [2, 2 + 3] {
        let when = When::Kind(forebay_hal::Call::Copy, copies + number);
        bench.machine.plan(Fault::new(when, FaultKind::Transient));
    }
    let results = bench.engine.scope(|transfers| {
        let items = sources.iter().map(Vec::as_slice).zip(&mut arrays).collect();
        transfers.upload_all(items).wait()
    });
    let failed: Vec<usize> = results
        .unwrap()
        .iter()
        .enumerate()
        .filter_map(|(number, result)| result.is_err().then_some(number))
        .collect();
    assert_eq!(failed, [2]);
    for (number, (array, source)) in arrays.iter().zip(&sources).enumerate() {
        assert!(number == 2 || array.to_vec().unwrap() == *source, "item {number}");
    }
    bench.nothing_was_found();
}

#[test]
fn a_comparison_names_the_first_byte_of_a_piece_that_differs() {
    let bench = Bench::new();
    let (mut host, mut array) = (data(50_000, 7), bench.array(50_000));
    bench
        .engine
        .scope(|transfers| transfers.upload(&host, &mut array).submit().map(drop))
        .unwrap()
        .unwrap();
    let compare = |host: &[u8], at: Option<Region>| {
        let compared = bench.engine.scope(|transfers| {
            let comparison = transfers.compare(&array, host);
            let comparison = match at {
                Some(region) => comparison.region(region),
                None => comparison,
            };
            comparison.submit()?.wait()
        });
        compared.unwrap()
    };
    compare(&host, None).unwrap();
    for at in [0, 4095, 4096, 30_000, 49_999] {
        host[at] ^= 1;
        let Err(Error::Differs { offset, host: here, device }) = compare(&host, None) else {
            panic!("byte {at} differs");
        };
        assert_eq!((offset.get(), here, device), (at as u64, host[at], host[at] ^ 1));
        host[at] ^= 1;
    }
    // What is in the gaps does not count.
    let region = Region::rows(100, 50).host_pitch(1000, 0).device_pitch(1000, 0);
    host[100] ^= 1;
    compare(&host, Some(region)).unwrap();
    host[3099] ^= 1;
    let differs = compare(&host, Some(region)).unwrap_err();
    assert!(differs.to_string().starts_with("byte 3099 is "), "{differs}");
    bench.nothing_was_found();
}

#[test]
fn a_sample_is_a_part_and_finds_what_is_wrong_everywhere() {
    let bench = Bench::new();
    let (host, mut array) = (data(1_000_003, 8), bench.array(1_000_003));
    let sampled = |array: &DeviceArray<u8>| {
        let before = bench.engine.statistics().downloads.bytes;
        let compared = bench
            .engine
            .scope(|transfers| transfers.compare(array, &host).sampled(10).submit()?.wait());
        (compared.unwrap(), bench.engine.statistics().downloads.bytes.saturating_sub(before))
    };
    let (refused, _) = sampled(&array);
    assert!(matches!(refused, Err(Error::Differs { .. })), "nothing was uploaded: {refused:?}");
    bench
        .engine
        .scope(|transfers| transfers.upload(&host, &mut array).submit().map(drop))
        .unwrap()
        .unwrap();
    let (compared, moved) = sampled(&array);
    compared.unwrap();
    // 24 places of every 40,960 B, and one in the rest.
    assert_eq!(moved, Bytes::new(25 * 4096));
    bench.nothing_was_found();
}

/// Arrays copy much memory through the engine of their device, while there is one, in the order of their stream.
#[test]
fn arrays_copy_through_the_engine_of_their_device() {
    let bench = Bench::with(own_memory(), TransferOptions::new().chunk(Bytes::kib(64)).threads(2));
    let moved = || {
        let statistics = bench.engine.statistics();
        (statistics.uploads.bytes, statistics.downloads.bytes)
    };
    let (much, few) = (data(2 << 20, 5), data((1 << 20) - 1, 6));
    let mut array = bench.array(much.len());
    array.copy_from_slice(&much).unwrap();
    assert_eq!(moved(), (Bytes::mib(2), Bytes::ZERO));
    assert_eq!(array.to_vec().unwrap(), much);
    assert_eq!(moved(), (Bytes::mib(2), Bytes::mib(2)));
    array.slice_mut(1..).unwrap().slice_mut(..few.len()).unwrap().copy_from_slice(&few).unwrap();
    assert_eq!(moved(), (Bytes::mib(2), Bytes::mib(2)), "less than a megabyte goes by itself");
    let mut back = vec![0; few.len() + 1];
    array.fill(9).unwrap();
    array.slice(..back.len()).unwrap().copy_to_slice(&mut back).unwrap();
    assert!(back.iter().all(|&byte| byte == 9), "after the fill");

    // Without memory for slots, the array's own way serves.
    let fresh = Bench::with(own_memory(), TransferOptions::new());
    let mut array = fresh.array(much.len());
    for call in [Call::AllocatePinned, Call::CreatePage] {
        fresh.machine.plan(Fault::new(When::Every(call), FaultKind::OutOfMemory));
    }
    array.copy_from_slice(&much).unwrap();
    assert_eq!(array.to_vec().unwrap(), much);
    let Bench { engine, device, pool, machine } = fresh;
    assert_eq!(
        (engine.statistics().uploads.failures, engine.statistics().downloads.failures),
        (1, 1)
    );
    drop(engine);
    array.copy_from_slice(&much).unwrap();
    drop((array, pool, device));
    assert_eq!(machine.finding_count(), 0);
    bench.nothing_was_found();
}

#[test]
fn the_last_transfers_are_remembered() {
    let bench = Bench::with(own_memory(), small().history(3));
    for length in [100, 200] {
        let ticket = bench.engine.upload(data(length, 1), bench.array(length)).submit().unwrap();
        let (from, array) = ticket.wait().unwrap();
        drop(bench.engine.download(array, from).submit().unwrap().wait().unwrap());
    }
    let told: Vec<_> =
        bench.engine.history().iter().map(|one| (one.is_upload, one.bytes.get())).collect();
    assert_eq!(told, [(false, 100), (true, 200), (false, 200)]);
    assert!(bench.engine.history().is_sorted_by_key(|one| one.begun + one.took));
    assert!(Bench::new().engine.history().is_empty(), "none by default");
}

/// A program that drops its tickets gets no further ahead of the device than the bound.
#[test]
fn dropped_tickets_do_not_pile_up() {
    let bench = Bench::with(own_memory(), small());
    let mut most = 0;
    for _ in 0..6000 {
        let array = bench.pool.on(DEFAULT).uninit::<u8>(100).unwrap();
        drop(bench.engine.upload(vec![3; 100], array).submit().unwrap());
        most = most.max(bench.engine.engine.state().kept.len());
    }
    assert!(most <= 1024, "{most} are kept");
    bench.nothing_was_found();
}
