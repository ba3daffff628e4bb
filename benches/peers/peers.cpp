// Measures one GPU allocator in a process of its own, and prints one JSON line for each result.
//
//   peers LIBRARY:ALLOCATE:FREE replay PASSES < RUN.csv     plays a recorded run, several times over
//   peers LIBRARY:ALLOCATE:FREE pairs                       small workloads, hot pairs among them
//
// The allocator is two functions of a shared library, with the signatures of PyTorch's pluggable allocator. What it
// takes is read from the driver's count of free memory, so that no allocator is judged by its own statistics.
#include <cuda_runtime.h>
#include <dlfcn.h>
#include <sys/types.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <iostream>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

using Clock = std::chrono::steady_clock;
using Allocate = void *(*)(ssize_t size, int device, cudaStream_t stream);
using Free = void (*)(void *block, ssize_t size, int device, cudaStream_t stream);

constexpr int DEVICE = 0;

[[noreturn]] void fail(const std::string &reason) {
  std::cerr << "peers: " << reason << '\n';
  std::exit(1);
}

void check(cudaError_t status, const char *call) {
  if (status != cudaSuccess) fail(std::string(call) + ": " + cudaGetErrorString(status));
}

std::int64_t nanoseconds_since(Clock::time_point begin) {
  return std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - begin).count();
}

// Not the default stream, which other streams would wait for.
cudaStream_t make_stream() {
  cudaStream_t stream;
  check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags");
  return stream;
}

std::int64_t used_bytes() {
  std::size_t free = 0, total = 0;
  check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo");
  return static_cast<std::int64_t>(total - free);
}

struct Allocator {
  Allocate allocate;
  Free free;
};

// Loads "LIBRARY:ALLOCATE:FREE".
Allocator load(const std::string &words) {
  const auto second = words.rfind(':');
  const auto first = second == std::string::npos || second == 0 ? std::string::npos : words.rfind(':', second - 1);
  if (first == std::string::npos) fail(words + " is not LIBRARY:ALLOCATE:FREE");
  void *library = dlopen(words.substr(0, first).c_str(), RTLD_NOW);
  if (!library) fail(dlerror());
  const auto symbol = [library](const std::string &name) {
    void *found = dlsym(library, name.c_str());
    if (!found) fail(dlerror());
    return found;
  };
  return {reinterpret_cast<Allocate>(symbol(words.substr(first + 1, second - first - 1))),
          reinterpret_cast<Free>(symbol(words.substr(second + 1)))};
}

struct Event {
  bool allocates;
  std::size_t block;
  std::size_t size;
  std::size_t stream;
};

struct Run {
  std::vector<Event> events;
  std::size_t blocks = 0;
  std::size_t streams = 0;
  std::size_t peak = 0;
};

// Reads "op,id,bytes,stream" lines: "a,17,4096,0" allocates block 17, "f,17,,0" frees it.
Run read_run(std::istream &input) {
  Run run;
  std::vector<std::size_t> sizes;  // of live blocks, by number; 0 for others
  std::size_t live = 0;
  std::string line;
  std::getline(input, line);
  if (line != "op,id,bytes,stream") fail("line 1 is not \"op,id,bytes,stream\"");
  for (std::size_t number = 2; std::getline(input, line); ++number) {
    Event event{};
    int end = 0;
    event.allocates = std::sscanf(line.c_str(), "a,%zu,%zu,%zu%n", &event.block, &event.size, &event.stream, &end) == 3;
    if (!event.allocates) std::sscanf(line.c_str(), "f,%zu,,%zu%n", &event.block, &event.stream, &end);
    if (end == 0 || line.size() != static_cast<std::size_t>(end) || (event.allocates && event.size == 0))
      fail("line " + std::to_string(number) + " is neither a,BLOCK,BYTES,STREAM nor f,BLOCK,,STREAM: " + line);
    run.blocks = std::max(run.blocks, event.block + 1);
    run.streams = std::max(run.streams, event.stream + 1);
    sizes.resize(run.blocks);
    if ((sizes[event.block] == 0) != event.allocates)
      fail("line " + std::to_string(number) + ": block " + std::to_string(event.block) +
           (event.allocates ? " is live already" : " is not live"));
    if (event.allocates) {
      sizes[event.block] = event.size;
      live += event.size;
      run.peak = std::max(run.peak, live);
    } else {
      event.size = std::exchange(sizes[event.block], 0);
      live -= event.size;
    }
    run.events.push_back(event);
  }
  if (run.peak == 0) fail("the run is empty");
  return run;
}

