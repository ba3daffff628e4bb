// The functions of libforebay that the adapter calls, found by name in the library that the process has loaded.
#pragma once

#include <dlfcn.h>

#include <cstddef>
#include <cstdint>
#include <string>

namespace forebay {

/// The number of a private pool: {0, 0} is the pool of the GPU itself.
struct Number {
  uint64_t first;
  uint64_t second;
};

/// A live block.
struct Block {
  uint64_t address;
  uint64_t size;
  uint64_t requested;
  uint64_t stream;
  Number pool;
  int32_t device;
  int32_t reserved;
};

/// Memory taken from the device at once. No block reaches beyond one.
struct Segment {
  uint64_t address;
  uint64_t size;
  Number pool;
  int32_t device;
  int32_t large;
};

/// A figure as PyTorch has it.
struct Figure {
  int64_t current;
  int64_t peak;
  int64_t allocated;
  int64_t freed;
};

/// All figures of a GPU. Each array: all, small, large.
struct Figures {
  Figure allocation[3];
  Figure segment[3];
  Figure inactive_split[3];
  Figure allocated_bytes[3];
  Figure reserved_bytes[3];
  Figure inactive_split_bytes[3];
  Figure requested_bytes[3];
  int64_t alloc_retries;
  int64_t sync_all_streams;
  int64_t device_alloc;
  int64_t device_free;
};

/// The memory of a GPU: free of it and all of it by the driver's word, what the pool may hold, and its largest hole.
struct Memory {
  uint64_t free;
  uint64_t total;
  uint64_t limit;
  uint64_t largest;
};

/// A page that another process can map.
struct Export {
  int32_t descriptor;
  int32_t reserved;
  uint64_t size;
};

using Visit = void (*)(void* context, const Segment*, const Block*, size_t blocks);
using VisitPage = void (*)(void* context, const Export*);

#define FOREBAY_FUNCTIONS(X)                                                   \
  X(const char*, last_error, ())                                               \
  X(void*, torch_allocate, (size_t, int, void*))                               \
  X(void*, torch_allocate_in, (size_t, int, void*, Number, int, int))          \
  X(int, torch_deallocate, (void*))                                            \
  X(int, torch_is_out_of_memory, ())                                           \
  X(int, torch_find, (const void*, int, Block*))                               \
  X(int, torch_record_stream, (void*, void*))                                  \
  X(int, torch_empty_cache, (Number))                                          \
  X(int, torch_drop_unused, ())                                                \
  X(int, torch_fraction, (int, double*))                                       \
  X(int, torch_set_fraction, (int, double))                                    \
  X(int, torch_count_outside, (int, uint64_t))                                 \
  X(int, torch_memory, (int, Memory*))                                         \
  X(int, torch_begin, (int, Number))                                           \
  X(int, torch_end, (int, Number))                                             \
  X(int, torch_retain, (int, Number))                                          \
  X(int, torch_release, (int, Number))                                         \
  X(int, torch_use_count, (int, Number))                                       \
  X(int, torch_stats, (int, Figures*))                                         \
  X(int, torch_reset_peaks, (int))                                             \
  X(int, torch_reset_totals, (int))                                            \
  X(uint64_t, torch_growth, (int))                                             \
  X(int, torch_walk, (int, Visit, void*))                                      \
  X(int, torch_restore, (int, Number, const Block*, size_t))                   \
  X(int, torch_enable_peer, (int, int))                                        \
  X(void*, torch_allocate_shareable, (size_t, int, void*))                     \
  X(int, torch_export, (void*, uint64_t*, VisitPage, void*))                   \
  X(void*, torch_pinned_alloc, (size_t, int))                                  \
  X(int, torch_pinned_free, (void*))                                           \
  X(int, torch_pinned_record, (void*, int, void*, int))                        \
  X(int, torch_pinned_trim, ())

/// The functions, each under its name without `forebay_`.
struct Library {
#define FOREBAY_FIELD(result, name, arguments) result(*name) arguments = nullptr;
  FOREBAY_FUNCTIONS(FOREBAY_FIELD)
#undef FOREBAY_FIELD

  /// Finds all functions in the library at `path`. Returns what is missing, or nothing.
  std::string load(const char* path) {
    void* library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    if (!library) {
      const char* reason = dlerror();
      return reason ? reason : path;
    }
#define FOREBAY_FIND(result, name, arguments)                                  \
  name = reinterpret_cast<result(*) arguments>(dlsym(library, "forebay_" #name)); \
  if (!name) return std::string(path) + " has no forebay_" #name;
    FOREBAY_FUNCTIONS(FOREBAY_FIND)
#undef FOREBAY_FIND
    return {};
  }
};

} // namespace forebay
