//! Data that the device decodes: by the kernel where there is hardware, by what stands for it elsewhere.

use core::ffi::{c_char, c_void};
use std::ffi::CString;

use forebay::cuda::CudaDriver;
use forebay::transfer::{Compressed, Decoder, TransferEngine};
use forebay::{Bytes, CudaDevice, DeviceArray, Error, Pool};

use crate::{Step, ensure};

const LENGTH: usize = 3_000_001;

/// On hardware, how much is decoded for the figures.
const MUCH: usize = 1 << 30;

/// Numbers that look random.
fn noise() -> impl FnMut() -> u64 {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state
    }
}

/// Text of few words, as long as asked for.
fn text(length: usize) -> Vec<u8> {
    let words: [&[u8]; 8] =
        [b"device ", b"memory, ", b"a ", b"of ", b"stream\n", b"the ", b"transfer ", b"and "];
    let mut random = noise();
    let word = || words.get((random() & 7) as usize).copied().unwrap_or_default();
    std::iter::repeat_with(word).flatten().copied().take(length).collect()
}

fn kinds() -> Vec<(&'static str, Vec<u8>)> {
    let mut random = noise();
    let floats =
        (0..LENGTH).map(|number| number as f32 * 0.001).flat_map(|x| x.sin().to_le_bytes());
    let mixed = (0..LENGTH).map(|at| if at / 900 % 3 == 0 { random().to_le_bytes()[0] } else { 7 });
    vec![
        ("zeros", vec![0; LENGTH]),
        ("text", text(LENGTH)),
        ("periods", (0..LENGTH).map(|at| (at % 37 % 31 % 17).to_le_bytes()[0]).collect()),
        ("floats", floats.take(LENGTH).collect()),
        ("runs and noise", mixed.collect()),
    ]
}

struct Bench {
    pool: Pool,
    engine: TransferEngine,
}

impl Bench {
    fn open(driver: &'static CudaDriver, ordinal: u32) -> Step<Self> {
        let device = CudaDevice::open_with(driver, ordinal)?;
        Ok(Self { pool: Pool::new(&device)?, engine: TransferEngine::new(&device)? })
    }

    fn upload(&self, from: Compressed) -> Result<DeviceArray<u8>, Error> {
        let length = from.size().to_usize().unwrap_or(usize::MAX);
        let array = self.pool.default_stream().uninit::<u8>(length)?;
        let upload = self.engine.upload_compressed(from, array).decoded_by(Decoder::Device);
        let waited = upload.submit().and_then(|ticket| ticket.wait());
        waited.map(|(_, array)| array).map_err(|refused| refused.into_parts().1)
    }
}

pub(crate) fn arrives(driver: &'static CudaDriver) -> Step {
    let bench = Bench::open(driver, 0)?;
    for (kind, data) in kinds() {
        for block in [Bytes::kib(1), Bytes::kib(64), Bytes::mib(1)] {
            let before = bench.engine.statistics().uploads.bytes;
            let from = Compressed::with_block(&data, block)?;
            let size = Bytes::new(from.as_bytes().len() as u64);
            let array = bench.upload(from)?;
            ensure!(array.to_vec()? == data, "{kind} in blocks of {block} are other bytes");
            let sent = bench.engine.statistics().uploads.bytes.saturating_sub(before);
            ensure!(sent == size, "{kind}: {sent} were sent, and compressed it is {size}");
        }
    }
    Ok(())
}

