// The resource of cuda::mr, with CCCL's own headers, on the driver made of the simulated device. The host refuses
// foreign streams.

#define FOREBAY_WITH_CUDA_MR

#include <forebay.hpp>

#include <dlfcn.h>

#include <vector>

#include "expect.hpp"

static_assert(cuda::mr::synchronous_resource_with<forebay::cuda_resource, cuda::mr::device_accessible>);
static_assert(cuda::mr::resource_with<forebay::cuda_resource, cuda::mr::device_accessible>);
static_assert(!cuda::mr::resource_with<forebay::cuda_resource, cuda::mr::host_accessible>);

namespace {

constexpr std::size_t ALIGNMENT = 16;

// A stream that somebody else made, by the driver that forebay has loaded.
class foreign_stream {
public:
    foreign_stream() {
        driver_ = dlopen(std::getenv("FOREBAY_CUDA_DRIVER"), RTLD_NOW | RTLD_NOLOAD);
        EXPECT(driver_ != nullptr);
        void *context = nullptr;
        EXPECT(call<int(void **, int)>("cuDevicePrimaryCtxRetain")(&context, 0) == 0);
        EXPECT(call<int(void *)>("cuCtxPushCurrent_v2")(context) == 0);
        EXPECT(call<int(cudaStream_t *, unsigned, int)>("cuStreamCreateWithPriority")(&stream_, 1, 0) == 0);
    }
    ~foreign_stream() {
        void *context = nullptr;
        EXPECT(call<int(cudaStream_t)>("cuStreamDestroy_v2")(stream_) == 0);
        EXPECT(call<int(void **)>("cuCtxPopCurrent_v2")(&context) == 0);
        dlclose(driver_);
    }
    foreign_stream(const foreign_stream &) = delete;
    foreign_stream &operator=(const foreign_stream &) = delete;

    cuda::stream_ref get() const { return cuda::stream_ref{stream_}; }

private:
    template <typename Function>
    Function *call(const char *name) const {
        void *found = dlsym(driver_, name);
        EXPECT(found != nullptr);
        return reinterpret_cast<Function *>(found);
    }

    void *driver_ = nullptr;
    cudaStream_t stream_ = nullptr;
};

void in_order(const forebay::pool &pool, forebay::cuda_resource resource) {
    const foreign_stream foreign;
    const cuda::stream_ref one{static_cast<cudaStream_t>(nullptr)};
    for (const cuda::stream_ref stream : {one, foreign.get(), cuda::stream_ref{cudaStreamPerThread}}) {
        void *first = resource.allocate(stream, 1000, ALIGNMENT);
        EXPECT(pool.query(first).requested_bytes == 1000);
        resource.deallocate(stream, first, 1000, ALIGNMENT);
        EXPECT(pool.statistics().blocks == 0);
        EXPECT(resource.allocate(stream, 1000, ALIGNMENT) == first);
        resource.deallocate(stream, first, 1000, ALIGNMENT);
        void *aligned = resource.allocate(stream, 10, 1 << 16);
        EXPECT(reinterpret_cast<std::uintptr_t>(aligned) % (1 << 16) == 0);
        resource.deallocate(stream, aligned, 10, 1 << 16);
    }
    // As RMM and CCCL hold it: by reference, and as a copy without its type.
    cuda::mr::resource_ref<cuda::mr::device_accessible> reference{resource};
    cuda::mr::any_resource<cuda::mr::device_accessible> owned{resource};
    void *block = reference.allocate(foreign.get(), 4096, ALIGNMENT);
    EXPECT(pool.statistics().blocks == 1);
    owned.deallocate(foreign.get(), block, 4096, ALIGNMENT);
    EXPECT(pool.statistics().blocks == 0);
    resource.forget(foreign.get());
    resource.forget(foreign.get());
}

void without_streams(const forebay::pool &pool, forebay::cuda_resource resource) {
    void *block = resource.allocate_sync(1 << 20, ALIGNMENT);
    EXPECT(pool.query(block).requested_bytes == 1 << 20);
    resource.deallocate_sync(block, 1 << 20, ALIGNMENT);
    EXPECT(pool.statistics().blocks == 0);
    EXPECT(thrown_by([&] { resource.allocate_sync(1, 3); }) == FOREBAY_STATUS_INVALID_ARGUMENT);
    bool refused = false;
    try {
        resource.allocate_sync(std::size_t{1} << 40, ALIGNMENT);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    EXPECT(refused);
}

// A stream that is none of this device's: nothing is allocated, and what was is freed all the same.
void wrong_streams(const forebay::pool &pool, forebay::cuda_resource resource) {
    const cuda::stream_ref none{reinterpret_cast<cudaStream_t>(&resource)};
    EXPECT(thrown_by([&] { resource.allocate(none, 100, ALIGNMENT); }) == FOREBAY_STATUS_UNSUPPORTED);
    void *block = resource.allocate_sync(100, ALIGNMENT);
    resource.deallocate(none, block, 100, ALIGNMENT);
    EXPECT(pool.statistics().blocks == 0);
}

} // namespace

int main(int count, char **words) {
    const forebay::device device{count > 1 ? words[1] : "host"};
    const forebay::pool pool{device, "max_bytes:64MiB"}, other{device};
    const forebay::cuda_resource resource{pool}, copy = resource, different{other};
    EXPECT(resource == copy && resource != different);
    without_streams(pool, resource);
    if (device.info().kind == FOREBAY_DEVICE_KIND_CUDA) {
        in_order(pool, resource);
    } else if (!device.can(FOREBAY_CAN_FOREIGN_STREAMS)) {
        wrong_streams(pool, resource);
    }
    return 0;
}
