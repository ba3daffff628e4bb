// What PyTorch's snapshots tell beside the memory itself: a ring of events, the context of each live block (the stack that
// asked for it), annotations; and those that want to be called for every event.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/util/ApproximateClock.h>

#include <algorithm>
#include <atomic>
#include <functional>
#include <mutex>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace forebay {

namespace caching = c10::cuda::CUDACachingAllocator;
using caching::CreateContextFn;
using caching::RecordContext;
using caching::TraceEntry;
using AnnotationEntry = std::decay_t<decltype(caching::SnapshotInfo::external_annotations)>::value_type;
using Context = std::shared_ptr<c10::GatheredContext>;
using PoolId = c10::cuda::MempoolId_t;

/// The last so many values, the oldest first.
template <typename T>
class Ring {
 public:
  /// Changes how many it keeps. The last of them stay.
  void resize(size_t most) {
    most_ = std::max<size_t>(most, 1);
    values_ = values();
    if (values_.size() > most_) values_.erase(values_.begin(), values_.end() - static_cast<ptrdiff_t>(most_));
    next_ = 0;
  }

  void clear() {
    std::vector<T>().swap(values_);
    next_ = 0;
  }

  void push(T value) {
    if (values_.size() < most_) {
      values_.push_back(std::move(value));
    } else {
      values_[next_] = std::move(value);
      next_ = (next_ + 1) % most_;
    }
  }

  std::vector<T> values() const {
    std::vector<T> all;
    all.reserve(values_.size());
    all.insert(all.end(), values_.begin() + static_cast<ptrdiff_t>(next_), values_.end());
    all.insert(all.end(), values_.begin(), values_.begin() + static_cast<ptrdiff_t>(next_));
    return all;
  }

 private:
  std::vector<T> values_;
  size_t most_ = 1;
  size_t next_ = 0;
};

/// What torch.compile compiles on this thread, the innermost last, and the thread's own note.
inline std::vector<std::string>& compile_contexts() {
  thread_local std::vector<std::string> contexts;
  return contexts;
}
inline std::string& user_metadata() {
  thread_local std::string metadata;
  return metadata;
}

class History {
 public:
  /// Whether events are wanted by anyone, or contexts of live blocks are kept: without them nothing here is called.
  bool busy() const {
    return busy_.load(std::memory_order_relaxed);
  }

  bool enabled() const {
    return enabled_.load(std::memory_order_relaxed);
  }

  /// Whether anyone wants to know of segments.
  bool follows_segments() const {
    return enabled() || tracked_.load(std::memory_order_relaxed);
  }

  void record(
      bool enabled,
      CreateContextFn recorder,
      size_t most,
      RecordContext when,
      bool clear,
      const std::vector<std::string>& skipped,
      size_t devices) {
    TORCH_CHECK(
        when == RecordContext::NEVER || recorder,
        "contexts can be recorded only with a function that gathers them");
    std::lock_guard<std::mutex> lock(mutex_);
    enabled_ = enabled;
    // Before when_, and never null again: a thread that reads when_ calls it.
    if (recorder) recorder_ = recorder;
    when_ = enabled && recorder ? when : RecordContext::NEVER;
    skipped_ = skipped;
    traces_.resize(std::max(devices, traces_.size()));
    for (auto& trace : traces_) trace.resize(most);
    annotations_.resize(most);
    if (clear || !enabled) {
      for (auto& trace : traces_) trace.clear();
      annotations_.clear();
    }
    note_busy();
  }

  /// The stack of this thread, if stacks are recorded at that level. Takes no lock: the recorder may need others.
  Context gather(RecordContext level) const {
    return when_.load(std::memory_order_acquire) >= level ? recorder_.load()() : nullptr;
  }

  void track(caching::AllocatorTraceTracker tracker) {
    std::lock_guard<std::mutex> lock(mutex_);
    trackers_.push_back(std::move(tracker));
    tracked_ = true;
    note_busy();
  }

