// Calls forebay's entry points for PyTorch with the very types that PyTorch calls them with.
//
//   torch_abi LIBRARY DRIVER C10 CASE
//
// What is wrong is said, and the status is 1.

#include <dlfcn.h>

#include <array>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "c10.h"

struct CUstream_st;
using cudaStream_t = CUstream_st*;
using MempoolId_t = std::pair<unsigned long long, unsigned long long>;

static void* library;
static std::string c10_path;

#define CHECK(what)                                                            \
  do {                                                                         \
    if (!(what)) {                                                             \
      std::printf("line %d: not so: %s; last error: %s\n", __LINE__, #what,    \
                  last_error());                                               \
      std::exit(1);                                                            \
    }                                                                          \
  } while (0)

template <typename F>
static F* entry(const char* name, void* from = nullptr) {
  void* found = dlsym(from ? from : library, name);
  if (!found) {
    std::printf("no %s: %s\n", name, dlerror());
    std::exit(1);
  }
  return reinterpret_cast<F*>(found);
}

static const char* last_error() { return entry<const char*()>("forebay_last_error")(); }

// As PyTorch keeps them.
static std::function<void*(size_t, int, cudaStream_t)> alloc_fn;
static std::function<void*(size_t, int, cudaStream_t)> alloc_or_throw_fn;
static std::function<void(void*, size_t, int, cudaStream_t)> free_fn;
static std::function<void()> reset_fn;
static std::function<void(double, int)> memory_fraction_fn;
static std::function<void*(void*, size_t*)> base_alloc_fn;
static std::function<void(void*, cudaStream_t)> record_stream_fn;
static std::function<void(int, MempoolId_t, std::function<bool(cudaStream_t)>)> begin_fn;
static std::function<void(int, MempoolId_t)> end_fn;
static std::function<void(int, MempoolId_t)> release_fn;

static void look_up() {
  alloc_fn = entry<void*(size_t, int, cudaStream_t)>("forebay_torch_alloc");
  alloc_or_throw_fn = entry<void*(size_t, int, cudaStream_t)>("forebay_torch_alloc_or_throw");
  free_fn = entry<void(void*, size_t, int, cudaStream_t)>("forebay_torch_free");
  reset_fn = entry<void()>("forebay_torch_reset");
  memory_fraction_fn = entry<void(double, int)>("forebay_torch_memory_fraction");
  base_alloc_fn = entry<void*(void*, size_t*)>("forebay_torch_base_allocation");
  record_stream_fn = entry<void(void*, cudaStream_t)>("forebay_torch_record_stream");
  begin_fn = entry<void(int, MempoolId_t, std::function<bool(cudaStream_t)>)>(
      "forebay_torch_begin_allocate_to_pool");
  end_fn = entry<void(int, MempoolId_t)>("forebay_torch_end_allocate_to_pool");
  release_fn = entry<void(int, MempoolId_t)>("forebay_torch_release_pool");
}

static void learn_to_throw() {
  CHECK(entry<int(const char*)>("forebay_torch_errors_from")(c10_path.c_str()) == 0);
  CHECK(entry<int()>("forebay_torch_can_throw")() == 1);
}

static std::string figures() {
  char* text = entry<char*(int)>("forebay_torch_figures")(0);
  CHECK(text);
  std::string copy = text;
  entry<void(char*)>("forebay_string_free")(text);
  return copy;
}

static size_t graphs() {
  std::string all = figures();
  size_t count = 0;
  for (size_t at = 0; (at = all.find("{\"first\":", at)) != std::string::npos; ++at) ++count;
  return count;
}

static std::array<cudaStream_t, 2> streams(void* driver) {
  std::array<cudaStream_t, 2> made{};
  void* context = nullptr;
  CHECK(entry<int(unsigned)>("cuInit", driver)(0) == 0);
  CHECK(entry<int(void**, int)>("cuDevicePrimaryCtxRetain", driver)(&context, 0) == 0);
  CHECK(entry<int(void*)>("cuCtxPushCurrent_v2", driver)(context) == 0);
  for (auto& stream : made) {
    CHECK(entry<int(cudaStream_t*, unsigned, int)>("cuStreamCreateWithPriority", driver)(&stream, 1, 0) == 0);
  }
  return made;
}

