// What pinned memory costs: forebay's pool and the driver's call, in one run. Prints one line of JSON for each size.
//
//   g++ -O2 -std=c++17 pinned.cpp -I include -L. -lforebay_capi -lcuda

#include <cuda.h>
#include <forebay.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>

static double now() {
  return std::chrono::duration<double, std::nano>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void check(bool holds, const char* what) {
  if (holds) return;
  std::fprintf(stderr, "%s: %s\n", what, forebay_last_error());
  std::exit(1);
}

int main() {
  forebay_device device{};
  check(forebay_device_open("cuda:0", &device) == FOREBAY_STATUS_OK, "open");
  CUcontext context;
  check(cuInit(0) == CUDA_SUCCESS && cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS, "context");
  check(cuCtxSetCurrent(context) == CUDA_SUCCESS, "context");
  for (size_t size : {size_t{4} << 10, size_t{64} << 10, size_t{1} << 20, size_t{8} << 20, size_t{64} << 20}) {
    double hit = 1e18, first = 0, driver = 1e18;
    void* memory = nullptr;
    double begun = now();
    check(forebay_pinned_alloc(device, size, &memory) == FOREBAY_STATUS_OK, "alloc");
    first = now() - begun;
    check(forebay_pinned_free(device, memory) == FOREBAY_STATUS_OK, "free");
    for (int round = 0; round < 100; ++round) {
      const int pairs = 1000;
      begun = now();
      for (int pair = 0; pair < pairs; ++pair) {
        check(forebay_pinned_alloc(device, size, &memory) == FOREBAY_STATUS_OK, "alloc");
        check(forebay_pinned_free(device, memory) == FOREBAY_STATUS_OK, "free");
      }
      hit = std::min(hit, (now() - begun) / pairs);
    }
    for (int round = 0; round < 10; ++round) {
      begun = now();
      check(cuMemHostAlloc(&memory, size, CU_MEMHOSTALLOC_PORTABLE) == CUDA_SUCCESS, "cuMemHostAlloc");
      check(cuMemFreeHost(memory) == CUDA_SUCCESS, "cuMemFreeHost");
      driver = std::min(driver, now() - begun);
    }
    std::printf(
        "{\"bytes\": %zu, \"first_us\": %.1f, \"pair_ns\": %.1f, \"driver_pair_us\": %.1f, \"times\": %.0f}\n", size,
        first / 1e3, hit, driver / 1e3, driver / hit);
  }
}