/// Damage of any kind is an error or other bytes of the same length, and the device works on.
pub(crate) fn damaged(driver: &'static CudaDriver) -> Step {
    let bench = Bench::open(driver, 0)?;
    let (data, mut random) = (text(40_000), noise());
    let whole = Compressed::with_block(&data, Bytes::kib(4))?;
    let start = 24 + 10 * 8;
    let mut told = 0;
    for round in 0..300_u64 {
        let mut bytes = whole.as_bytes().to_vec();
        let room = (bytes.len() - start) as u64;
        for _ in 0..=round % 4 {
            let at = start + usize::try_from(random() % room).unwrap_or(0);
            if let Some(byte) = bytes.get_mut(at) {
                *byte = if round % 3 == 0 { 0xff } else { random().to_le_bytes()[0] };
            }
        }
        let from = Compressed::from_bytes(bytes)?;
        let on_host = from.decompress::<u8>();
        match (bench.upload(from), on_host) {
            (Ok(array), Ok(right)) => {
                ensure!(array.to_vec()? == right, "round {round}: other bytes")
            }
            (Err(Error::Compressed(_)), Err(Error::Compressed(_))) => told += 1,
            (device, host) => {
                ensure!(
                    false,
                    "round {round}: {:?} and on the host {:?}",
                    device.err(),
                    host.err()
                );
            }
        }
    }
    ensure!(told > 100, "only {told} were found damaged");
    ensure!(bench.upload(whole)?.to_vec()? == data, "the device does not work on");
    Ok(())
}

/// Where the driver refuses the kernel, the host decodes; only the fake driver can be made to.
pub(crate) fn refused(driver: &'static CudaDriver) -> Step {
    type Fail = unsafe extern "C" fn(*const c_char, u64, u32);
    const NO_BINARY_FOR_GPU: u32 = 209;
    let library = CString::new(driver.library()).map_err(|error| error.to_string())?;
    // SAFETY: the library is loaded already, and stays.
    let symbol = unsafe {
        libc::dlsym(libc::dlopen(library.as_ptr(), libc::RTLD_NOW), c"forebay_fake_fail".as_ptr())
    };
    ensure!(!symbol.is_null(), "{} cannot be made to fail", driver.library());
    // SAFETY: the fake driver's function has this signature; the name ends with a zero, and the code is one of CUDA's.
    unsafe {
        let fail = core::mem::transmute::<*mut c_void, Fail>(symbol);
        fail(c"cuModuleLoadData".as_ptr(), 0, NO_BINARY_FOR_GPU);
    }
    // Its kernel was not loaded yet: the other cases use the first device.
    let bench = Bench::open(driver, 1)?;
    let data = text(LENGTH);
    let from = Compressed::new(&data)?;
    let size = Bytes::new(from.as_bytes().len() as u64);
    let whole = size.saturating_add(from.size());
    // The compressed bytes had been sent when that showed; and the second time they are all.
    for right in [whole, whole.saturating_add(size)] {
        ensure!(bench.upload(from.clone())?.to_vec()? == data, "other bytes");
        let sent = bench.engine.statistics().uploads.bytes;
        ensure!(sent == right, "{sent} were sent, and {right} is right");
    }
    Ok(())
}

/// How fast it is, on hardware.
pub(crate) fn figures(driver: &'static CudaDriver) -> Step {
    let bench = Bench::open(driver, 0)?;
    let mut random = noise();
    let text = text(1 << 22).repeat(MUCH >> 22);
    let steps = (0..MUCH >> 2).flat_map(|at| ((at >> 6) as f32).to_le_bytes()).collect();
    let tokens =
        (0..MUCH >> 2).flat_map(|_| u32::to_le_bytes((random() & 0x7fff) as u32)).collect();
    let kinds = [("text", text), ("steps of floats", steps), ("15-bit tokens", tokens)];
    let sizes = [16, 64, 256].map(Bytes::kib);
    for ((kind, data), block) in kinds.iter().flat_map(|kind| sizes.map(|block| (kind, block))) {
        let from = Compressed::with_block::<u8>(data, block)?;
        let size = from.as_bytes().len();
        let array = bench.pool.default_stream().uninit::<u8>(data.len())?;
        let ((_, array), times) = bench
            .engine
            .calibrate_decoder(from, array)
            .map_err(|refused| refused.into_parts().1)?;
        let rate = |time: Option<core::time::Duration>| {
            time.map_or(0.0, |time| data.len() as f64 / time.as_secs_f64() / 1e9)
        };
        println!(
            "record: {{\"case\":\"compressed\",\"data\":\"{kind}\",\"block\":{},\"ratio\":{:.3},\"device_gbps\":{:.2},\"host_gbps\":{:.2}}}",
            block.get(),
            size as f64 / data.len() as f64,
            rate(times.device),
            rate(Some(times.host))
        );
        drop(array);
    }
    Ok(())
}
