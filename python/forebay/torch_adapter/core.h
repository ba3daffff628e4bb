// What the adapter does below PyTorch's interface: allocating from the right pool, freeing, refusing, and telling those who
// follow memory.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>

#include <array>
#include <cstdlib>
#include <shared_mutex>
#include <thread>

#include "common.h"

namespace forebay {

using c10::DataPtr;
using c10::cuda::CUDAStream;

/// The adapter without its interface.
class Core : public CUDAAllocator {
 public:
  explicit Core(CUDAAllocator* native)
      : native_(native), enabled_(!std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING")) {}

 protected:
  /// The one that is PyTorch's allocator.
  static inline Core* installed = nullptr;

  /// Whether this process is a forked child. Its locks may be held by threads that are not there: nothing is allocated,
  /// nothing is freed, and nothing need be said.
  static inline std::atomic<bool> is_child{false};

  static void deallocate_quietly(void* block) {
    if (!installed->give_back(block)) TORCH_WARN(std::string("forebay: ") + library.last_error());
  }

  /// The number that this PyTorch's handles begin with: its own allocator tells.
  char form_of_handles() {
    static const char form = [this] {
      void* block = native_->raw_alloc(1);
      auto handle = native_->shareIpcHandle(block).handle;
      native_->raw_delete(block);
      native_->emptyCache({0, 0});
      return handle.at(0);
    }();
    return form;
  }

  /// Notes that a block is used on a stream of another GPU.
  void record_on_other_gpu(void* block, CUDAStream stream) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    on_other_gpus_[block].push_back(stream);
    any_on_other_gpus_ = true;
  }

  /// Lets the stream of a block that is about to be freed wait for the streams of other GPUs that use it.
  C10_NOINLINE void await_other_gpus(void* block) {
    std::vector<CUDAStream> streams;
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      auto found = on_other_gpus_.find(block);
      if (found == on_other_gpus_.end()) return;
      streams = std::move(found->second);
      on_other_gpus_.erase(found);
      any_on_other_gpus_ = !on_other_gpus_.empty();
    }
    Block found;
    if (library.torch_find(block, 1, &found) != 0) return;
    for (auto& stream : streams) {
      c10::cuda::CUDAGuard guard(stream.device());
      cudaEvent_t event = nullptr;
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      C10_CUDA_CHECK(cudaEventRecord(event, stream.stream()));
      // The default stream is that of the current GPU.
      guard.set_index(static_cast<DeviceIndex>(found.device));
      C10_CUDA_CHECK(cudaStreamWaitEvent(static_cast<cudaStream_t>(pointer(found.stream)), event, 0));
      C10_CUDA_CHECK(cudaEventDestroy(event));
    }
  }

  /// Whether a request needs more than the pool of its GPU.
  bool is_watched() const {
    return routes_.load(std::memory_order_relaxed) != 0 || history_.busy();
  }

  void* take(size_t size, DeviceIndex device, cudaStream_t stream, c10::DeleterFnPtr* deleter) {
    void* block = nullptr;
    if (C10_LIKELY(!is_watched())) {
      block = library.torch_allocate(size, device, stream);
      if (C10_UNLIKELY(!block)) block = take_or_fail(size, device, stream, PoolId{0, 0}, nullptr, deleter);
    } else {
      block = take_watched(size, device, stream, deleter);
    }
    const auto* trace = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(trace || c10::memoryProfilingEnabled()) && *deleter == &deallocate_quietly) {
      if (trace) (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
      report(block);
    }
    return block;
  }

  C10_NOINLINE void* take_watched(size_t size, DeviceIndex device, cudaStream_t stream, c10::DeleterFnPtr* deleter) {
    require(!is_child, "forebay: GPU memory cannot be used in a forked process: start it by spawn");
    Context context = history_.gather(RecordContext::STATE);
    PoolId pool = route(device, stream);
    if (pool != PoolId{0, 0} && is_foreign(device, pool)) return take_foreign(size, device, stream, deleter);
    void* block = take_from(size, device, stream, pool);
    if (!block) block = take_or_fail(size, device, stream, pool, context, deleter);
    if (*deleter == &deallocate_quietly) record_allocation(block, size, device, stream, pool, std::move(context));
    return block;
  }

  /// Records a new block, if blocks are recorded.
  void record_allocation(
      void* block, size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, Context context) {
    note_segments(device, context);
    if (history_.follows_segments())
      history_.add(TraceEntry::ALLOC, device, reinterpret_cast<uint64_t>(block), size, stream, pool, context);
    history_.keep(block, std::move(context));
  }