static void case_thrown() {
  learn_to_throw();
  for (int time = 0; time < 1000; ++time) {
    bool caught = false;
    try {
      alloc_or_throw_fn(size_t(1) << 50, 0, nullptr);
    } catch (const c10::OutOfMemoryError& error) {
      caught = true;
      CHECK(c10::Error::alive == 1);
      std::string said = error.what_without_backtrace();
      CHECK(said.rfind("CUDA out of memory. ", 0) == 0);
      std::string rest = said.substr(std::strlen("CUDA out of memory. "));
      CHECK("out of memory: " + rest == last_error());
      CHECK(std::string(error.what()) == said + " (forebay at forebay:0)");
      CHECK(dynamic_cast<const c10::Error*>(&error));
    }
    CHECK(caught);
    CHECK(c10::Error::alive == 0);
  }
  // As a base, as PyTorch's other handlers do.
  bool caught = false;
  try {
    alloc_or_throw_fn(size_t(1) << 50, 0, nullptr);
  } catch (const std::exception& error) {
    caught = dynamic_cast<const c10::OutOfMemoryError*>(&error) != nullptr;
  }
  CHECK(caught);
  // What is not for want of memory is another error.
  caught = false;
  try {
    alloc_or_throw_fn(512, 63, nullptr);
  } catch (const c10::OutOfMemoryError&) {
    CHECK(false);
  } catch (const c10::Error& error) {
    caught = std::strlen(error.what_without_backtrace()) > 0;
  }
  CHECK(caught);
  CHECK(c10::Error::alive == 0);
  // Memory that is there comes as ever, and none that was asked for is no error.
  void* block = alloc_or_throw_fn(1 << 20, 0, nullptr);
  CHECK(block);
  free_fn(block, 1 << 20, 0, nullptr);
  CHECK(alloc_or_throw_fn(0, 0, nullptr) == nullptr);
}

static void case_no_way_to_throw() {
  CHECK(entry<int()>("forebay_torch_can_throw")() == 0);
  CHECK(alloc_or_throw_fn(size_t(1) << 50, 0, nullptr) == nullptr);
  CHECK(std::strstr(last_error(), "out of memory"));
  auto errors_from = entry<int(const char*)>("forebay_torch_errors_from");
  CHECK(errors_from("libstdc++.so.6") == -1);
  CHECK(std::strstr(last_error(), "c105Error"));
  CHECK(errors_from("/no/such/library.so") == -1);
  CHECK(std::strstr(last_error(), "/no/such/library.so"));
  CHECK(errors_from(nullptr) == -1);
  CHECK(entry<int()>("forebay_torch_can_throw")() == 0);
  learn_to_throw();
}

// Counts its copies, and is larger than what a function keeps in itself.
struct Counted {
  static int alive;
  std::array<long, 8> large{};
  Counted() { ++alive; }
  Counted(const Counted& other) : large(other.large) { ++alive; }
  ~Counted() { --alive; }
};
int Counted::alive = 0;

