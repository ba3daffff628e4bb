//! Parts of a slice.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use cudarc::driver::{
    CudaStream, CudaView, CudaViewMut, DevicePtr, DevicePtrMut, DeviceSlice, LaunchArgs,
    PushKernelArg, SyncOnDrop,
};

use crate::uses::Uses;

/// A part of a [`Slice`](crate::Slice), for reading.
#[derive(Debug)]
pub struct View<'a, T> {
    pub(crate) view: CudaView<'a, T>,
    pub(crate) uses: &'a Uses,
}

/// A part of a [`Slice`](crate::Slice), for writing.
#[derive(Debug)]
pub struct ViewMut<'a, T> {
    pub(crate) view: CudaViewMut<'a, T>,
    pub(crate) uses: &'a Uses,
}

impl<T> DeviceSlice<T> for View<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.view.stream()
    }
}

impl<T> DevicePtr<T> for View<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.read(&self.view, stream)
    }
}

impl<T> DeviceSlice<T> for ViewMut<'_, T> {
    fn len(&self) -> usize {
        self.view.len()
    }

    fn stream(&self) -> &Arc<CudaStream> {
        self.view.stream()
    }
}

impl<T> DevicePtr<T> for ViewMut<'_, T> {
    fn device_ptr<'a>(&'a self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.read(&self.view, stream)
    }
}

impl<T> DevicePtrMut<T> for ViewMut<'_, T> {
    fn device_ptr_mut<'a>(&'a mut self, stream: &'a CudaStream) -> (CUdeviceptr, SyncOnDrop<'a>) {
        self.uses.write(&mut self.view, stream)
    }
}

// SAFETY: what is pushed is cudarc's own view, which lives as long as this one is borrowed.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b View<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b View<'c, T>) -> &mut Self {
        arg.uses.note_elsewhere(arg.view.stream().context());
        self.arg(&arg.view)
    }
}

// SAFETY: as above.
unsafe impl<'a, 'b: 'a, 'c: 'b, T> PushKernelArg<&'b mut ViewMut<'c, T>> for LaunchArgs<'a> {
    #[inline(always)]
    fn arg(&mut self, arg: &'b mut ViewMut<'c, T>) -> &mut Self {
        arg.uses.before_kernel_writes(&mut arg.view);
        self.arg(&mut arg.view)
    }
}
