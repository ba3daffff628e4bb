// What the adapter does below PyTorch's interface: allocating from the right pool, freeing, refusing, and telling those who
// follow memory.
#pragma once

#include <c10/core/impl/GPUTrace.h>
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#include <c10/cuda/CUDAGuard.h>
#include <c10/cuda/CUDAStream.h>

#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <map>
#include <optional>
#include <set>
#include <shared_mutex>

#include "history.h"
#include "library.h"

namespace forebay {

using c10::DataPtr;
using c10::DeviceIndex;
using c10::cuda::CUDAStream;
using caching::CUDAAllocator;


inline Library library;

inline Number number_of(const PoolId& pool) {
  return {pool.first, pool.second};
}

inline PoolId pool_id(Number number) {
  return {number.first, number.second};
}

inline void* pointer(uint64_t address) {
  return reinterpret_cast<void*>(address);
}

/// Fails with these words unless something holds. The words are one string: composing them by streams would bring a good
/// part of the C++ library into the adapter, which then may differ from PyTorch's.
inline void require(bool holds, const std::string& words) {
  TORCH_CHECK(holds, words);
}

inline std::string in_hex(const void* address) {
  char text[32];
  std::snprintf(text, sizeof(text), "%p", address);
  return text;
}

/// Fails with the library's words unless a call succeeded.
inline void check(int status) {
  if (C10_UNLIKELY(status != 0)) require(false, std::string("forebay: ") + library.last_error());
}

inline std::string in_words(uint64_t bytes) {
  const char* const units[] = {"bytes", "KiB", "MiB", "GiB"};
  if (bytes <= 1024) return std::to_string(bytes) + " bytes";
  double value = static_cast<double>(bytes);
  int unit = 0;
  while (value > 1024.0 && unit < 3) {
    value /= 1024.0;
    ++unit;
  }
  char text[64];
  std::snprintf(text, sizeof(text), "%.2f %s", value, units[unit]);
  return text;
}

/// A segment with the blocks in it.
struct Filled {
  Segment segment;
  std::vector<Block> blocks;
};

inline std::vector<Filled> segments_of(DeviceIndex device) {
  std::vector<Filled> all;
  auto visit = [](void* context, const Segment* segment, const Block* blocks, size_t count) {
    auto& all = *static_cast<std::vector<Filled>*>(context);
    all.push_back({*segment, std::vector<Block>(blocks, blocks + count)});
  };
  check(library.torch_walk(device, visit, &all));
  return all;
}

#if FOREBAY_TORCH >= 213
using ReservedByPool = decltype(c10::CachingDeviceAllocator::DeviceStats::reserved_bytes_by_private_pools);
#endif

/// The live blocks of a private pool, to be set back to.
struct Checkpoint : caching::AllocatorState {
  PoolId pool;
  std::vector<Block> blocks;
};

/// Requests on streams that a filter admits go to a pool.
struct Route {
  PoolId pool;
  std::function<bool(cudaStream_t)> admits;
};

/// What is known of a GPU here.
struct PerDevice {
  std::deque<Route> routes;
  /// Pools over an allocator of the program's, which PyTorch's own allocator manages.
  std::set<PoolId> foreign;
  /// Private pools that may serve requests of others before they fail.
  std::set<PoolId> last_resort;
  int64_t out_of_memory = 0;
  /// What the program set: the library rounds it.
  std::optional<double> fraction;
  /// The bytes of private pools, when they were last told.
  std::map<PoolId, std::decay_t<decltype(c10::CachingDeviceAllocator::DeviceStats::reserved_bytes)>> private_reserved;
  /// The segments that those who follow them know of, by address.
  std::map<uint64_t, Segment> known_segments;
  uint64_t known_growth = ~0ULL;
};

/// The adapter without its interface.
class Core : public CUDAAllocator {
 public:
  explicit Core(CUDAAllocator* native)
      : native_(native), enabled_(!std::getenv("PYTORCH_NO_CUDA_MEMORY_CACHING")) {}

 protected:
  /// The one that is PyTorch's allocator.
  static inline Core* installed = nullptr;

  static void deallocate_quietly(void* block) {
    // In a forked child nothing is freed, and nothing need be said.
    if (!installed->give_back(block) && getpid() == installed->process_)
      TORCH_WARN(std::string("forebay: ") + library.last_error());
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
  void record_abroad(void* block, CUDAStream stream) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    abroad_[block].push_back(stream);
    any_abroad_ = true;
  }

