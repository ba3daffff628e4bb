// The adaptors with Thrust's CUDA backend and CUB, as the compiler of CUDA takes them. There may be no GPU here, so
// this is only compiled.

#define FOREBAY_WITH_CUDA_MR

#include <forebay.hpp>

#include <cub/device/device_reduce.cuh>
#include <thrust/device_vector.h>
#include <thrust/execution_policy.h>
#include <thrust/sort.h>

template <typename T>
using pooled = forebay::stream_allocator<T, thrust::device_ptr<T>>;

void sort(const forebay::device &device, const forebay::pool &pool, cudaStream_t raw) {
    const forebay::stream stream = forebay::stream::adopt(device, raw);
    thrust::device_vector<int, pooled<int>> keys(1 << 20, 0, pooled<int>{pool});
    forebay::stream_allocator<> temporary{pool, stream};
    thrust::sort(thrust::cuda::par(temporary).on(raw), keys.begin(), keys.end());
}

int largest(const forebay::pool &pool, const int *in, int count, cudaStream_t raw, const forebay::stream &stream) {
    forebay::stream_allocator<> temporary{pool, stream};
    const forebay::buffer<int> out{pool, 1, stream};
    std::size_t bytes = 0;
    cub::DeviceReduce::Max(nullptr, bytes, in, out.data(), count, raw);
    char *scratch = temporary.allocate(bytes);
    cub::DeviceReduce::Max(scratch, bytes, in, out.data(), count, raw);
    temporary.deallocate(scratch, bytes);
    return out.to_vector().front();
}

cuda::mr::any_resource<cuda::mr::device_accessible> any(const forebay::pool &pool) {
    return forebay::cuda_resource{pool};
}