static void case_captured(void* driver) {
  learn_to_throw();
  auto [captured, other] = streams(driver);
  void* before = alloc_fn(1 << 20, 0, captured);
  CHECK(before);
  free_fn(before, 1 << 20, 0, captured);
  CHECK(graphs() == 0);

  MempoolId_t number{0x1'0000'0007ULL, 0x2'0000'0009ULL};
  int asked = 0;
  {
    Counted counted;
    begin_fn(0, number, [counted, captured = captured, &asked](cudaStream_t stream) {
      ++asked;
      return stream == captured && counted.large.size() == 8;
    });
  }
  CHECK(Counted::alive == 1);
  CHECK(graphs() == 1);
  // From here on, as with the real driver, no thread gets memory that does not say that it knows what it does.
  auto capture = entry<void(bool)>("forebay_fake_capture", driver);
  capture(true);
  CHECK(figures().find("\"first\":4294967303,\"second\":8589934601,") != std::string::npos);
  void* within = alloc_fn(1 << 20, 0, captured);
  CHECK(within && within != before && asked == 1);
  void* beside = alloc_fn(1 << 20, 0, other);
  CHECK(beside && asked == 2);
  // Freed within the capture, it serves the next request of it, and nobody else.
  free_fn(within, 1 << 20, 0, captured);
  CHECK(alloc_fn(1 << 20, 0, captured) == within);
  void* grown = alloc_fn(64 << 20, 0, captured);
  CHECK(grown);
  free_fn(grown, 64 << 20, 0, captured);
  void* grown_beside = alloc_fn(32 << 20, 0, other);
  CHECK(grown_beside);
  free_fn(grown_beside, 32 << 20, 0, other);
  int mode = 0;
  CHECK(entry<int(int*)>("cuThreadExchangeStreamCaptureMode", driver)(&mode) == 0 && mode == 0);
  capture(false);
  end_fn(0, number);
  CHECK(Counted::alive == 0);
  CHECK(alloc_fn(1 << 20, 0, captured) == before);
  CHECK(asked == 5);
  free_fn(before, 1 << 20, 0, captured);

  // Another graph of the same pool, by another kind of function: one without a state.
  begin_fn(0, number, [](cudaStream_t) { return true; });
  CHECK(graphs() == 1);
  void* more = alloc_fn(2 << 20, 0, other);
  CHECK(more);
  end_fn(0, number);
  release_fn(0, number);
  CHECK(graphs() == 1);
  // One graph still has it, so what is free stays its own and its memory stays.
  free_fn(more, 2 << 20, 0, other);
  reset_fn();
  CHECK(graphs() == 1);
  release_fn(0, number);
  CHECK(graphs() == 1);  // A block of it is still live.
  free_fn(within, 1 << 20, 0, captured);
  CHECK(graphs() == 0);
  free_fn(beside, 1 << 20, 0, other);
  CHECK(std::string(last_error()).empty());
  CHECK(c10::Error::alive == 0);
  // What never began does not end.
  bool caught = false;
  try {
    end_fn(0, number);
  } catch (const c10::Error&) {
    caught = true;
  }
  CHECK(caught);
  caught = false;
  try {
    begin_fn(0, number, nullptr);
  } catch (const c10::Error& error) {
    caught = std::strstr(error.what(), "filter") != nullptr;
  }
  CHECK(caught);
}

static void case_filter_throws(void* driver) {
  learn_to_throw();
  auto [captured, other] = streams(driver);
  begin_fn(0, {1, 0}, [captured = captured](cudaStream_t stream) -> bool {
    if (stream != captured) throw std::runtime_error("a stream that cannot be asked");
    return true;
  });
  for (int time = 0; time < 100; ++time) {
    for (auto* way : {&alloc_fn, &alloc_or_throw_fn}) {
      bool caught = false;
      try {
        (*way)(512, 0, other);
      } catch (const std::runtime_error& error) {
        caught = std::string(error.what()) == "a stream that cannot be asked";
      }
      CHECK(caught);
    }
  }
  void* block = alloc_fn(512, 0, captured);
  CHECK(block);
  end_fn(0, {1, 0});
  free_fn(block, 512, 0, captured);
  block = alloc_fn(512, 0, other);
  CHECK(block);
  free_fn(block, 512, 0, other);
  release_fn(0, {1, 0});
  CHECK(graphs() == 0);
}

// Where no capture can be, every request of it is refused and none goes to the GPU's own pool.
static void case_capture_refused(void* driver) {
  learn_to_throw();
  auto [captured, other] = streams(driver);
  bool caught = false;
  try {
    begin_fn(0, {1, 0}, [captured = captured](cudaStream_t stream) { return stream == captured; });
  } catch (const c10::Error& error) {
    caught = std::strstr(error.what(), "poison") != nullptr;
  }
  CHECK(caught);
  CHECK(alloc_fn(512, 0, captured) == nullptr);
  CHECK(std::strstr(last_error(), "poison"));
  void* block = alloc_fn(512, 0, other);
  CHECK(block);
  free_fn(block, 512, 0, other);
  end_fn(0, {1, 0});
  CHECK(alloc_fn(512, 0, captured));
}

