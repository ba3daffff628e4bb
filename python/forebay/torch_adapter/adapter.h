// forebay as PyTorch's allocator of GPU memory: the whole interface, in terms of libforebay's functions.
//
//   tensor ──> allocate ──> forebay_torch_allocate            the pool of the GPU
//                 └ route ─> forebay_torch_allocate_in        a private pool: a CUDA graph, a torch.cuda.MemPool
//                 └ route ─> PyTorch's own allocator          a MemPool over an allocator of the program's
//
// Compiled once for each minor version of PyTorch: FOREBAY_TORCH is 100 times the major version plus the minor one.
// Memory, order and figures are libforebay's; here are the types of C++, exceptions, and what is recorded for snapshots.

#pragma once

#include <c10/core/StorageImpl.h>

#include <pthread.h>
#include <unistd.h>

#include <unordered_set>

#include "core.h"

namespace forebay {

class Adapter final : public Core {
 public:
  using Core::Core;

  std::string name() override {
    return "forebay";
  }

  void init(int devices) override {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    while (devices_.size() < static_cast<size_t>(devices)) devices_.emplace_back();
    count_ = devices_.size();
    native_->init(devices);
  }

  bool initialized() override {
    return count_ > 0;
  }

  void enable(bool value) override {
    enabled_ = value;
    native_->enable(value);
  }

  bool isEnabled() const override {
    return enabled_;
  }

  // Allocating and freeing.

  DataPtr allocate(size_t size) override {
    if (C10_UNLIKELY(!enabled_)) return native_->allocate(size);
    TORCH_CHECK_WITH(
        OutOfMemoryError, size < (1ULL << 60), "CUDA out of memory. Tried to allocate more than 1EB memory.");
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    auto deleter = &deallocate_quietly;
    void* block = nullptr;
    if (size != 0) block = take(size, device, c10::cuda::getCurrentCUDAStream(device).stream(), &deleter);
    return {block, block, deleter, c10::Device(c10::DeviceType::CUDA, device)};
  }

  c10::DeleterFnPtr raw_deleter() const override {
    return enabled_ ? &deallocate_quietly : native_->raw_deleter();
  }

  void* raw_alloc(size_t size) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    return raw_alloc_with_stream(size, c10::cuda::getCurrentCUDAStream(device).stream());
  }

  void* raw_alloc_with_stream(size_t size, cudaStream_t stream) override {
    if (C10_UNLIKELY(!enabled_)) return native_->raw_alloc_with_stream(size, stream);
    if (size == 0) return nullptr;
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    auto deleter = &deallocate_quietly;
    return take(size, device, stream, &deleter);
  }

  void raw_delete(void* block) override {
    if (!block) return;
    if (C10_UNLIKELY(!enabled_ || any_foreign_.load(std::memory_order_relaxed))) {
      Block found;
      if (!enabled_ || library.torch_find(block, 1, &found) != 0) return native_->raw_delete(block);
    }
    if (!give_back(block))
      require(false, "invalid device pointer: " + in_hex(block) + " (" + library.last_error() + ")");
  }

  void copy_data(void* to, const void* from, std::size_t size) const override {
    C10_CUDA_CHECK(cudaMemcpy(to, from, size, cudaMemcpyDeviceToDevice));
  }

  void recordStream(const DataPtr& data, CUDAStream stream) override {
    if (!data.get()) return;
    if (data.get_deleter() == &deallocate_quietly) {
      if (C10_UNLIKELY(stream.device_index() != data.device().index())) return record_on_other_gpu(data.get(), stream);
      check(library.torch_record_stream(data.get(), stream.stream()));
    } else if (data.get_deleter() == native_->raw_deleter()) {
      native_->recordStream(data, stream);
    }
    // Anything else is another process's memory, which that process keeps.
  }

  void* getBaseAllocation(void* address, size_t* size) override {
    Block block;
    if (library.torch_find(address, 0, &block) != 0) {
      if (any_foreign_) return native_->getBaseAllocation(address, size);
      require(false, "invalid device pointer: " + in_hex(address));
    }
    if (size) *size = block.size;
    return pointer(block.address);
  }

  void cacheInfo(DeviceIndex device, size_t* largest) override {
    auto memory = memory_of(device);
    if (*largest == 0) *largest = memory.free;
    *largest = std::max<size_t>(*largest, memory.largest);
  }

  // Limits, and giving back.

