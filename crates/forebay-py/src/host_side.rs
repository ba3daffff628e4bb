//! The host's side of a transfer: memory of a Python object, held until the transfer is done with it.

use forebay::Address;
use pyo3::exceptions::PyTypeError;
use pyo3::intern;
use pyo3::prelude::*;

use crate::allocation::{MemorySpace, Pin};
use crate::array_view::ArrayView;
use crate::dlpack;
use crate::dtype::Dtype;
use crate::failure::Failure;
use crate::ffi::{HeldBytes, HostBytes};
use crate::gil::DropDetached;
use crate::transfer::HostPointer;

/// Contiguous host memory of a Python object.
pub(crate) struct HostSide {
    pub(crate) address: Address,
    pub(crate) size: u64,
    /// Its drop lets the object go.
    pub(crate) held: Held,
}

/// What keeps the memory where it is.
pub(crate) enum Held {
    /// An export of the buffer protocol. Never read; its drop ends it.
    Bytes(#[allow(dead_code)] HeldBytes),
    /// A tensor of DLPack, which is returned by the drop of its pin.
    Tensor(#[allow(dead_code)] DropDetached<Pin>, ArrayView),
}

impl HostSide {
    /// The memory of an object with the buffer protocol, or else with DLPack, to be read or to be written. Waits for work
    /// that uses it.
    pub(crate) fn of(object: &Bound<'_, PyAny>, writable: bool) -> Result<Self, Failure> {
        let py = object.py();
        match HostBytes::of(object, writable) {
            Ok(bytes) => {
                let address = Address::of_pointer(bytes.start().cast_const());
                let size = bytes.length();
                Ok(Self { address, size, held: Held::Bytes(bytes.hold()) })
            }
            // PyTorch's tensors have no buffer protocol.
            Err(Failure::Python(error))
                if error.is_instance_of::<PyTypeError>(py)
                    && object.hasattr(intern!(py, "__dlpack__"))? =>
            {
                Self::of_tensor(object, writable)
            }
            Err(failure) => Err(failure),
        }
    }

    fn of_tensor(object: &Bound<'_, PyAny>, writable: bool) -> Result<Self, Failure> {
        let (pin, array) = dlpack::import(object)?;
        if pin.allocation().space() != MemorySpace::Host {
            let name = pin.allocation().device().name();
            return Err(Failure::invalid(format!(
                "the tensor is on {name}, and a transfer is from or to host memory: copy between devices with \
                 copy_from() and copy_to()"
            )));
        }
        if writable && !array.writable() {
            return Err(Failure::invalid("the tensor is read-only"));
        }
        array.contiguous()?;
        let (address, size) = (array.address(pin.allocation()), array.bytes());
        let held = Held::Tensor(DropDetached::new(pin), array);
        Ok(Self { address, size, held })
    }

    /// Where it begins.
    pub(crate) fn pointer(&self) -> HostPointer {
        HostPointer::new(self.address)
    }

    /// The elements of `object`, whose memory this is.
    pub(crate) fn elements(&self, object: &Bound<'_, PyAny>) -> Result<ArrayView, Failure> {
        match &self.held {
            Held::Bytes(_) => elements_of(object),
            Held::Tensor(_, array) => Ok(array.alone(true)),
        }
    }
}

/// The elements of an object with the buffer protocol.
pub(crate) fn elements_of(object: &Bound<'_, PyAny>) -> Result<ArrayView, Failure> {
    let dtype = object.getattr("dtype").ok();
    // What has a shape of its own may have elements for which the protocol has no format.
    let (dtype, shape) = match dtype.zip(object.getattr("shape").ok()) {
        Some((dtype, shape)) => (Dtype::of_argument(&dtype)?, shape),
        None => {
            let memory = object.py().import("builtins")?.call_method1("memoryview", (object,))?;
            let format: String = memory.getattr("format")?.extract()?;
            (Dtype::of_format(&format)?, memory.getattr("shape")?)
        }
    };
    ArrayView::of_shape(dtype, crate::array_view::shape_argument(&shape)?)
}
