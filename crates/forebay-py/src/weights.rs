//! Files of weights, for `forebay.load_file` and `forebay.torch.load_file`.

use core::time::Duration;
use std::path::PathBuf;
use std::sync::Arc;

use forebay::bindings::host_vec;
use forebay::hal::Call;
use forebay::safetensors::{Dtype as FileDtype, Tensor, TensorInfo, Weights};
use forebay::transfer::Ticket;
use pyo3::prelude::*;

use crate::allocation::Allocation;
use crate::array::new_array;
use crate::array_view::ArrayView;
use crate::dtype::{self, Dtype};
use crate::failure::Failure;
use crate::live_blocks::{self, Origin};
use crate::memory::Memory;
use crate::open_device::{OpenDevice, StreamRef, device_or_host};
use crate::stack;
use crate::stream::stream_argument;

/// How often a load looks for signals, and tells how far it is.
const TICK: Duration = Duration::from_millis(50);

/// A tensor: its name, its type in the file, and its array.
type Loaded = (String, &'static str, Py<PyAny>);

/// Load tensors: each its name, its type in the file and its array. One path may be a folder or an index; several are files
/// of tensors. With ``as_bytes``, elements of 8-bit floats are bytes.
#[pyfunction]
#[pyo3(signature = (paths, device = None, *, names = None, stream = None, progress = None, as_bytes = false))]
pub(crate) fn load_weights(
    py: Python<'_>,
    paths: Vec<PathBuf>,
    device: Option<&Bound<'_, PyAny>>,
    names: Option<Vec<String>>,
    stream: Option<&Bound<'_, PyAny>>,
    progress: Option<&Bound<'_, PyAny>>,
    as_bytes: bool,
) -> Result<Vec<Loaded>, Failure> {
    let device = device_or_host(device)?;
    let stream_ref = stream_argument(&device, stream)?;
    let origin = live_blocks::origin(py);
    let ticket = stack::detach(py, || {
        let weights = match &paths[..] {
            [path] => Weights::open(path),
            paths => Weights::open_files(paths),
        }?;
        let weights = match names {
            Some(names) => weights.select(names)?,
            None => weights,
        };
        let pool = device.pool()?;
        Ok::<_, Failure>(weights.load(device.transfers()?, pool.on(stream_ref.handle())).submit()?)
    })?;
    let followed = follow(py, &ticket, progress);
    let tensors = py.detach(|| {
        if followed.is_err() {
            ticket.cancel();
        }
        ticket.wait()
    });
    // What the callback raised comes before that the load was cancelled for it.
    followed?;
    let tensors = tensors.map_err(forebay::Error::from)?;
    tensors
        .into_iter()
        .map(|tensor| array_of(py, &device, &stream_ref, tensor, origin, as_bytes))
        .collect()
}

/// Works on a load until the device has all of it, listens to signals, and tells how far it is.
fn follow(
    py: Python<'_>,
    ticket: &Ticket<Vec<Tensor>>,
    progress: Option<&Bound<'_, PyAny>>,
) -> PyResult<()> {
    let mut told = None;
    loop {
        let is_over = py.detach(|| ticket.wait_for(TICK));
        py.check_signals()?;
        let now = ticket.progress();
        let now = (now.moved.get(), now.total.get());
        if let Some(progress) = progress.filter(|_| told.replace(now) != Some(now)) {
            progress.call1(now)?;
        }
        if is_over {
            return Ok(());
        }
    }
}

fn array_of(
    py: Python<'_>,
    device: &Arc<OpenDevice>,
    stream_ref: &Arc<StreamRef>,
    tensor: Tensor,
    origin: Option<Origin>,
    as_bytes: bool,
) -> Result<Loaded, Failure> {
    let info = tensor.info();
    let (name, file_dtype) = (info.name().to_owned(), info.dtype());
    let dtype = known_as(file_dtype, as_bytes);
    let elements = ArrayView::of_shape(dtype, shape_in_bytes(info)?)?;
    let block = tensor.into_bytes().into_block();
    let pin = Allocation::block(device, stream_ref, block, origin).pin()?;
    Ok((name, file_dtype.name(), new_array(py, Memory::part(pin, elements))?))
}

/// The shape of an array for a tensor. Where elements share bytes, those are its elements: two of 4 bits are one along the
/// last dimension, as in PyTorch; all others are in one dimension.
fn shape_in_bytes(info: &TensorInfo) -> Result<Vec<u64>, Failure> {
    let mut shape = host_vec::copied(info.shape(), Call::Copy)?;
    Ok(match (info.dtype().bits(), shape.last_mut()) {
        (8.., _) => shape,
        (4, Some(last)) if last.is_multiple_of(2) => {
            *last /= 2;
            shape
        }
        _ => vec![info.size().get()],
    })
}

/// The type of elements in Python; bytes for those that it has no name for.
fn known_as(file_dtype: FileDtype, as_bytes: bool) -> &'static Dtype {
    let name = match file_dtype {
        FileDtype::Bool => "bool",
        FileDtype::I8 => "int8",
        FileDtype::I16 => "int16",
        FileDtype::U16 => "uint16",
        FileDtype::F16 => "float16",
        FileDtype::BF16 => "bfloat16",
        FileDtype::I32 => "int32",
        FileDtype::U32 => "uint32",
        FileDtype::F32 => "float32",
        FileDtype::C64 => "complex64",
        FileDtype::F64 => "float64",
        FileDtype::I64 => "int64",
        FileDtype::U64 => "uint64",
        FileDtype::F8E5M2 if !as_bytes => "float8_e5m2",
        FileDtype::F8E4M3 if !as_bytes => "float8_e4m3fn",
        FileDtype::F8E8M0 if !as_bytes => "float8_e8m0fnu",
        FileDtype::F8E4M3Fnuz if !as_bytes => "float8_e4m3fnuz",
        FileDtype::F8E5M2Fnuz if !as_bytes => "float8_e5m2fnuz",
        _ => "uint8",
    };
    Dtype::named(name).unwrap_or_else(dtype::bytes)
}
