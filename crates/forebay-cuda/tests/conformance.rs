//! The CUDA device keeps the device contract, where there is one.
//!
//! `FOREBAY_CUDA_DRIVER` names another driver's library; the first device is the one tested.

use std::process::ExitCode;
use std::sync::Arc;

use forebay_cuda::sys::{RawContext, RawStream, Refusal, values};
use forebay_cuda::{CudaDevice, CudaDriver};
use forebay_hal::conformance::{self, Fixture, Pair};
use forebay_hal::{Call, Device, Error, Peers, Result};
use libtest_mimic::{Arguments, Completion, Trial};

struct Cuda(&'static CudaDriver);

impl Cuda {
    fn device(&self, ordinal: u32) -> Result<Arc<CudaDevice>> {
        CudaDevice::open_with(self.0, ordinal)
    }
}

/// A stream in the device's context, as another library makes one.
fn make_stream(device: &CudaDevice) -> std::result::Result<u64, Refusal> {
    let (table, mut stream, mut popped) =
        (device.driver().table(), RawStream::NULL, RawContext::NULL);
    // SAFETY: the device's context is live, the stream and what is popped are written to places of
    // our own, and the thread's current context is the same afterwards.
    unsafe {
        table.context_push(RawContext(device.raw_context()))?;
        let made = table.stream_create(&raw mut stream, values::stream::NON_BLOCKING, 0);
        table.context_pop(&raw mut popped)?;
        made?;
    }
    Ok(stream.0)
}

impl Fixture for Cuda {
    fn name(&self) -> &str {
        "cuda"
    }

    fn open(&self) -> Result<Arc<dyn Device>> {
        Ok(self.device(0)?)
    }

    fn pair(&self) -> Option<Result<Pair>> {
        if self.0.device_count().ok()? < 2 {
            return None;
        }
        let pair = || {
            let (one, two) = (self.device(0)?, self.device(1)?);
            let reach = one.can_reach(two.descriptor().ordinal)?;
            Ok((reach, (one as Arc<dyn Device>, two as Arc<dyn Device>)))
        };
        match pair() {
            // Two that cannot reach each other are no pair.
            Ok((false, _)) => None,
            Ok((true, pair)) => Some(Ok(pair)),
            Err(error) => Some(Err(error)),
        }
    }

    fn foreign_stream(&self) -> Option<Result<(Arc<dyn Device>, u64)>> {
        let given = || {
            let device = self.device(0)?;
            let raw = make_stream(&device).map_err(|refusal| Error::Lost {
                call: Call::Open,
                reason: format!("no foreign stream: {refusal:?}").into(),
            })?;
            Ok((device as Arc<dyn Device>, raw))
        };
        Some(given())
    }

    fn current_context(&self) -> u64 {
        self.0.current_context()
    }
}

fn main() -> ExitCode {
    let missing = match CudaDriver::load() {
        Ok(driver) => match driver.device_count() {
            Ok(0) => "the CUDA driver shows this process no device".to_owned(),
            Ok(_) => return conformance::main(Cuda(driver)),
            Err(error) => error.to_string(),
        },
        Err(missing) => missing.to_string(),
    };
    // One line in place of all cases, with the reason.
    let reason = format!("skipped: {missing}");
    let skipped =
        Trial::ignorable_test("conformance", move || Ok(Completion::ignored_with(reason)));
    libtest_mimic::run(&Arguments::from_args(), vec![skipped]).exit_code()
}
