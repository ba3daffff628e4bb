//! Data that is decoded on its way.

use forebay_hal::{Call, Device, Transfers};
use forebay_sim::{Fault, FaultKind, When};

use super::*;
use crate::PoolOptions;
use crate::handle::Refused;

/// Bytes that compress to about a third.
fn text(length: usize) -> Vec<u8> {
    let words: Vec<&[u8]> = vec![b"device ", b"memory ", b"stream ", b"of ", b"the ", b"a "];
    let mut random = forebay_core::Random::new(length as u64);
    let word = || words[usize::try_from(random.below(6)).unwrap()];
    std::iter::repeat_with(word).flatten().copied().take(length).collect()
}

fn packed(data: &[u8]) -> Compressed {
    Compressed::with_block(data, Bytes::kib(1)).unwrap()
}

/// The same with a byte changed that makes a block invalid: its first token then has literals beyond its end.
fn damaged_at(data: &[u8], block: usize) -> Compressed {
    let mut bytes = packed(data).as_bytes().to_vec();
    let layout = forebay_core::transfer::Lz4Layout::parse(&bytes).unwrap();
    let start = layout.range_of(&bytes, u32::try_from(block).unwrap()).unwrap().start;
    bytes[start..start + 3].copy_from_slice(&[0xff; 3]);
    Compressed::from_bytes(bytes).unwrap()
}

const BOTH: [Decoder; 2] = [Decoder::Device, Decoder::Host];

fn send(
    bench: &Bench,
    from: Compressed,
    to: DeviceArray<u8>,
    decoder: Decoder,
) -> core::result::Result<DeviceArray<u8>, Refused<(Compressed, DeviceArray<u8>)>> {
    let ticket = bench.engine.upload_compressed(from, to).decoded_by(decoder).submit()?;
    ticket.wait().map(|(_, array)| array)
}

#[test]
fn data_of_every_length_arrives_whichever_side_decodes() {
    let bench = Bench::new();
    for length in [0, 1, 1000, 1024, 1025, 4096, 100_000] {
        for data in [text(length), data(length, 1), vec![0; length]] {
            for decoder in BOTH {
                let array = bench.array(length);
                let array = send(&bench, packed(&data), array, decoder).unwrap();
                assert!(array.to_vec().unwrap() == data, "{length} B, {decoder:?}");
            }
        }
    }
    bench.nothing_was_found();
}

#[test]
fn the_device_gets_the_compressed_bytes_and_keeps_none() {
    let bench = Bench::new();
    let data = text(100_000);
    let from = packed(&data);
    let size = from.as_bytes().len() as u64;
    assert!(size * 2 < 100_000, "{size} B");
    let array = send(&bench, from, bench.array(100_000), Decoder::Device).unwrap();
    assert_eq!(bench.engine.statistics().uploads.bytes, Bytes::new(size));
    assert_eq!(bench.machine.calls().of(Call::Decompress), 1);
    assert_eq!(bench.pool.statistics().blocks, 1, "only the array is left");
    drop(array);
}

#[test]
fn elements_beside_the_data_stay() {
    let bench = Bench::new();
    for decoder in BOTH {
        let data: Vec<u32> = (0..5000).map(|number| number / 7).collect();
        let array = bench.pool.on(DEFAULT).uninit::<u32>(6000).unwrap();
        let (_, array) =
            bench.engine.upload(vec![7; 6000], array).submit().unwrap().wait().unwrap();
        let upload = bench.engine.upload_compressed(Compressed::new(&data).unwrap(), array);
        let (_, array) = upload.at(400).decoded_by(decoder).submit().unwrap().wait().unwrap();
        let found = array.to_vec().unwrap();
        assert!(found[400..5400] == data && found[..400] == [7; 400] && found[5400..] == [7; 600]);
    }
    bench.nothing_was_found();
}

