// The adapter's types, and what both of its halves call.
#pragma once

#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAStream.h>

#include <cstdio>
#include <deque>
#include <exception>
#include <map>
#include <optional>
#include <set>

#include "history.h"
#include "library.h"

namespace forebay {

using c10::DeviceIndex;
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

inline std::string in_words(PoolId pool) {
  return "(" + std::to_string(pool.first) + ", " + std::to_string(pool.second) + ")";
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

/// A list that the library fills through a visitor. No exception may pass through the library: it is kept, and thrown
/// afterwards.
template <typename T>
struct Gathered {
  std::vector<T> all;
  std::exception_ptr thrown;

  void add(T one) noexcept {
    try {
      all.push_back(std::move(one));
    } catch (...) {
      thrown = std::current_exception();
    }
  }

  std::vector<T> take() {
    if (thrown) std::rethrow_exception(thrown);
    return std::move(all);
  }
};

/// A segment with the blocks in it.
struct SegmentBlocks {
  Segment segment;
  std::vector<Block> blocks;
};

inline std::vector<SegmentBlocks> segments_of(DeviceIndex device) {
  Gathered<SegmentBlocks> gathered;
  auto visit = [](void* to, const Segment* segment, const Block* blocks, size_t count) noexcept {
    auto& gathered = *static_cast<Gathered<SegmentBlocks>*>(to);
    try {
      gathered.add({*segment, std::vector<Block>(blocks, blocks + count)});
    } catch (...) {
      gathered.thrown = std::current_exception();
    }
  };
  check(library.torch_walk(device, visit, &gathered));
  return gathered.take();
}

using DeviceStats = c10::CachingDeviceAllocator::DeviceStats;

/// A figure of PyTorch's, and the one of the library that it is.
struct StatMember {
  decltype(DeviceStats::allocation) DeviceStats::*stat;
  Figure (Figures::*figure)[3];
};

/// Every figure with a current value, a peak and totals. A block is active while it is allocated.
inline constexpr StatMember stat_members[] = {
    {&DeviceStats::allocation, &Figures::allocation},
    {&DeviceStats::active, &Figures::allocation},
    {&DeviceStats::segment, &Figures::segment},
    {&DeviceStats::inactive_split, &Figures::inactive_split},
    {&DeviceStats::allocated_bytes, &Figures::allocated_bytes},
    {&DeviceStats::active_bytes, &Figures::allocated_bytes},
    {&DeviceStats::reserved_bytes, &Figures::reserved_bytes},
    {&DeviceStats::inactive_split_bytes, &Figures::inactive_split_bytes},
    {&DeviceStats::requested_bytes, &Figures::requested_bytes},
};

/// Adds `from` to `to`: for all blocks, for small ones and for large ones.
template <typename To, typename From>
void add_stats(To& to, const From& from) {
  for (size_t kind = 0; kind < 3; ++kind) {
    to[kind].current += from[kind].current;
    to[kind].peak += from[kind].peak;
    to[kind].allocated += from[kind].allocated;
    to[kind].freed += from[kind].freed;
  }
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
#if FOREBAY_TORCH >= 213
  /// The bytes of private pools, when they were last asked for.
  ReservedByPool private_reserved;
#endif
};

/// The segments that those who follow them know of, by address, and the pools' growth then.
struct KnownSegments {
  uint64_t growth = ~0ULL;
  std::map<uint64_t, Segment> segments;
};

} // namespace forebay
