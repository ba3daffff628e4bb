// forebay under RMM, with RMM's own headers. RMM's containers call the CUDA runtime, so this is only compiled.

#define FOREBAY_WITH_CUDA_MR

#include <forebay.hpp>

#include <rmm/device_buffer.hpp>
#include <rmm/device_uvector.hpp>
#include <rmm/mr/per_device_resource.hpp>
#include <rmm/mr/statistics_resource_adaptor.hpp>
#include <rmm/resource_ref.hpp>

static_assert(std::is_constructible_v<rmm::device_async_resource_ref, forebay::cuda_resource &>);

// All of RMM allocates from the pool, through an adaptor of its own; a vector is given the resource by hand.
void use(const forebay::pool &pool, cuda::stream_ref stream) {
    forebay::cuda_resource resource{pool};
    rmm::mr::set_current_device_resource(resource);
    rmm::mr::statistics_resource_adaptor counted{resource};
    const rmm::device_buffer bytes{1 << 20, stream, counted};
    const rmm::device_uvector<float> values{1000, stream, resource};
    resource.forget(stream);
}