#[test]
fn a_damaged_block_is_named_and_the_memory_comes_back() {
    let bench = Bench::new();
    let data = text(20_000);
    for decoder in BOTH {
        for block in [0, 7, 19] {
            let from = damaged_at(&data, block);
            let refused = send(&bench, from, bench.array(20_000), decoder).unwrap_err();
            let ((from, array), error) = refused.into_parts();
            let Error::Compressed(CompressedError::Block { block: found, status }) = &error else {
                panic!("{error}");
            };
            assert_eq!(*found, block as u64, "{error}");
            assert_ne!(*status, BlockStatus::Decoded);
            assert!(error.to_string().contains(&format!("block {block} ")), "{error}");
            assert_eq!((array.len(), from.size()), (20_000, Bytes::new(20_000)));
            // The next one is as good as ever.
            let array = send(&bench, packed(&data), array, decoder).unwrap();
            assert!(array.to_vec().unwrap() == data);
        }
    }
    bench.nothing_was_found();
}

#[test]
fn what_does_not_fit_is_refused_before_anything_is_sent() {
    let bench = Bench::new();
    let calls = bench.machine.calls().of(Call::Copy);
    let from = packed(&text(1000));
    let engine = &bench.engine;
    let refused = engine.upload_compressed(from.clone(), bench.array(999)).submit().unwrap_err();
    assert!(refused.error().to_string().contains("1000 elements"), "{}", refused.error());
    let refused = engine.upload_compressed(from.clone(), bench.array(1000)).at(1).submit();
    assert!(refused.is_err());
    let rows = engine.upload_compressed(from, bench.array(1000)).region(Region::rows(10, 10));
    assert!(rows.submit().is_err());
    let array = bench.pool.on(DEFAULT).uninit::<u64>(200).unwrap();
    let refused = engine.upload_compressed(packed(&text(1001)), array).submit().unwrap_err();
    assert!(refused.error().to_string().contains("multiple of 8"), "{}", refused.error());
    assert!(Compressed::from_bytes(b"FBYLZ4\r\n and more".to_vec()).is_err());
    assert!(Compressed::with_block(&[1_u8; 10], Bytes::gib(8)).is_err());
    assert_eq!(bench.machine.calls().of(Call::Copy), calls);
}

#[test]
fn the_host_decodes_where_the_device_cannot() {
    let data = text(50_000);
    // A device without a decoder.
    let machine = own_memory().without(Capabilities::HOST_VISIBLE | Capabilities::DECOMPRESSION);
    let bench = Bench::with(machine, small());
    let array = send(&bench, packed(&data), bench.array(50_000), Decoder::Device).unwrap();
    assert!(array.to_vec().unwrap() == data);
    assert_eq!(bench.engine.statistics().uploads.bytes, Bytes::new(50_000));

    // No memory for the compressed bytes beside the array.
    let bench = Bench::new();
    let noise = self::data(3 << 20, 1);
    let pool = PoolOptions::new().max_bytes(Bytes::mib(4)).build(&bench.device).unwrap();
    let array = pool.on(DEFAULT).uninit::<u8>(3 << 20).unwrap();
    let array = send(&bench, packed(&noise), array, Decoder::Device).unwrap();
    assert!(array.to_vec().unwrap() == noise);
    assert_eq!(bench.machine.calls().of(Call::Decompress), 0);
}

/// The device is late: work before it on the array's stream is done first, and work after it sees the data.
#[test]
fn decoding_is_in_the_order_of_the_arrays_stream() {
    let bench = Bench::new();
    for seed in 0..20_usize {
        let data = text(10_000 + seed);
        let mut array = bench.array(data.len());
        array.fill(0x33).unwrap();
        let array = send(&bench, packed(&data), array, Decoder::Device).unwrap();
        let mut back = vec![0; data.len()];
        let stream = array.block().stream();
        let host =
            forebay_hal::Location::Host(forebay_core::Address::of_pointer(back.as_mut_ptr()));
        let from = forebay_hal::Location::Device(array.address());
        let copy = forebay_hal::Copy::linear(host, from, Bytes::new(data.len() as u64)).unwrap();
        // SAFETY: both live until the stream was synchronised.
        unsafe { bench.device.copy(&copy, stream) }.unwrap();
        bench.device.synchronize_stream(stream).unwrap();
        assert!(back == data);
    }
    bench.nothing_was_found();
}

