// forebay as PyTorch's allocator of pinned host memory: pin_memory(), data loaders, copies that do not block.
//
// What forebay refuses, and what a CUDA graph under capture allocates, is from PyTorch's own allocator, which also frees
// it and knows the work that uses it.
#pragma once

#include <ATen/core/CachingHostAllocator.h>

#include <atomic>
#include <cstring>

#include "common.h"

namespace forebay {

class PinnedAdapter final : public at::HostAllocator {
 public:
  explicit PinnedAdapter(at::HostAllocator* native) : native_(native) {}

  at::DataPtr allocate(size_t size) override {
    if (size == 0) return {nullptr, nullptr, &deallocate, c10::Device(c10::DeviceType::CPU)};
    if (C10_UNLIKELY(pools_.load(std::memory_order_relaxed) != 0)) return native_->allocate(size);
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    void* memory = library.torch_pinned_alloc(size, device);
    if (!memory) return native_->allocate(size);
    return {memory, memory, &deallocate, c10::Device(c10::DeviceType::CPU)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return &deallocate;
  }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    std::memcpy(to, from, size);
  }

  bool record_event(void* memory, void* context, c10::Stream stream) override {
    c10::cuda::CUDAStream where(c10::cuda::CUDAStream::UNCHECKED, stream);
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    C10_CUDA_CHECK(cudaStreamIsCapturing(where.stream(), &capture));
    bool capturing = capture != cudaStreamCaptureStatusNone;
    for (void* block : {context, memory}) {
      if (!block) continue;
      int recorded = library.torch_pinned_record(block, where.device_index(), where.stream(), capturing);
      if (recorded == NOT_OURS) continue;
      check(recorded);
      return true;
    }
    return native_->record_event(memory, context, stream);
  }

  void empty_cache() override {
    check(library.torch_pinned_trim());
    native_->empty_cache();
  }

  /// PyTorch's figures of its own allocator, and those of forebay added: of blocks in use, and of memory that the
  /// driver pinned at once, in use or free.
  at::HostStats get_stats() override {
    at::HostStats all = native_->get_stats();
    Figures figures{};
    check(library.torch_stats(PINNED, &figures));
#if FOREBAY_TORCH >= 210
    add(all.active_requests, figures.allocation[0]);
    add(all.active_bytes, figures.allocated_bytes[0]);
    add(all.allocations, figures.segment[0]);
    add(all.allocated_bytes, figures.reserved_bytes[0]);
#else
    add(all.allocation, figures.allocation[0]);
    add(all.allocated_bytes, figures.allocated_bytes[0]);
    add(all.segment, figures.segment[0]);
    add(all.reserved_bytes, figures.reserved_bytes[0]);
#endif
    all.num_host_alloc += figures.device_alloc;
    all.num_host_free += figures.device_free;
    return all;
  }

  void reset_accumulated_stats() override {
    native_->reset_accumulated_stats();
    check(library.torch_reset_totals(PINNED));
  }

  void reset_peak_stats() override {
    native_->reset_peak_stats();
    check(library.torch_reset_peaks(PINNED));
  }

#if FOREBAY_TORCH >= 211
  void begin_allocate_to_pool(c10::MempoolId_t pool, std::function<bool(c10::Stream)> filter) override {
    native_->begin_allocate_to_pool(pool, std::move(filter));
    ++pools_;
  }

  void end_allocate_to_pool(c10::MempoolId_t pool) override {
    --pools_;
    native_->end_allocate_to_pool(pool);
  }

  void release_pool(c10::MempoolId_t pool) override {
    native_->release_pool(pool);
  }
#endif

#if FOREBAY_TORCH >= 214
  void record_history(
      bool enabled, CreateContextFn recorder, size_t most, RecordContext when, bool clear) override {
    native_->record_history(enabled, std::move(recorder), most, when, clear);
  }

  bool is_history_enabled() const override {
    return native_->is_history_enabled();
  }

  std::vector<at::HostSegmentInfo> get_segments() override {
    return native_->get_segments();
  }

  std::vector<c10::CachingDeviceAllocator::TraceEntry> get_traces() override {
    return native_->get_traces();
  }

  void record_external_register(void* memory, size_t size) override {
    native_->record_external_register(memory, size);
  }

  void record_external_unregister(void* memory) override {
    native_->record_external_unregister(memory);
  }
#endif

  /// Finds PyTorch's functions in the library that it has loaded, half a gigabyte that the adapter would else have to be
  /// linked with. Fails where they are missing.
  static void prepare() {
    void* torch = dlopen("libtorch_cpu.so", RTLD_LAZY | RTLD_NOLOAD);
    require(torch != nullptr, "libtorch_cpu.so is not loaded");
    get = reinterpret_cast<decltype(get)>(
        dlsym(torch, "_ZN2at16getHostAllocatorEN3c1010DeviceTypeE"));
    set = reinterpret_cast<decltype(set)>(
        dlsym(torch, "_ZN2at16setHostAllocatorEN3c1010DeviceTypeEPNS_13HostAllocatorEh"));
    require(get && set, "this PyTorch has no at::setHostAllocator");
  }

  /// Makes forebay PyTorch's allocator of pinned memory, after `prepare`.
  static void install() {
    if (installed) return;
    // It lives as long as the process.
    installed = new PinnedAdapter(get(c10::DeviceType::CUDA));
    set(c10::DeviceType::CUDA, installed, 0);
  }

 private:
  static constexpr int NOT_OURS = 1;
  /// Stands for a GPU where figures of pinned memory are asked for.
  static constexpr int PINNED = -1;
  static inline PinnedAdapter* installed = nullptr;
  static inline decltype(&at::getHostAllocator) get = nullptr;
  static inline decltype(&at::setHostAllocator) set = nullptr;

  static void add(at::Stat& to, const Figure& more) {
    to.current += more.current;
    to.peak += more.peak;
    to.allocated += more.allocated;
    to.freed += more.freed;
  }

  /// Memory that cannot be freed is kept: by then nobody is left who could be told.
  static void deallocate(void* memory) {
    if (memory) library.torch_pinned_free(memory);
  }

  at::HostAllocator* native_;
  /// How many graphs under capture allocate from pools of their own.
  std::atomic<int> pools_{0};
};

} // namespace forebay