  /// Lets the stream of a block that is about to be freed wait for the streams of other GPUs that use it.
  C10_NOINLINE void await_abroad(void* block) {
    std::vector<CUDAStream> streams;
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      auto found = abroad_.find(block);
      if (found == abroad_.end()) return;
      streams = std::move(found->second);
      abroad_.erase(found);
      any_abroad_ = !abroad_.empty();
    }
    Block found;
    if (library.torch_find(block, 1, &found) != 0) return;
    for (auto& stream : streams) {
      c10::cuda::CUDAGuard guard(stream.device());
      cudaEvent_t event = nullptr;
      C10_CUDA_CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
      C10_CUDA_CHECK(cudaEventRecord(event, stream.stream()));
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
      if (C10_UNLIKELY(!block)) block = take_or_fail(size, device, stream, PoolId{0, 0}, nullptr);
    } else {
      block = take_watched(size, device, stream, deleter);
    }
    const auto* trace = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(trace)) (*trace)->trace_gpu_memory_allocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
    if (C10_UNLIKELY(c10::memoryProfilingEnabled())) report(block, device, 1);
    return block;
  }

  C10_NOINLINE void* take_watched(size_t size, DeviceIndex device, cudaStream_t stream, c10::DeleterFnPtr* deleter) {
    Context place = history_.place(RecordContext::STATE);
    PoolId pool = route(device, stream);
    if (pool != PoolId{0, 0} && is_foreign(device, pool)) {
      *deleter = native_->raw_deleter();
      return native_->raw_alloc_with_stream(size, stream);
    }
    void* block = take_from(size, device, stream, pool);
    if (!block) block = take_or_fail(size, device, stream, pool, place);
    note_segments(device, place);
    if (history_.follows_segments())
      history_.add(TraceEntry::ALLOC, device, reinterpret_cast<uint64_t>(block), size, stream, pool, place);
    history_.keep(block, std::move(place));
    return block;
  }

  void* take_from(size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool) {
    if (pool == PoolId{0, 0}) return library.torch_allocate(size, device, stream);
    return library.torch_allocate_in(size, device, stream, number_of(pool), is_captured(stream));
  }

  static int is_captured(cudaStream_t stream) {
    cudaStreamCaptureStatus status{};
    return cudaStreamIsCapturing(stream, &status) == cudaSuccess && status != cudaStreamCaptureStatusNone;
  }

  /// What is left to try for a request that was refused, and else the exception.
  C10_NOINLINE void* take_or_fail(size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, Context place) {
    std::string report = library.last_error();
    require(library.torch_is_out_of_memory(), "forebay: " + report);
    bool freed = library.torch_drop_unused();
    for (const auto& name : c10::FreeCudaMemoryCallbacksRegistry()->Keys())
      freed |= c10::FreeCudaMemoryCallbacksRegistry()->Create(name)->Execute();
    if (freed) {
      if (void* block = take_from(size, device, stream, pool)) return block;
    }
    std::set<PoolId> others;
    if (pool == PoolId{0, 0}) {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      others = devices_[device].last_resort;
    }
    for (auto& other : others) {
      if (void* block = take_from(size, device, stream, other)) return block;
    }
    fail(size, device, stream, pool, std::move(place), report);
  }

  [[noreturn]] void fail(
      size_t size, DeviceIndex device, cudaStream_t stream, PoolId pool, Context place, const std::string& report) {
    Memory memory = memory_of(device);
    Figures figures{};
    library.torch_stats(device, &figures);
    auto allocated = figures.allocated_bytes[0].current;
    auto reserved = figures.reserved_bytes[0].current;
    if (history_.follows_segments())
      history_.add(TraceEntry::OOM, device, memory.free, size, stream, pool, std::move(place));
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
    if (!block) return true;
    if (C10_UNLIKELY(any_abroad_.load(std::memory_order_relaxed))) await_abroad(block);
    const auto* trace = c10::impl::GPUTrace::get_trace();
    if (C10_UNLIKELY(trace)) (*trace)->trace_gpu_memory_deallocation(c10::kCUDA, reinterpret_cast<uintptr_t>(block));
    if (C10_UNLIKELY(history_.busy() || c10::memoryProfilingEnabled())) return give_back_watched(block);
    return library.torch_deallocate(block) == 0;
  }

  C10_NOINLINE bool give_back_watched(void* block) {
    Context place = history_.place(RecordContext::ALL);
    Block found;
    if (library.torch_find(block, 1, &found) != 0) return false;
    auto device = static_cast<DeviceIndex>(found.device);
    // Recorded before it is free: right after, another thread may have the address.
    if (!place) place = history_.place_of(block);
    history_.forget(block);
    if (history_.follows_segments()) {
      for (auto action : {TraceEntry::FREE_REQUESTED, TraceEntry::FREE_COMPLETED})
        history_.add(action, device, found.address, found.requested, pointer(found.stream), pool_id(found.pool), place);
    }
    if (library.torch_deallocate(block) != 0) return false;
    if (c10::memoryProfilingEnabled()) report_size(block, device, -static_cast<int64_t>(found.size));
    return true;
  }

  /// Tells the profiler of a block.
  C10_NOINLINE void report(void* block, DeviceIndex device, int64_t sign) {
    Block found;
    if (library.torch_find(block, 1, &found) == 0) report_size(block, device, sign * static_cast<int64_t>(found.size));
  }

  void report_size(void* block, DeviceIndex device, int64_t size) {
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

  /// Keeps a private pool among those whose bytes are told.
  void remember(DeviceIndex device, PoolId pool) {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    devices_[device].private_reserved[pool];
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
    ReservedByPool told;
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto& known = devices_[device].private_reserved;
    for (auto& [pool, sums] : now) known[pool];
    for (auto& [pool, stats] : known) {
      for (size_t kind = 0; kind < 3; ++kind) {
        int64_t change = now[pool][kind] - stats[kind].current;
        if (change > 0) stats[kind].increase(static_cast<size_t>(change));
        if (change < 0) stats[kind].decrease(static_cast<size_t>(-change));
      }
      told[pool] = stats;
    }
    return told;
  }
#endif

  /// Adds what PyTorch's own allocator has in pools over allocators of the program's.
  static void add_foreign(
      c10::CachingDeviceAllocator::DeviceStats& stats, const c10::CachingDeviceAllocator::DeviceStats& theirs) {
    auto add = [](auto& to, const auto& from) {
      for (size_t kind = 0; kind < 3; ++kind) {
        to[kind].current += from[kind].current;
        to[kind].peak += from[kind].peak;
        to[kind].allocated += from[kind].allocated;
        to[kind].freed += from[kind].freed;
      }
    };
    add(stats.allocation, theirs.allocation);
    add(stats.active, theirs.active);
    add(stats.segment, theirs.segment);
    add(stats.inactive_split, theirs.inactive_split);
    add(stats.allocated_bytes, theirs.allocated_bytes);
    add(stats.active_bytes, theirs.active_bytes);
    add(stats.reserved_bytes, theirs.reserved_bytes);
    add(stats.inactive_split_bytes, theirs.inactive_split_bytes);
    add(stats.requested_bytes, theirs.requested_bytes);
  }

  static Memory memory_of(DeviceIndex device) {
    Memory memory{};
    check(library.torch_memory(device, &memory));
    return memory;
  }

  void check_device(DeviceIndex device) const {
    if (C10_UNLIKELY(device < 0 || static_cast<size_t>(device) >= count_))
      require(false, "Invalid device argument " + std::to_string(device) + ": did you call init?");
  }

  /// Tells those who follow segments what was taken from the device and given back since.
  void note_segments(DeviceIndex device, const Context& place) {
    if (!history_.follows_segments()) return;
    for (auto& [is_new, segment] : follow_segments(device)) {
      auto action = is_new ? TraceEntry::SEGMENT_MAP : TraceEntry::SEGMENT_UNMAP;
      history_.add(action, device, segment.address, segment.size, nullptr, pool_id(segment.pool), place);
    }
  }

  /// The segments that came (true) and went since the last call.
  std::vector<std::pair<bool, Segment>> follow_segments(DeviceIndex device) {
    std::vector<std::pair<bool, Segment>> news;
    if (!history_.follows_segments()) return news;
    uint64_t growth = library.torch_growth(device);
    {
      std::shared_lock<std::shared_mutex> lock(mutex_);
      if (devices_[device].known_growth == growth) return news;
    }
    std::map<uint64_t, Segment> now;
    for (auto& filled : segments_of(device)) now.emplace(filled.segment.address, filled.segment);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    auto& known = devices_[device].known_segments;
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
    devices_[device].known_growth = growth;
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
      live.context_when_allocated = history_.place_of(pointer(block.address));
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
  const pid_t process_ = getpid();
  std::atomic<bool> enabled_;
  std::atomic<size_t> count_{0};
  std::atomic<size_t> routes_{0};
  std::atomic<bool> any_foreign_{false};
  std::atomic<bool> any_abroad_{false};
  /// Guards what follows it.
  std::shared_mutex mutex_;
  std::deque<PerDevice> devices_;
  std::vector<caching::OutOfMemoryObserver> observers_;
  /// The streams of other GPUs that use a block.
  std::unordered_map<void*, std::vector<CUDAStream>> abroad_;
  History history_;
};

} // namespace forebay