  /// Records that a block is about to be freed, if blocks are recorded: right after, another thread may have its address.
  void record_free(const Block& block, Context context) {
    void* address = pointer(block.address);
    if (!context) context = history_.context_of(address);
    history_.forget(address);
    if (!history_.follows_segments()) return;
    for (auto action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED})
      history_.add(
          action, static_cast<DeviceIndex>(block.device), block.address, block.requested, pointer(block.stream),
          pool_id(block.pool), context);
  }

  void* take_from(size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, bool routed = true) {
    if (pool == PoolId{0, 0}) return library.torch_allocate(size, device, stream);
    return library.torch_allocate_in(size, device, stream, number_of(pool), is_captured(stream), routed);
  }

  /// Allocates by PyTorch's own allocator, within what forebay leaves of the limit.
  void* take_foreign(size_t size, DeviceIndex device, cudaStream_t stream, c10::DeleterFnPtr* deleter) {
    std::optional<double> fraction = fraction_of(device);
    if (fraction) {
      Figures figures{};
      check(library.torch_stats(device, &figures));
      double held = static_cast<double>(figures.reserved_bytes[0].current);
      double left = *fraction - held / static_cast<double>(memory_of(device).total);
      native_->setMemoryFraction(std::max(left, 0.0), device);
    }
    void* block = native_->raw_alloc_with_stream(size, stream);
    *deleter = native_->raw_deleter();
    count_foreign(device);
    return block;
  }

  /// Allocates from a pool of PyTorch's own allocator, for a request that was refused elsewhere. Null where it has none.
  void* take_foreign_from(
      PoolId pool, size_t size, DeviceIndex device, cudaStream_t stream, c10::DeleterFnPtr* deleter) try {
    auto here = [thread = std::this_thread::get_id()](cudaStream_t) { return std::this_thread::get_id() == thread; };
    native_->beginAllocateToPool(device, pool, here);
    struct End {
      Core* core;
      DeviceIndex device;
      PoolId pool;
      ~End() {
        core->native_->endAllocateToPool(device, pool);
        core->native_->releasePool(device, pool);
      }
    } end{this, device, pool};
    return take_foreign(size, device, stream, deleter);
  } catch (const c10::Error&) {
    return nullptr;
  }

  std::optional<double> fraction_of(DeviceIndex device) {
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return devices_[device].fraction;
  }

  /// Lets what PyTorch's own allocator holds count against the limit that the program set.
  void count_foreign(DeviceIndex device) {
    if (!any_foreign_ || !fraction_of(device)) return;
    int64_t held = native_->getDeviceStats(device).reserved_bytes[0].current;
    check(library.torch_count_outside(device, static_cast<uint64_t>(held)));
  }

  static int is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  }

  /// What is left to try for a request that was refused, and else the exception.
  C10_NOINLINE void* take_or_fail(
      size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, Context context, c10::DeleterFnPtr* deleter) {
    std::string report = library.last_error();
    require(library.torch_is_out_of_memory(), "forebay: " + report);
    bool freed = library.torch_drop_unused();
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    // Pools of the program's that nothing uses any more. What else PyTorch's own allocator has is in use.
    if (any_foreign_ && routes_ == 0) {
      native_->emptyCache({0, 0});
      count_foreign(device);
      freed = true;
    }
    if (freed) {
      if (void* block = take_from(size, device, stream, pool)) return block;
    }
    std::set<PoolId> others;
    if (pool == PoolId{0, 0}) {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      others = devices_[device].last_resort;
    }
    for (auto& other : others) {
      void* block = is_foreign(device, other) ? take_foreign_from(other, size, device, stream, deleter)
                                              : take_from(size, device, stream, other, false);
      if (block) return block;
    }
    fail(size, device, stream, pool, std::move(context), report);
  }

  [[noreturn]] void fail(
      size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, Context context, const std::string& report) {
    Memory memory = memory_of(device);
    Figures figures{};
    library.torch_stats(device, &figures);
    auto allocated = figures.allocated_bytes[0].current;
    auto reserved = figures.reserved_bytes[0].current;
    if (history_.follows_segments())
      history_.add(TraceEntry::OOM, device, memory.free, size, stream, pool, std::move(context));
    std::vector<caching::OutOfMemoryObserver> observers;
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      ++devices_[device].out_of_memory;
      observers = observers_;
    }
    c10::Device where(c10::DeviceType::CUDA, device);
    c10::reportOutOfMemoryToProfiler(static_cast<int64_t>(size), allocated, reserved, where);
    for (auto& observer : observers) observer(device, size, std::min(memory.limit, memory.total), memory.free);
    auto words = [](int64_t bytes) { return in_words(static_cast<uint64_t>(bytes)); };
    std::string limit = memory.limit < memory.total ? in_words(memory.limit) + " allowed; " : std::string();
    std::string message = "CUDA out of memory. Tried to allocate " + in_words(size) + ". GPU " +
        std::to_string(device) + " has a total capacity of " + in_words(memory.total) + " of which " +
        in_words(memory.free) + " is free. " + limit + words(allocated) + " is allocated by PyTorch, and " +
        words(reserved - allocated) + " is reserved by PyTorch but unallocated. " + report;
    TORCH_CHECK_WITH(OutOfMemoryError, false, message);
    std::abort();
  }

  bool give_back(void* block) {
    if (!block || C10_UNLIKELY(is_child.load(std::memory_order_relaxed))) return true;
    if (C10_UNLIKELY(any_on_other_gpus_.load(std::memory_order_relaxed))) await_other_gpus(block);
    const auto* trace = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(trace)) (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
    if (C10_UNLIKELY(history_.busy() || c10::memoryProfilingEnabled())) return give_back_watched(block);
    return library.torch_deallocate(block) == 0;
  }

  C10_NOINLINE bool give_back_watched(void* block) {
    Context context = history_.gather(RecordContext::ALL);
    Block found;
    if (library.torch_find(block, 1, &found) != 0) return false;
    record_free(found, std::move(context));
    if (library.torch_deallocate(block) != 0) return false;
    report_size(block, static_cast<DeviceIndex>(found.device), -static_cast<int64_t>(found.size));
    return true;
  }

  /// Tells the profiler of a new block, if it wants to know.
  C10_NOINLINE void report(void* block) {
    Block found;
    if (c10::memoryProfilingEnabled() && library.torch_find(block, 1, &found) == 0)
      report_size(block, static_cast<DeviceIndex>(found.device), static_cast<int64_t>(found.size));
  }

  void report_size(void* block, DeviceIndex device, int64_t size) {
    if (!c10::memoryProfilingEnabled()) return;
    Figures figures{};
    library.torch_stats(device, &figures);
    c10::reportMemoryUsageToProfiler(
        block, size, static_cast<size_t>(figures.allocated_bytes[0].current),
        static_cast<size_t>(figures.reserved_bytes[0].current), c10::Device(c10::DeviceType::CUDA, device));
  }

  /// The pool that requests on a stream go to now: that of the route which was opened last.
  PoolId route(DeviceIndex device, cudaStream_t stream) {
    if (routes_.load(std::memory_order_relaxed) == 0) return {0, 0};
    std::shared_lock<std::shared_mutex> lock(mutex_);
    for (auto& route : devices_[device].routes) {
      if (route.admits(stream)) return route.pool;
    }
    return {0, 0};
  }

  bool is_foreign(DeviceIndex device, PoolId pool) {
    if (!any_foreign_.load(std::memory_order_relaxed)) return false;
    std::shared_lock<std::shared_mutex> lock(mutex_);
    return devices_[device].foreign.count(pool) != 0;
  }

  static std::vector<Block> live_in(DeviceIndex device, PoolId pool) {
    std::vector<Block> live;
    for (auto& [segment, blocks] : segments_of(device)) {
      if (pool_id(segment.pool) == pool) live.insert(live.end(), blocks.begin(), blocks.end());
    }
    return live;
  }

  /// Keeps a private pool among those whose bytes PyTorch shows.
  void remember([[maybe_unused]] DeviceIndex device, [[maybe_unused]] PoolId pool) {
#if FOREBAY_TORCH >= 213
    std::unique_lock<std::shared_mutex> lock(mutex_);
    devices_[device].private_reserved[pool];
#endif
  }