  double getMemoryFraction(DeviceIndex device) override {
    check_device(device);
    std::shared_lock<std::shared_mutex> lock(mutex_);
    double fraction = 1.0;
    check(library.torch_fraction(device, &fraction));
    return devices_[device].fraction.value_or(fraction);
  }

  void setMemoryFraction(double fraction, DeviceIndex device) override {
    check_device(device);
    require(
        0.0 <= fraction && fraction <= 1.0,
        "invalid fraction: " + std::to_string(fraction) + " is not from 0 to 1");
    check(library.torch_set_fraction(device, fraction));
    native_->setMemoryFraction(fraction, device);
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      devices_[device].fraction = fraction;
    }
    count_foreign(device);
  }

#if FOREBAY_TORCH >= 210
  std::vector<caching::StreamSegmentSize> getExpandableSegmentSizes(DeviceIndex) override {
    return {};
  }
#endif

  void emptyCache(PoolId pool) override {
    Context context = history_.gather(RecordContext::ALL);
    if (any_foreign_) native_->emptyCache(pool);
    check(library.torch_empty_cache(number_of(pool)));
    for (size_t at = 0; at < count_; ++at) {
      auto device = static_cast<DeviceIndex>(at);
      count_foreign(device);
      note_segments(device, context);
    }
  }

  // Private pools.

  void createOrIncrefPool(
      DeviceIndex device,
      PoolId pool,
#if FOREBAY_TORCH >= 211
      std::shared_ptr<CUDAAllocator> over
#else
      CUDAAllocator* over
#endif
      ) override {
    check_device(device);
    if (over) {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      devices_[device].foreign.insert(pool);
      any_foreign_ = true;
    }
    if (is_foreign(device, pool)) return native_->createOrIncrefPool(device, pool, std::move(over));
    check(library.torch_retain(device, number_of(pool)));
    remember(device, pool);
  }

