// The allocator for Thrust and CUB, with Thrust's own headers. Its device backend is that of the host: a compiler of
// CUDA is not needed.

#define THRUST_DEVICE_SYSTEM THRUST_DEVICE_SYSTEM_CPP

#include <forebay.hpp>

#include <thrust/device_ptr.h>
#include <thrust/device_vector.h>
#include <thrust/host_vector.h>
#include <thrust/reduce.h>
#include <thrust/sequence.h>
#include <thrust/sort.h>
#include <thrust/system/cpp/execution_policy.h>

#include "expect.hpp"

namespace {

template <typename T>
using allocator = forebay::stream_allocator<T, thrust::device_ptr<T>>;

// Values live in the pool, and go back to it.
void vectors(const forebay::pool &pool, const forebay::stream &stream) {
    const allocator<int> in_order{pool, stream};
    {
        thrust::device_vector<int, allocator<int>> values(1000, 0, in_order);
        EXPECT(pool.statistics().blocks == 1);
        EXPECT(pool.query(thrust::raw_pointer_cast(values.data())).requested_bytes == 4000);
        thrust::sequence(values.begin(), values.end());
        EXPECT(thrust::reduce(values.begin(), values.end()) == 999 * 500);
        thrust::device_vector<int, allocator<int>> moved = std::move(values);
        moved.resize(5000, 1);
        EXPECT(pool.statistics().blocks == 1);
        const thrust::host_vector<int> back(moved.begin(), moved.end());
        EXPECT(back[999] == 999 && back[4999] == 1);
    }
    EXPECT(pool.statistics().blocks == 0);
}

// Counts what an algorithm allocates for itself.
struct counting : forebay::stream_allocator<> {
    using forebay::stream_allocator<>::stream_allocator;
    int calls = 0;

    char *allocate(std::size_t bytes) {
        calls++;
        return forebay::stream_allocator<>::allocate(bytes);
    }
};

void temporary_memory(const forebay::pool &pool, const forebay::stream &stream) {
    counting temporary{pool, stream};
    thrust::device_vector<int, allocator<int>> keys(10000, 0, allocator<int>{pool, stream});
    thrust::sequence(keys.begin(), keys.end(), 10000, -1);
    thrust::stable_sort(thrust::cpp::par(temporary), keys.begin(), keys.end());
    EXPECT(keys[0] == 1 && keys[9999] == 10000);
    EXPECT(temporary.calls > 0 && pool.statistics().blocks == 1);
}

} // namespace

int main(int count, char **words) {
    const forebay::device device{count > 1 ? words[1] : "host"};
    if (!device.can(FOREBAY_CAN_HOST_VISIBLE)) {
        return 0; // The host's backend follows the pointers.
    }
    const forebay::pool pool{device, "max_bytes:64MiB"};
    const forebay::stream stream{device};
    vectors(pool, stream);
    temporary_memory(pool, stream);
    bool refused = false;
    try {
        const thrust::device_vector<char, allocator<char>> huge(std::size_t{1} << 40, allocator<char>{pool, stream});
    } catch (const std::bad_alloc &error) {
        refused = std::string(error.what()).find("out of memory") != std::string::npos;
    }
    EXPECT(refused && pool.statistics().blocks == 0);
    return 0;
}