#if FOREBAY_TORCH >= 213
  /// The bytes of each private pool that there is or was, as of the times this was called.
  ReservedByPool private_reserved(DeviceIndex device) {
    std::map<PoolId, std::array<int64_t, 3>> now;
    for (auto& [segment, blocks] : segments_of(device)) {
      if (pool_id(segment.pool) == PoolId{0, 0}) continue;
      auto& sums = now[pool_id(segment.pool)];
      sums[0] += static_cast<int64_t>(segment.size);
      sums[segment.large ? 2 : 1] += static_cast<int64_t>(segment.size);
    }
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto& known = devices_[device].private_reserved;
    for (auto& [pool, sums] : now) known[pool];
    for (auto& [pool, stats] : known) {
      for (size_t kind = 0; kind < 3; ++kind) {
        int64_t change = now[pool][kind] - stats[kind].current;
        if (change > 0) stats[kind].increase(static_cast<size_t>(change));
        if (change < 0) stats[kind].decrease(static_cast<size_t>(-change));
      }
    }
    return known;
  }
#endif

  static Memory memory_of(DeviceIndex device) {
    Memory memory{};
    check(library.torch_memory(device, &memory));
    return memory;
  }

  void check_device(DeviceIndex device) const {
    if (C10_UNLIKELY(device < 0 || static_cast<size_t>(device) >= count_))
      require(false, "Invalid device argument " + std::to_string(device) + ": PyTorch uses " + std::to_string(count_) + " GPUs");
  }

  /// Fails unless a private pool is in use.
  void check_pool(DeviceIndex device, PoolId pool) {
    check_device(device);
    require(library.torch_use_count(device, number_of(pool)) > 0, "Could not find pool " + in_words(pool));
  }

  /// Tells those who follow segments what was taken from the device and given back since.
  void note_segments(DeviceIndex device, const Context& context) {
    if (!history_.follows_segments()) return;
    for (auto& [is_new, segment] : follow_segments(device)) {
      auto action = is_new ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP;
      history_.add(action, device, segment.address, segment.size, nullptr, pool_id(segment.pool), context);
    }
  }

  /// The segments that came (true) and went since the last call.
  std::vector<std::pair<bool, Segment>> follow_segments(DeviceIndex device) {
    std::vector<std::pair<bool, Segment>> news;
    if (!history_.follows_segments()) return news;
    // One thread at a time, from looking to comparing: else an older look would undo a newer one.
    std::lock_guard<std::mutex> one_at_a_time(following_);
    uint64_t growth = library.torch_growth(device);
    auto& [known_growth, known] = known_segments_[device];
    if (known_growth == growth) return news;
    std::map<uint64_t, Segment> now;
    for (auto& [segment, blocks] : segments_of(device)) now.emplace(segment.address, segment);
    auto in = [](const std::map<uint64_t, Segment>& all, const Segment& one) {
      auto found = all.find(one.address);
      return found != all.end() && found->second.size == one.size;
    };
    for (auto& [address, segment] : known) {
      if (!in(now, segment)) news.emplace_back(false, segment);
    }
    for (auto& [address, segment] : now) {
      if (!in(known, segment)) news.emplace_back(true, segment);
    }
    known = std::move(now);
    known_growth = growth;
    return news;
  }

  caching::SegmentInfo describe(const Segment& segment, const std::vector<Block>& blocks) {
    caching::SegmentInfo info;
    info.device = static_cast<DeviceIndex>(segment.device);
    info.address = segment.address;
    info.total_size = segment.size;
    info.stream = nullptr;
    info.is_large = segment.large != 0;
    info.is_expandable = true;
    info.owner_private_pool_id = pool_id(segment.pool);
    uint64_t at = segment.address;
    auto add_free = [&](uint64_t end) {
      if (end <= at) return;
      caching::BlockInfo free;
      free.size = end - at;
      info.blocks.push_back(free);
    };
    for (auto& block : blocks) {
      add_free(block.address);
      caching::BlockInfo live;
      live.size = block.size;
      live.requested_size = block.requested;
      live.allocated = true;
      live.active = true;
      live.context_when_allocated = history_.context_of(pointer(block.address));
      info.blocks.push_back(std::move(live));
      info.allocated_size += block.size;
      info.active_size += block.size;
      info.requested_size += block.requested;
      at = block.address + block.size;
    }
    add_free(segment.address + segment.size);
    return info;
  }

  /// PyTorch's own allocator.
  CUDAAllocator* const native_;
  std::atomic<bool> enabled_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> routes_{0};
  std::atomic<bool> any_foreign_{false};
  std::atomic<bool> any_on_other_gpus_{false};
  /// Guards what follows it.
  std::shared_mutex mutex_;
  std::deque<PerDevice> devices_;
  std::vector<caching::OutOfMemoryObserver> observers_;
  /// The streams of other GPUs that use a block.
  std::unordered_map<void*, std::vector<CUDAStream>> on_other_gpus_;
  /// Guards what follows it.
  std::mutex following_;
  std::map<DeviceIndex, KnownSegments> known_segments_;
  History history_;
};

} // namespace forebay
