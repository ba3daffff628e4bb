// What others allocate with, behind the two functions of PyTorch's pluggable allocator: cudaMalloc, the driver's
// stream-ordered allocator and PyTorch's caching allocator. Built as a library on the machine that has them, for
// peers.cpp and for "forebay bench alloc --against".
#include <c10/cuda/CUDACachingAllocator.h>
#include <cuda_runtime.h>
#include <sys/types.h>

#include <cstdint>
#include <mutex>

extern "C" void *plain_allocate(ssize_t size, int, cudaStream_t) {
  void *block = nullptr;
  return cudaMalloc(&block, static_cast<size_t>(size)) == cudaSuccess ? block : nullptr;
}

extern "C" void plain_free(void *block, ssize_t, int, cudaStream_t) {
  cudaFree(block);
}

extern "C" void *async_allocate(ssize_t size, int device, cudaStream_t stream) {
  static std::once_flag tuned;
  std::call_once(tuned, [device] {
    // Kept, as its users are advised: without this it gives everything back at every synchronisation.
    cudaMemPool_t pool;
    std::uint64_t keep = ~std::uint64_t{0};
    if (cudaDeviceGetDefaultMemPool(&pool, device) == cudaSuccess)
      cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &keep);
  });
  void *block = nullptr;
  return cudaMallocAsync(&block, static_cast<size_t>(size), stream) == cudaSuccess ? block : nullptr;
}

extern "C" void async_free(void *block, ssize_t, int, cudaStream_t stream) {
  cudaFreeAsync(block, stream);
}

extern "C" void *torch_allocate(ssize_t size, int, cudaStream_t stream) {
  static std::once_flag begun;
  std::call_once(begun, [] { c10::cuda::CUDACachingAllocator::init(1); });
  try {
    return c10::cuda::CUDACachingAllocator::raw_alloc_with_stream(static_cast<size_t>(size), stream);
  } catch (...) {
    return nullptr;
  }
}

extern "C" void torch_free(void *block, ssize_t, int, cudaStream_t) {
  c10::cuda::CUDACachingAllocator::raw_delete(block);
}