// Above this, an allocation may have called the driver, and the driver is asked how much memory is in use. Asking
// takes longer than most allocations, so it is not done after each, and never while the clock runs.
constexpr std::int64_t MAY_HAVE_GROWN_NS = 3000;

void replay(const Allocator &allocator, const Run &run, int passes) {
  std::vector<cudaStream_t> streams(run.streams);
  for (auto &stream : streams) stream = make_stream();
  struct Block {
    void *address = nullptr;
    ssize_t size = 0;
  };
  std::vector<Block> blocks(run.blocks);
  std::vector<std::int64_t> times(run.events.size());
  const std::int64_t before = used_bytes();
  std::int64_t taken = 0;
  for (int pass = 1; pass <= passes; ++pass) {
    std::size_t failures = 0;
    for (std::size_t at = 0; at < run.events.size(); ++at) {
      const Event &event = run.events[at];
      auto &[address, size] = blocks[event.block];
      size = static_cast<ssize_t>(event.size);
      const auto begin = Clock::now();
      if (event.allocates)
        address = allocator.allocate(size, DEVICE, streams[event.stream]);
      else if (address)
        allocator.free(std::exchange(address, nullptr), size, DEVICE, streams[event.stream]);
      times[at] = nanoseconds_since(begin);
      if (!event.allocates) continue;
      if (!address) ++failures;
      if (times[at] > MAY_HAVE_GROWN_NS) taken = std::max(taken, used_bytes() - before);
    }
    taken = std::max(taken, used_bytes() - before);
    // What lives to the end is freed on the first stream, as by a main thread that has joined the others. It belongs to
    // no pass.
    for (auto &[address, size] : blocks)
      if (address) allocator.free(std::exchange(address, nullptr), size, DEVICE, streams[0]);

    double sum = 0;
    for (const auto time : times) sum += static_cast<double>(time);
    std::sort(times.begin(), times.end());
    const auto quantile = [&](double part) {
      return static_cast<long long>(times[static_cast<std::size_t>(part * static_cast<double>(times.size() - 1))]);
    };
    std::printf("{\"workload\": \"replay\", \"pass\": %d, \"operations\": %zu, \"asked_bytes\": %zu, \"taken_bytes\": %lld, "
                "\"ratio\": %.4f, \"mean_ns\": %.1f, \"p50_ns\": %lld, \"p99_ns\": %lld, \"p999_ns\": %lld, "
                "\"max_ns\": %lld, \"failures\": %zu}\n",
                pass, times.size(), run.peak, static_cast<long long>(taken),
                static_cast<double>(taken) / static_cast<double>(run.peak), sum / static_cast<double>(times.size()),
                quantile(0.5), quantile(0.99), quantile(0.999), quantile(1.0), failures);
  }
}

// Runs `work` once to warm up and five times by the clock, and prints the median.
void measure(const char *name, std::size_t operations, const std::function<void()> &work) {
  work();
  std::array<double, 5> rounds;
  for (auto &round : rounds) {
    const auto begin = Clock::now();
    work();
    round = static_cast<double>(nanoseconds_since(begin)) / static_cast<double>(operations);
  }
  std::sort(rounds.begin(), rounds.end());
  std::printf("{\"workload\": \"%s\", \"mean_ns\": %.1f, \"min_ns\": %.1f, \"max_ns\": %.1f}\n", name,
              rounds[rounds.size() / 2], rounds.front(), rounds.back());
}