#[test]
fn a_dropped_ticket_and_a_cancelled_one_leave_nothing() {
    let bench = Bench::new();
    let data = text(100_000);
    for decoder in BOTH {
        let ticket = || {
            let upload = bench.engine.upload_compressed(packed(&data), bench.array(100_000));
            upload.decoded_by(decoder).submit().unwrap()
        };
        drop(ticket());
        let ticket = ticket();
        if ticket.cancel() {
            let refused = ticket.wait().unwrap_err();
            assert!(matches!(refused.error(), Error::Cancelled { .. }), "{}", refused.error());
        }
    }
    for _ in 0..2000 {
        if bench.pool.statistics().live == Bytes::ZERO {
            break;
        }
        std::thread::sleep(core::time::Duration::from_millis(5));
    }
    assert_eq!(bench.pool.statistics().live, Bytes::ZERO);
    bench.nothing_was_found();
}

/// One upload with faults at calls. Returns how many calls it took, and whether it arrived.
fn attempt(faults: &[Fault]) -> (u64, bool) {
    let mut options = small().threads(1).slots(2);
    options.backoff.retries = 1;
    options.sleep = |_| {};
    let bench = Bench::with(own_memory().seed(3), options);
    let data = text(20_000);
    let array = bench.pool.on(DEFAULT).uninit::<u8>(20_000).unwrap();
    let before = bench.machine.calls().total();
    faults.iter().for_each(|&fault| bench.machine.plan(fault));
    let sent = send(&bench, packed(&data), array, Decoder::Device);
    bench.machine.clear_faults();
    let calls = bench.machine.calls().total() - before;
    let arrived = sent.is_ok();
    match sent {
        Ok(array) => assert!(array.to_vec().unwrap() == data, "wrong bytes after {faults:?}"),
        Err(refused) => {
            // Usable after any failure.
            let (from, array) = refused.into_handle();
            let array = send(&bench, from, array, Decoder::Device).unwrap();
            assert!(array.to_vec().unwrap() == data, "wrong bytes later than {faults:?}");
        }
    }
    bench.nothing_was_found();
    (calls, arrived)
}

#[test]
fn any_call_may_fail_and_the_memory_comes_back() {
    let (calls, arrived) = attempt(&[]);
    assert!(arrived && calls > 20, "{calls} calls");
    let now = Bench::new().machine.calls().total();
    let mut failed = 0;
    for call in 1..=calls + now {
        let fault = |call, kind| Fault::new(When::Call(call), kind);
        for kind in [FaultKind::Transient, FaultKind::OutOfMemory] {
            attempt(&[fault(call, kind)]);
        }
        // A call that is tried once more fails again.
        let twice = [call, call + 1].map(|call| fault(call, FaultKind::Transient));
        failed += u32::from(!attempt(&twice).1);
    }
    assert!(failed > 0);
}

#[test]
fn the_host_as_a_device_decodes_too() {
    let device = forebay_host::HostDevice::open().unwrap();
    let (pool, engine) = (Pool::new(&device).unwrap(), small().build(&device).unwrap());
    let data = text(50_000);
    for decoder in BOTH {
        let array = pool.on(DEFAULT).uninit::<u8>(50_000).unwrap();
        let upload = engine.upload_compressed(packed(&data), array).decoded_by(decoder);
        let (_, array) = upload.submit().unwrap().wait().unwrap();
        assert!(array.to_vec().unwrap() == data);
        let refused = engine.upload_compressed(damaged_at(&data, 3), array).decoded_by(decoder);
        let error = refused.submit().and_then(CompressedTicket::wait).unwrap_err().into_parts().1;
        assert!(error.to_string().contains("block 3 "), "{error}");
    }
}

#[test]
fn the_decoder_that_was_faster_is_used_from_then_on() {
    let bench = Bench::new();
    let data = text(50_000);
    let calls = || bench.machine.calls().of(Call::Decompress);
    let upload = |array| {
        let upload = bench.engine.upload_compressed(packed(&data), array);
        upload.submit().unwrap().wait().unwrap().1
    };
    // It has memory of its own, and was not measured.
    let array = upload(bench.array(50_000));
    assert_eq!(calls(), 1);
    let ((_, array), times) = bench.engine.calibrate_decoder(packed(&data), array).unwrap();
    assert_eq!(array.to_vec().unwrap(), data);
    assert_eq!(calls(), 3);
    let by_device = u64::from(times.faster() == Decoder::Device);
    let array = upload(array);
    assert_eq!(calls(), 3 + by_device, "{times:?}");
    drop(array);
    assert!(bench.device.decompression().is_some());
}