  void add(
      TraceEntry::Action action,
      c10::DeviceIndex device,
      uint64_t address,
      size_t size,
      void* stream,
      PoolId pool,
      Context context,
      std::string metadata = user_metadata()) {
    std::string compiled = compile_contexts().empty() ? "N/A" : compile_contexts().back();
    if (when_.load(std::memory_order_relaxed) < RecordContext::ALLOC) context = nullptr;
    TraceEntry entry(
        action, device, address, size, static_cast<cudaStream_t>(stream), pool, c10::getApproximateTime(),
        std::move(context), std::move(compiled)
#if FOREBAY_TORCH >= 210
        , std::move(metadata)
#endif
    );
    std::vector<caching::AllocatorTraceTracker> trackers;
    {
      std::lock_guard<std::mutex> lock(mutex_);
      if (enabled() && static_cast<size_t>(device) < traces_.size() && !is_skipped(action))
        traces_[static_cast<size_t>(device)].push(entry);
      trackers = trackers_;
    }
    for (auto& tracker : trackers) tracker(entry);
  }

  /// Keeps the context of a live block.
  void keep(const void* block, Context context) {
    if (!context) return;
    std::lock_guard<std::mutex> lock(mutex_);
    contexts_[block] = std::move(context);
    note_busy();
  }

  void forget(const void* block) {
    Context gone;
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = contexts_.find(block);
    if (found == contexts_.end()) return;
    gone = std::move(found->second);
    contexts_.erase(found);
    note_busy();
  }

  Context context_of(const void* block) {
    std::lock_guard<std::mutex> lock(mutex_);
    auto found = contexts_.find(block);
    return found == contexts_.end() ? nullptr : found->second;
  }

  void annotate(c10::DeviceIndex device, const std::vector<std::pair<std::string, std::string>>& words) {
    if (!enabled()) return;
    AnnotationEntry entry(device, c10::getApproximateTime());
    for (const auto& [name, value] : words) entry.recordUserMetadata(name, value);
    std::lock_guard<std::mutex> lock(mutex_);
    annotations_.push(std::move(entry));
  }

  void tell(caching::SnapshotInfo& snapshot, size_t devices, bool with_traces) {
    auto to_nanoseconds = clock_.makeConverter();
    auto convert = [&](auto& entries) {
      for (auto& entry : entries) entry.time_.t_ = to_nanoseconds(entry.time_.approx_t_) / 1000;
    };
    std::lock_guard<std::mutex> lock(mutex_);
    snapshot.external_annotations = annotations_.values();
    convert(snapshot.external_annotations);
    for (size_t device = 0; device < devices; ++device) {
      snapshot.device_traces.emplace_back();
      if (!with_traces || device >= traces_.size()) continue;
      snapshot.device_traces.back() = traces_[device].values();
      convert(snapshot.device_traces.back());
    }
  }

 private:
  void note_busy() {
    busy_ = enabled() || !trackers_.empty() || !contexts_.empty();
  }

  bool is_skipped(TraceEntry::Action action) const {
    static const char* const names[] = {
        "alloc", "free_requested", "free_completed", "segment_alloc", "segment_free",
        "segment_map", "segment_unmap", "snapshot", "oom", "annotate"};
    return std::find(skipped_.begin(), skipped_.end(), names[action]) != skipped_.end();
  }

  std::mutex mutex_;
  std::atomic<bool> busy_{false};
  std::atomic<bool> enabled_{false};
  std::atomic<bool> tracked_{false};
  std::atomic<RecordContext> when_{RecordContext::NEVER};
  std::atomic<CreateContextFn> recorder_{nullptr};
  std::vector<std::string> skipped_;
  std::vector<Ring<TraceEntry>> traces_;
  Ring<AnnotationEntry> annotations_;
  std::vector<caching::AllocatorTraceTracker> trackers_;
  std::unordered_map<const void*, Context> contexts_;
  c10::ApproximateClockToUnixTimeConverter clock_;
};

} // namespace forebay