// Captures begin and end while other threads allocate, free and ask.
static void case_threads(void* driver) {
  learn_to_throw();
  auto [captured, other] = streams(driver);
  std::atomic<bool> over{false};
  std::atomic<long> pairs{0};
  std::vector<std::thread> threads;
  for (int number = 0; number < 3; ++number) {
    threads.emplace_back([&, number, other = other] {
      cudaStream_t stream = number == 0 ? nullptr : other;
      while (!over) {
        void* block = alloc_or_throw_fn(1000 * (number + 1), 0, stream);
        CHECK(block);
        if (number == 2) record_stream_fn(block, nullptr);
        free_fn(block, 0, 0, stream);
        ++pairs;
      }
    });
  }
  for (unsigned long long time = 1; time <= 50 || pairs < 1000; ++time) {
    begin_fn(0, {time, 0}, [captured = captured](cudaStream_t stream) { return stream == captured; });
    void* block = alloc_fn(4096, 0, captured);
    CHECK(block);
    end_fn(0, {time, 0});
    free_fn(block, 4096, 0, captured);
    release_fn(0, {time, 0});
  }
  over = true;
  for (auto& thread : threads) thread.join();
  CHECK(graphs() == 0);
  CHECK(figures().find("\"blocks\":0,") != std::string::npos);
  CHECK(std::string(last_error()).empty());
}

static void case_hooks(void* driver) {
  learn_to_throw();
  auto [one, two] = streams(driver);
  entry<void(int)>("forebay_torch_init")(2);
  char* block = static_cast<char*>(alloc_fn(100'000, 0, one));
  CHECK(block);
  size_t size = 0;
  CHECK(base_alloc_fn(block, &size) == block && size >= 100'000);
  size = 0;
  CHECK(base_alloc_fn(block + 54'321, &size) == block && size >= 100'000);
  CHECK(base_alloc_fn(block, nullptr) == block);
  bool caught = false;
  try {
    base_alloc_fn(reinterpret_cast<void*>(64), &size);
  } catch (const c10::Error&) {
    caught = true;
  }
  CHECK(caught);

  // Used on a further stream, it is not given out again on its own before that is done.
  record_stream_fn(block, two);
  record_stream_fn(nullptr, two);
  free_fn(block, 100'000, 0, one);
  void* next = alloc_fn(100'000, 0, one);
  CHECK(next && next != block);
  free_fn(next, 100'000, 0, one);
  caught = false;
  try {
    record_stream_fn(reinterpret_cast<void*>(64), two);
  } catch (const c10::Error&) {
    caught = true;
  }
  CHECK(caught);

  memory_fraction_fn(0.5, 0);
  CHECK(figures().find("\"max_fraction\":\"0.5\"") != std::string::npos);
  for (double wrong : {-1.0, 0.0, 1.5, double(__builtin_nan(""))}) {
    caught = false;
    try {
      memory_fraction_fn(wrong, 0);
    } catch (const c10::Error& error) {
      caught = std::strstr(error.what(), "max_fraction") != nullptr;
    }
    CHECK(caught);
  }
  CHECK(figures().find("\"max_fraction\":\"0.5\"") != std::string::npos);

  CHECK(figures().find("\"held_bytes\":0,") == std::string::npos);
  reset_fn();
  CHECK(figures().find("\"held_bytes\":0,") != std::string::npos);
}

int main(int count, char** words) {
  if (count != 5) return 2;
  library = dlopen(words[1], RTLD_NOW | RTLD_LOCAL);
  void* driver = dlopen(words[2], RTLD_NOW | RTLD_LOCAL);
  if (!library || !driver) {
    std::printf("%s\n", dlerror());
    return 1;
  }
  c10_path = words[3];
  look_up();
  std::string name = words[4];
  if (name == "thrown") case_thrown();
  else if (name == "no_way_to_throw") case_no_way_to_throw();
  else if (name == "captured") case_captured(driver);
  else if (name == "filter_throws") case_filter_throws(driver);
  else if (name == "capture_refused") case_capture_refused(driver);
  else if (name == "hooks") case_hooks(driver);
  else if (name == "threads") case_threads(driver);
  else return 2;
  return 0;
}