#if FOREBAY_TORCH >= 211
  void setUseOnOOM(DeviceIndex device, PoolId pool, bool last_resort) override {
#else
  void setUseOnOOM(DeviceIndex device, PoolId pool) override {
    bool last_resort = true;
#endif
    check_device(device);
#if FOREBAY_TORCH >= 211
    if (is_foreign(device, pool)) native_->setUseOnOOM(device, pool, last_resort);
#else
    if (is_foreign(device, pool)) native_->setUseOnOOM(device, pool);
#endif
    std::unique_lock<std::shared_mutex> lock(mutex_);
    if (last_resort) {
      devices_[device].last_resort.insert(pool);
    } else {
      devices_[device].last_resort.erase(pool);
    }
  }

#if FOREBAY_TORCH >= 210
  /// A block of forebay's is never part of another: there is nothing to keep whole.
  void setNoSplit(DeviceIndex device, PoolId pool) override {
    if (is_foreign(device, pool)) native_->setNoSplit(device, pool);
  }
#endif

  int getPoolUseCount(DeviceIndex device, PoolId pool) override {
    check_device(device);
    if (is_foreign(device, pool)) return native_->getPoolUseCount(device, pool);
    return library.torch_use_count(device, number_of(pool));
  }

  void beginAllocateToPool(DeviceIndex device, PoolId pool, std::function<bool(cudaStream_t)> filter) override {
    check_device(device);
    if (is_foreign(device, pool)) {
      native_->beginAllocateToPool(device, pool, filter);
    } else {
      check(library.torch_begin(device, number_of(pool)));
      remember(device, pool);
    }
    std::unique_lock<std::shared_mutex> lock(mutex_);
    devices_[device].routes.push_front({pool, std::move(filter)});
    ++routes_;
  }

  void endAllocateToPool(DeviceIndex device, PoolId pool) override {
    check_device(device);
    {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      auto& routes = devices_[device].routes;
      auto found = std::find_if(routes.begin(), routes.end(), [&](auto& route) { return route.pool == pool; });
      require(found != routes.end(), "no requests go to pool " + in_words(pool) + ", so that cannot end");
      routes.erase(found);
      --routes_;
    }
    if (is_foreign(device, pool)) return native_->endAllocateToPool(device, pool);
    check(library.torch_end(device, number_of(pool)));
  }

#if FOREBAY_TORCH >= 213
  void markCaptureBegin(DeviceIndex device) override {
    native_->markCaptureBegin(device);
  }

  void markCaptureEnd(DeviceIndex device) override {
    native_->markCaptureEnd(device);
  }
#endif

  void releasePool(DeviceIndex device, PoolId pool) override {
    check_device(device);
    bool foreign = is_foreign(device, pool);
    if (foreign) {
      native_->releasePool(device, pool);
    } else {
      check(library.torch_release(device, number_of(pool)));
    }
    if (getPoolUseCount(device, pool) == 0) {
      std::unique_lock<std::shared_mutex> lock(mutex_);
      devices_[device].last_resort.erase(pool);
    }
  }

  bool checkPoolLiveAllocations(
      DeviceIndex device, PoolId pool, const std::unordered_set<void*>& expected) override {
    if (is_foreign(device, pool)) return native_->checkPoolLiveAllocations(device, pool, expected);
    check_pool(device, pool);
    auto live = live_in(device, pool);
    for (auto& block : live) {
      if (!expected.count(pointer(block.address))) return false;
    }
    return live.size() == expected.size();
  }

  std::shared_ptr<caching::AllocatorState> getCheckpointState(DeviceIndex device, PoolId pool) override {
    if (is_foreign(device, pool)) return native_->getCheckpointState(device, pool);
    check_pool(device, pool);
    auto state = std::make_shared<Checkpoint>();
    state->pool = pool;
    state->blocks = live_in(device, pool);
    return state;
  }

  caching::CheckpointDelta setCheckpointPoolState(
      DeviceIndex device, std::shared_ptr<caching::AllocatorState> state) override {
    check_device(device);
    auto checkpoint = std::dynamic_pointer_cast<Checkpoint>(state);
    if (!checkpoint) return native_->setCheckpointPoolState(device, std::move(state));
    caching::CheckpointDelta delta;
    auto before = live_in(device, checkpoint->pool);
    const auto& after = checkpoint->blocks;
    check(library.torch_restore(device, number_of(checkpoint->pool), after.data(), after.size()));
    Context context = history_.busy() ? history_.gather(RecordContext::STATE) : nullptr;
    for (auto& block : before) {
      delta.ptrs_freed.push_back(pointer(block.address));
      if (history_.busy()) record_free(block, context);
    }
    for (auto& block : after) {
      void* data = pointer(block.address);
      if (history_.busy()) {
        auto stream = static_cast<cudaStream_t>(pointer(block.stream));
        record_allocation(data, block.requested, device, stream, checkpoint->pool, context);
      }
      delta.dataptrs_allocd.emplace_back(
          data, data, &deallocate_quietly, c10::Device(c10::DeviceType::CUDA, device));
    }
    return delta;
  }

  // Figures.

  c10::CachingDeviceAllocator::DeviceStats getDeviceStats(DeviceIndex device) override {
    check_device(device);
    Figures figures;
    check(library.torch_stats(device, &figures));
    c10::CachingDeviceAllocator::DeviceStats stats;
    for (auto& [stat, figure] : stat_members) add_stats(stats.*stat, figures.*figure);
    stats.num_alloc_retries = figures.alloc_retries;
    stats.num_sync_all_streams = figures.sync_all_streams;
    stats.num_device_alloc = figures.device_alloc;
    stats.num_device_free = figures.device_free;
    stats.max_split_size = -1;
#if FOREBAY_TORCH >= 213
    stats.reserved_bytes_by_private_pools = private_reserved(device);
#endif
    if (any_foreign_) {
      // Pools over allocators of the program's are PyTorch's own.
      const auto theirs = native_->getDeviceStats(device);
      for (auto& [stat, figure] : stat_members) add_stats(stats.*stat, theirs.*stat);
    }
    std::shared_lock<std::shared_mutex> lock(mutex_);
    stats.num_ooms = devices_[device].out_of_memory;
    return stats;
  }

  void resetAccumulatedStats(DeviceIndex device) override {
    check_device(device);
    check(library.torch_reset_totals(device));
    native_->resetAccumulatedStats(device);
    std::unique_lock<std::shared_mutex> lock(mutex_);
    devices_[device].out_of_memory = 0;
#if FOREBAY_TORCH >= 213
    for (auto& [pool, stats] : devices_[device].private_reserved) {
      for (auto& stat : stats) stat.reset_accumulated();
    }
#endif
  }

  void resetPeakStats(DeviceIndex device) override {
    check_device(device);
    check(library.torch_reset_peaks(device));
    native_->resetPeakStats(device);
#if FOREBAY_TORCH >= 213
    std::unique_lock<std::shared_mutex> lock(mutex_);
    for (auto& [pool, stats] : devices_[device].private_reserved) {
      for (auto& stat : stats) stat.reset_peak();
    }
#endif
  }

#if FOREBAY_TORCH >= 211
  caching::SnapshotInfo snapshot(PoolId only, bool with_traces) override {
#else
  caching::SnapshotInfo snapshot(PoolId only) override {
    bool with_traces = true;
#endif
    caching::SnapshotInfo told{};
    std::vector<size_t> active(count_);
    for (size_t device = 0; device < active.size(); ++device) {
      for (auto& [segment, blocks] : segments_of(static_cast<DeviceIndex>(device))) {
        if (only != PoolId{0, 0} && only != pool_id(segment.pool)) continue;
        told.segments.push_back(describe(segment, blocks));
        active[device] += told.segments.back().active_size;
      }
    }
    history_.tell(told, active.size(), with_traces);
    for (size_t device = 0; device < active.size() && history_.enabled(); ++device)
      history_.add(
          TraceEntry::SNAPSHOT, static_cast<DeviceIndex>(device), 0, active[device], nullptr, {0, 0}, nullptr);
    told.config_metadata.expandable_segments = true;
    const char* settings = std::getenv("PYTORCH_CUDA_ALLOC_CONF");
    told.config_metadata.last_allocator_settings = settings ? settings : "";
    if (any_foreign_) {
#if FOREBAY_TORCH >= 211
      auto theirs = native_->snapshot(only, with_traces);
#else
      auto theirs = native_->snapshot(only);
#endif
      std::move(theirs.segments.begin(), theirs.segments.end(), std::back_inserter(told.segments));
      for (size_t device = 0; device < std::min(told.device_traces.size(), theirs.device_traces.size()); ++device) {
        auto& all = told.device_traces[device];
        auto& more = theirs.device_traces[device];
        std::move(more.begin(), more.end(), std::back_inserter(all));
        std::stable_sort(all.begin(), all.end(), [](auto& one, auto& two) { return one.time_.t_ < two.time_.t_; });
      }
    }
    return told;
  }

  // What is recorded, and who wants to know.

  bool isHistoryEnabled() override {
    return history_.enabled();
  }

  void recordHistory(
      bool enabled,
      CreateContextFn recorder,
      size_t most,
      RecordContext when,
      bool clear
#if FOREBAY_TORCH >= 211
      , const std::vector<std::string>& skipped
#endif
      ) override {
#if FOREBAY_TORCH < 211
    std::vector<std::string> skipped;
#endif
    history_.record(enabled, recorder, most, when, clear, skipped, count_);
    native_->recordHistory(
        enabled, recorder, most, when, clear
#if FOREBAY_TORCH >= 211
        , skipped
#endif
    );
    // Segments that are there already are no news.
    for (size_t device = 0; device < count_; ++device) follow_segments(static_cast<DeviceIndex>(device));
  }

  void recordAnnotation(const std::vector<std::pair<std::string, std::string>>& words) override {
    DeviceIndex device = 0;
    C10_CUDA_CHECK(c10::cuda::GetDevice(&device));
    history_.annotate(device, words);
  }

  void pushCompileContext(std::string& what) override {
    compile_contexts().push_back(what);
  }

  void popCompileContext() override {
    if (!compile_contexts().empty()) compile_contexts().pop_back();
  }

#if FOREBAY_TORCH >= 210
  void setUserMetadata(const std::string& metadata) override {
    user_metadata() = metadata;
  }

  std::string getUserMetadata() override {
    return user_metadata();
  }
#endif

#if FOREBAY_TORCH >= 214
  bool supportsUserMetadata() override {
    return true;
  }

  void annotateMemory(const void* block, const std::string& metadata) override {
    Block found;
    if (!history_.enabled() || library.torch_find(block, 1, &found) != 0) return;
    history_.add(
        TraceEntry::ANNOTATE, static_cast<DeviceIndex>(found.device), found.address, found.requested,
        pointer(found.stream), pool_id(found.pool), nullptr, metadata);
  }
#endif

#if FOREBAY_TORCH >= 212
  Context getContextForPointer(const void* block) override {
    return history_.context_of(block);
  }

  /// No request is rejected before it was tried, so there is nothing to observe.
  void attachOomRejectionObserver(caching::OomRejectionObserver) override {}
#endif

  void attachOutOfMemoryObserver(caching::OutOfMemoryObserver observer) override {
    std::unique_lock<std::shared_mutex> lock(mutex_);
    observers_.push_back(std::move(observer));
  }

  void attachAllocatorTraceTracker(caching::AllocatorTraceTracker tracker) override {
    history_.track(std::move(tracker));
    for (size_t device = 0; device < count_; ++device) follow_segments(static_cast<DeviceIndex>(device));
  }

  // Other GPUs and other processes.

  void enablePeerAccess(DeviceIndex device, DeviceIndex peer) override {
    native_->enablePeerAccess(device, peer);
    check(library.torch_enable_peer(peer, device));
  }

  cudaError_t memcpyAsync(
      void* to, int to_device, const void* from, int from_device, size_t size, cudaStream_t stream, bool peers) override {
    if (peers || to_device == from_device) return cudaMemcpyAsync(to, from, size, cudaMemcpyDeviceToDevice, stream);
    return cudaMemcpyPeerAsync(to, to_device, from, from_device, size, stream);
  }

  /// In the form that PyTorch gives memory which it has mapped page by page, so that any PyTorch can open it.
  caching::ShareableHandle shareIpcHandle(void* block) override {
    Block found;
    if (any_foreign_ && library.torch_find(block, 1, &found) != 0) return native_->shareIpcHandle(block);
    struct Header {
      pid_t process;
      size_t size;
      size_t count;
    };
    Gathered<Export> gathered;
    uint64_t offset = 0;
    auto visit = [](void* to, const Export* page) noexcept { static_cast<Gathered<Export>*>(to)->add(*page); };
    check(library.torch_export(block, &offset, visit, &gathered));
    std::vector<Export> pages = gathered.take();
    std::string handle = {form_of_handles(), 'e'};
    auto append = [&](const auto& value) { handle.append(reinterpret_cast<const char*>(&value), sizeof(value)); };
    Header header{};
    header.process = getpid();
    header.size = pages.front().size;
    header.count = pages.size();
    append(header);
    for (auto& page : pages) append(page.descriptor);
    return {static_cast<ptrdiff_t>(offset), std::move(handle)};
  }

  /// Moves a storage to memory that can be shared, unless its own can be: a block that is stitched of pages of several
  /// sizes cannot, since PyTorch maps pages of one size. As with share_memory_() of a tensor on the CPU, the address
  /// changes.
  void make_shareable(c10::StorageImpl& storage) {
    void* before = storage.mutable_data();
    Block block;
    uint64_t offset = 0;
    if (storage.data_ptr().get_deleter() != &deallocate_quietly || library.torch_find(before, 1, &block) != 0) return;
    if (library.torch_export(before, &offset, [](void*, const Export*) {}, nullptr) == 0) return;
    auto device = static_cast<DeviceIndex>(block.device);
    c10::cuda::CUDAGuard guard(device);
    cudaStream_t stream = c10::cuda::getCurrentCUDAStream(device).stream();
    void* after = library.torch_allocate_shareable(block.size, device, stream);
    if (!after) fail(block.size, device, stream, {0, 0}, nullptr, library.last_error());
    DataPtr moved(after, after, &deallocate_quietly, c10::Device(c10::DeviceType::CUDA, device));
    C10_CUDA_CHECK(cudaMemcpyAsync(after, before, storage.nbytes(), cudaMemcpyDeviceToDevice, stream));
    check(library.torch_record_stream(before, stream));
    if (history_.busy() && library.torch_find(after, 1, &block) == 0) {
      Context context = history_.gather(RecordContext::STATE);
      record_allocation(after, block.requested, device, stream, pool_id(block.pool), std::move(context));
    }
    report(after);
    storage.set_data_ptr(std::move(moved));
  }

  std::shared_ptr<void> getIpcDevPtr(std::string handle) override {
    return native_->getIpcDevPtr(std::move(handle));
  }

  /// Makes forebay PyTorch's allocator, with the library at `path`. What stands in the way, or nothing.
  static std::string install(const char* path) {
    if (installed) return {};
    auto* native = caching::allocator.load();
    if (native->initialized()) return "PyTorch has used the GPU already";
    std::string reason = library.load(path);
    if (!reason.empty()) return reason;
    if (pthread_atfork(nullptr, nullptr, [] { is_child = true; }) != 0) return "a fork could not be noticed";
    // It lives as long as the process: tensors are freed until the very end.
    installed = new Adapter(native);
    // With priority 0, which PyTorch's own has, torch.accelerator of 2.14 and 2.15 asks PyTorch's own instead.
    c10::SetAllocator(c10::DeviceType::CUDA, installed, 1);
    caching::allocator.store(installed);
    return {};
  }

  static Adapter& instance() {
    return static_cast<Adapter&>(*installed);
  }
};

} // namespace forebay
