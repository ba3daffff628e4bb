//! Fills CUDA's table with HIP's functions: directly if the signatures match, otherwise through
//! [translate](crate::translate).

use forebay_cuda::sys::{Function, Need, Symbol, Symbols};

use crate::runtime::MAX_LIBRARIES;
use crate::sys::{self, HIP};
use crate::translate::{
    context_disable_peer, context_enable_peer, context_get_current, context_pop, context_push,
    device_get_attribute, driver_get_version, mem_import, memcpy, memcpy_2d, memcpy_3d,
    memcpy_peer, memset_2d_8, memset_2d_16, memset_2d_32, pointer_get_attributes,
    primary_context_retain, stream_get_context, stream_wait_value,
};

/// A function that forebay's HIP device does without.
macro_rules! absent {
    ($name:literal) => {
        Function::absent(
            const {
                &Symbol {
                    interface: &HIP,
                    name: $name,
                    export: $name,
                    version: 5000,
                    need: Need::Optional,
                }
            },
        )
    };
}

/// CUDA's table with the functions of library `N`.
fn fill<const N: usize>(hip: &sys::Symbols) -> Symbols {
    Symbols {
        init: hip.init,
        driver_get_version: hip.driver_get_version.through(driver_get_version::<N>),
        get_error_name: hip.get_error_name,
        device_get_count: hip.get_device_count,
        device_get: hip.device_get,
        device_get_name: hip.device_get_name,
        device_get_attribute: hip.device_get_attribute.through(device_get_attribute::<N>),
        device_can_access_peer: hip.device_can_access_peer,
        primary_context_retain: hip.set_device.through(primary_context_retain::<N>),
        context_get_current: hip.get_device.through(context_get_current::<N>),
        context_push: hip.set_device.through(context_push::<N>),
        context_pop: hip.set_device.through(context_pop::<N>),
        context_get_device: hip.get_device,
        context_synchronize: hip.device_synchronize,
        context_priority_range: hip.priority_range,
        context_enable_peer: hip.enable_peer.through(context_enable_peer::<N>),
        context_disable_peer: hip.disable_peer.through(context_disable_peer::<N>),
        mem_get_info: hip.mem_get_info,
        mem_alloc: hip.malloc,
        mem_free: hip.free,
        mem_host_alloc: hip.host_malloc,
        mem_free_host: hip.host_free,
        mem_host_register: hip.host_register,
        mem_host_unregister: hip.host_unregister,
        mem_host_device_pointer: hip.host_device_pointer,
        mem_alloc_managed: hip.malloc_managed,
        mem_prefetch_v1: hip.mem_prefetch,
        mem_prefetch_v2: hip.mem_prefetch_v2,
        mem_advise_v1: hip.mem_advise,
        mem_advise_v2: hip.mem_advise_v2,
        pointer_get_attributes: hip.pointer_get_attributes.through(pointer_get_attributes::<N>),
        mem_address_reserve: hip.mem_address_reserve,
        mem_address_free: hip.mem_address_free,
        mem_create: hip.mem_create,
        mem_release: hip.mem_release,
        mem_map: hip.mem_map,
        mem_unmap: hip.mem_unmap,
        mem_set_access: hip.mem_set_access,
        mem_granularity: hip.mem_granularity,
        mem_export: hip.mem_export,
        mem_import: hip.mem_import.through(mem_import::<N>),
        stream_create: hip.stream_create,
        stream_query: hip.stream_query,
        stream_synchronize: hip.stream_synchronize,
        stream_wait_event: hip.stream_wait_event,
        stream_get_id: hip.stream_get_id,
        stream_get_context: hip.stream_get_device.through(stream_get_context::<N>),
        stream_is_capturing: hip.stream_is_capturing,
        thread_exchange_capture_mode: hip.thread_exchange_capture_mode,
        launch_host_function: hip.launch_host_function,
        stream_wait_value: hip.stream_wait_value.through(stream_wait_value::<N>),
        event_create: hip.event_create,
        event_record: hip.event_record,
        event_query: hip.event_query,
        event_synchronize: hip.event_synchronize,
        event_elapsed: hip.event_elapsed,
        memcpy: hip.memcpy.through(memcpy::<N>),
        memcpy_2d: hip.memcpy_2d.through(memcpy_2d::<N>),
        memcpy_3d: hip.memcpy_3d.through(memcpy_3d::<N>),
        memcpy_batch: hip.memcpy_batch,
        memcpy_peer: hip.memcpy_peer.through(memcpy_peer::<N>),
        memset_8: hip.memset_8,
        memset_16: hip.memset_16,
        memset_32: hip.memset_32,
        memset_2d_8: hip.memset_2d_8.through(memset_2d_8::<N>),
        memset_2d_16: hip.memset_16.through(memset_2d_16::<N>),
        memset_2d_32: hip.memset_32.through(memset_2d_32::<N>),
        // forebay looks at the pools of CUDA's driver alone.
        mem_pool_default: absent!("hipDeviceGetDefaultMemPool"),
        mem_pool_get_attribute: absent!("hipMemPoolGetAttribute"),
        mem_pool_set_attribute: absent!("hipMemPoolSetAttribute"),
        mem_pool_trim: absent!("hipMemPoolTrimTo"),
        // Its kernels are PTX.
        module_load: absent!("hipModuleLoadData"),
        module_get_function: absent!("hipModuleGetFunction"),
        launch_kernel: absent!("hipModuleLaunchKernel"),
    }
}

/// The same for each number.
pub(crate) const FILLS: [fn(&sys::Symbols) -> Symbols; MAX_LIBRARIES] = [
    fill::<0>, fill::<1>, fill::<2>, fill::<3>, fill::<4>, fill::<5>, fill::<6>, fill::<7>,
    fill::<8>, fill::<9>, fill::<10>, fill::<11>, fill::<12>, fill::<13>, fill::<14>, fill::<15>,
];