void *need(void *block) {
  if (!block) fail("the allocator returned null");
  return block;
}

constexpr ssize_t KIB = 1 << 10;
constexpr ssize_t MIB = 1 << 20;

// A pair counts as one operation.
void pairs(const Allocator &allocator, std::size_t count, ssize_t size, cudaStream_t stream) {
  for (std::size_t pair = 0; pair < count; ++pair)
    allocator.free(need(allocator.allocate(size, DEVICE, stream)), size, DEVICE, stream);
}

void hold_and_free(const Allocator &allocator, cudaStream_t stream) {
  std::vector<void *> blocks(1000);
  measure("hold 1000", 2 * blocks.size(), [&] {
    for (auto &block : blocks) block = need(allocator.allocate(64 * KIB, DEVICE, stream));
    for (auto &block : blocks) allocator.free(block, 64 * KIB, DEVICE, stream);
  });
}

// Each step frees the block in a place and puts another there, of a size whose logarithm is uniform.
void random_sizes(const Allocator &allocator, cudaStream_t stream) {
  struct Step {
    std::size_t place;
    ssize_t size;
  };
  std::array<std::pair<void *, ssize_t>, 512> live{};
  std::mt19937_64 random(1);
  std::uniform_int_distribution<std::size_t> place(0, live.size() - 1);
  std::uniform_real_distribution<double> exponent(8, 23);
  std::vector<Step> steps(20000);
  for (auto &step : steps) step = {place(random), static_cast<ssize_t>(std::exp2(exponent(random)))};
  // The warm-up fills the places, so that every measured step is a free and an allocation.
  measure("random sizes", 2 * steps.size(), [&] {
    for (const auto &step : steps) {
      auto &[block, size] = live[step.place];
      if (block) allocator.free(block, size, DEVICE, stream);
      size = step.size;
      block = need(allocator.allocate(size, DEVICE, stream));
    }
  });
  for (const auto &[block, size] : live)
    if (block) allocator.free(block, size, DEVICE, stream);
}

// Wall time over all pairs: threads that do not hinder each other divide it by their number.
void pairs_on_threads(const Allocator &allocator) {
  constexpr std::size_t PAIRS = 20000;
  std::array<cudaStream_t, 16> streams;
  for (auto &stream : streams) stream = make_stream();
  measure("16 threads", PAIRS * streams.size(), [&] {
    std::vector<std::thread> threads;
    for (const auto stream : streams)
      threads.emplace_back([&allocator, stream] {
        check(cudaSetDevice(DEVICE), "cudaSetDevice");
        pairs(allocator, PAIRS, 64 * KIB, stream);
      });
    for (auto &thread : threads) thread.join();
  });
}

void small_workloads(const Allocator &allocator) {
  const auto stream = make_stream();
  measure("pair 512 B", 20000, [&] { pairs(allocator, 20000, 512, stream); });
  measure("pair 1 MiB", 20000, [&] { pairs(allocator, 20000, MIB, stream); });
  measure("pair 256 MiB", 2000, [&] { pairs(allocator, 2000, 256 * MIB, stream); });
  hold_and_free(allocator, stream);
  random_sizes(allocator, stream);
  pairs_on_threads(allocator);
}

int main(int count, char **words) {
  const std::string mode = count > 2 ? words[2] : "";
  if (!(mode == "replay" && count == 4) && !(mode == "pairs" && count == 3))
    fail("usage: peers LIBRARY:ALLOCATE:FREE replay PASSES < RUN.csv, or peers LIBRARY:ALLOCATE:FREE pairs");
  const Allocator allocator = load(words[1]);
  check(cudaSetDevice(DEVICE), "cudaSetDevice");
  check(cudaFree(nullptr), "cudaFree");  // makes the context, which is not the allocator's memory
  if (mode == "replay")
    replay(allocator, read_run(std::cin), std::atoi(words[3]));
  else
    small_workloads(allocator);
  std::fflush(stdout);
  // How allocators tear down is not measured, and some take long over it.
  std::_Exit(0);
}
