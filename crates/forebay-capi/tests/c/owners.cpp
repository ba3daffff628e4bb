// The owners of forebay.hpp: what they own goes with them, moves, and is told when it is used wrongly.

#include <forebay.hpp>

#include <unistd.h>

#include <algorithm>
#include <numeric>
#include <string>
#include <thread>

#include "expect.hpp"

namespace {

void buffers(const forebay::pool &pool, const forebay::stream &stream) {
    std::vector<int> values(1000);
    std::iota(values.begin(), values.end(), 7);
    forebay::buffer<int> one{pool, values.size(), stream};
    one.copy_from(values);
    EXPECT(one.to_vector() == values);
    EXPECT(one.size() == 1000 && one.bytes() == 4000 && !one.empty());
    EXPECT(pool.query(one.data()).requested_bytes == 4000);

    forebay::buffer<int> two = std::move(one);
    EXPECT(one.data() == nullptr && one.size() == 0); // NOLINT: what is moved from is empty
    EXPECT(two.to_vector() == values);
    forebay::buffer<int> three;
    three = std::move(two);
    three.fill_bytes(0xFF);
    EXPECT(three.to_vector() == std::vector<int>(1000, -1));
    EXPECT(pool.statistics().blocks == 1);
    three = forebay::buffer<int>{pool, 10, stream};
    EXPECT(pool.statistics().blocks == 1);

    bool refused = false;
    try {
        three.copy_from(values);
    } catch (const std::out_of_range &) {
        refused = true;
    }
    EXPECT(refused);
    three.free();
    three.free();
    EXPECT(pool.statistics().blocks == 0);

    refused = false;
    try {
        const forebay::buffer<double> huge{pool, SIZE_MAX / 2};
    } catch (const std::bad_array_new_length &) {
        refused = true;
    }
    EXPECT(refused);
    refused = false;
    try {
        const forebay::buffer<char> huge{pool, SIZE_MAX / 4};
    } catch (const forebay::out_of_memory &error) {
        refused = error.code() == FOREBAY_STATUS_OUT_OF_MEMORY;
    }
    EXPECT(refused);

    const forebay::buffer<float> nothing{pool, 0};
    EXPECT(nothing.empty() && nothing.data() == nullptr && nothing.to_vector().empty());
}

// A buffer whose stream went first is freed all the same, by free() and by its end.
void buffers_outlive_streams(const forebay::device &device, const forebay::pool &pool) {
    forebay::buffer<int> freed, ended;
    {
        const forebay::stream gone{device};
        freed = forebay::buffer<int>{pool, 1 << 20, gone};
        ended = forebay::buffer<int>{pool, 1 << 20, gone};
        freed.fill_bytes(1);
        ended.fill_bytes(2);
    }
    EXPECT(thrown_by([&] { ended.fill_bytes(3); }) == FOREBAY_STATUS_INVALID_HANDLE);
    EXPECT(pool.statistics().blocks == 2);
    freed.free();
    EXPECT(freed.data() == nullptr && freed.empty() && pool.statistics().blocks == 1);
    {
        const forebay::buffer<int> moved = std::move(ended);
    }
    EXPECT(pool.statistics().blocks == 0 && pool.statistics().live_bytes == 0);
    pool.free_synchronized(nullptr);
    void *block = pool.alloc(512);
    pool.free_synchronized(block);
    EXPECT(thrown_by([&] { pool.free_synchronized(block); }) == FOREBAY_STATUS_DOUBLE_FREE);
}

// A free that is refused leaves the buffer what it was, to be tried again.
void frees_are_tried_again(const forebay::device &device, const forebay::pool &pool) {
    const forebay::device elsewhere{"sim:1"};
    const forebay::stream foreign{elsewhere}, other{device};
    forebay::buffer<int> kept{pool, 100, other};
    kept.fill_bytes(7);
    for (int round = 0; round < 2; round++) {
        EXPECT(thrown_by([&] { kept.free(foreign); }) == FOREBAY_STATUS_WRONG_DEVICE);
        EXPECT(kept.data() != nullptr && kept.size() == 100 && pool.statistics().blocks == 1);
    }
    EXPECT(kept.to_vector() == std::vector<int>(100, 0x07070707));
    kept.free(other);
    EXPECT(kept.data() == nullptr && kept.empty() && pool.statistics().blocks == 0);
    kept.free(foreign);

    // What another freed is nobody's to free again: its address may be the next block's.
    forebay::buffer<int> robbed{pool, 100, other};
    void *address = robbed.data();
    pool.free(address, other);
    EXPECT(thrown_by([&] { robbed.free(); }) == FOREBAY_STATUS_DOUBLE_FREE);
    void *next = pool.alloc(400, other);
    EXPECT(next == address && robbed.data() == nullptr);
    robbed.free();
    EXPECT(pool.statistics().blocks == 1);
    pool.free(next, other);
}

void blocks(const forebay::pool &pool, const forebay::stream &stream) {
    void *block = pool.alloc(4096);
    pool.record_use(block, stream);
    pool.free(block);
    EXPECT(thrown_by([&] { pool.free(block); }) == FOREBAY_STATUS_DOUBLE_FREE);
    void *aligned = pool.alloc_aligned(10, 4096, stream);
    EXPECT(reinterpret_cast<std::uintptr_t>(aligned) % 4096 == 0);
    pool.free_sized(aligned, 10, stream);
    for (void *each : pool.alloc_batch({512, 1024, 1 << 20}, stream)) {
        pool.free(each, stream);
    }
    stream.synchronize();
    EXPECT(stream.done());
    pool.process_deferred();
    EXPECT(pool.statistics().blocks == 0);
    EXPECT(pool.warm_up({{1 << 20, 3}, {512, 5}}).complete == 1);
    EXPECT(pool.limit() == 64 << 20 && pool.setting("max_bytes") == "64MiB");
    pool.set("max_bytes", "128MiB");
    EXPECT(pool.limit() == 128 << 20 && pool.pressure() == FOREBAY_PRESSURE_LOW);
    EXPECT(pool.snapshot().rfind("{\"schema\":\"forebay.pool.v1\"", 0) == 0 && !pool.summary().empty());
    pool.defragment();
    pool.collect(1000);
    pool.trim(1 << 20);
    pool.empty_cache();
    EXPECT(pool.statistics().held_bytes == 0);
}

void arenas(const forebay::pool &pool) {
    const forebay::arena arena{pool, 1 << 20};
    const auto start = arena.checkpoint();
    const auto *first = arena.alloc_of<double>(100);
    {
        const forebay::arena_scope scope{arena};
        arena.alloc(4096, 4096);
        EXPECT(arena.usage().used_bytes >= 4896);
    }
    EXPECT(arena.usage().used_bytes == 800);
    arena.rewind(start);
    EXPECT(arena.alloc_of<double>(100) == first);
    EXPECT(thrown_by([&] { arena.alloc(2 << 20); }) == FOREBAY_STATUS_FULL);
    arena.reset();
    EXPECT(thrown_by([&] { arena.rewind(start); }) == FOREBAY_STATUS_LAPSED);
}

// Out of memory is a std::bad_alloc, other failures are std::runtime_errors, and all are std::exceptions.
void classes_of_errors(const forebay::pool &pool) {
    const auto huge = [&] { pool.alloc(std::uint64_t{1} << 40); };
    const auto wrong = [&] { pool.set("no such", "1"); };
    EXPECT(thrown_by(huge) == FOREBAY_STATUS_OUT_OF_MEMORY);
    EXPECT(thrown_by(wrong) == FOREBAY_STATUS_CONFIG);
    std::string caught;
    for (int round = 0; round < 2; round++) {
        try {
            round == 0 ? huge() : wrong();
        } catch (const std::bad_alloc &error) {
            EXPECT(std::string(error.what()).find("the pool holds") != std::string::npos);
            caught += "bad_alloc ";
        } catch (const std::runtime_error &error) {
            EXPECT(std::string(error.what()).find("no such") != std::string::npos);
            caught += "runtime_error ";
        }
        try {
            round == 0 ? huge() : wrong();
        } catch (const std::exception &) {
            caught += "exception ";
        }
    }
    EXPECT(caught == "bad_alloc exception runtime_error exception ");
}

// Containers of the standard library, where the host can use the memory.
void standard_containers(const forebay::device &device, const forebay::pool &pool, const forebay::stream &stream) {
    if (!device.can(FOREBAY_CAN_HOST_VISIBLE)) {
        EXPECT(thrown_by([&] { forebay::memory_resource{pool}; }) == FOREBAY_STATUS_UNSUPPORTED);
        return;
    }
    forebay::memory_resource resource{pool, stream};
    {
        std::pmr::vector<std::pmr::string> words(&resource);
        for (int number = 0; number < 100; number++) {
            words.emplace_back("a word that is too long to be kept inside the string: " + std::to_string(number));
        }
        EXPECT(words.back().back() == '9' && pool.statistics().blocks == 101);
    }
    EXPECT(pool.statistics().blocks == 0);
    void *none = resource.allocate(0, 1), *aligned = resource.allocate(100, 4096);
    EXPECT(none != nullptr && reinterpret_cast<std::uintptr_t>(aligned) % 4096 == 0);
    resource.deallocate(none, 0, 1);
    resource.deallocate(aligned, 100, 4096);
    EXPECT(pool.statistics().blocks == 0);
    EXPECT(resource.is_equal(forebay::memory_resource{pool, stream}));
    EXPECT(!resource.is_equal(forebay::memory_resource{pool}));
    bool refused = false;
    try {
        const std::pmr::vector<char> huge(std::size_t{1} << 40, &resource);
    } catch (const std::bad_alloc &) {
        refused = true;
    }
    EXPECT(refused);

    // The host waits for work on memory that it gets: this byte is written once the fill is done.
    void *before = pool.alloc(8 << 20, stream);
    forebay::check(forebay_fill(pool.device_handle(), before, 8 << 20, 0xAA, 1, stream.get()));
    pool.free(before, stream);
    auto *bytes = static_cast<unsigned char *>(resource.allocate(8 << 20));
    EXPECT(bytes == before && bytes[(8 << 20) - 1] == 0xAA);
    resource.deallocate(bytes, 8 << 20);
}

// The protocol that Thrust and CUB use for their temporary memory.
void temporary_memory(const forebay::pool &pool, const forebay::stream &stream) {
    forebay::stream_allocator<> temporary{pool, stream};
    static_assert(std::is_same_v<decltype(temporary)::value_type, char>);
    char *block = temporary.allocate(1000);
    EXPECT(pool.query(block).requested_bytes == 1000);
    temporary.deallocate(block, 1000);
    EXPECT(temporary.allocate(1000) == block);
    temporary.deallocate(block, 1000);
    temporary.deallocate(nullptr, 0);
    EXPECT(pool.statistics().blocks == 0);
    const std::allocator_traits<decltype(temporary)>::rebind_alloc<double> doubles{temporary};
    EXPECT(doubles == temporary && temporary != forebay::stream_allocator<>{pool});
    bool refused = false;
    try {
        forebay::stream_allocator<double>{pool}.allocate(SIZE_MAX / 2);
    } catch (const std::bad_array_new_length &) {
        refused = true;
    }
    EXPECT(refused);
}

// A stream that was moved from or closed is none, and not the default stream: its work would go to another order.
void no_stream(const forebay::device &device, const forebay::pool &pool) {
    forebay::stream from{device};
    forebay::stream to = std::move(from);
    EXPECT(to.raw() != nullptr);
    const auto refused = [&](const forebay::stream &none) {
        EXPECT(thrown_by([&] { none.raw(); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(std::string(forebay_last_error()).find("there is no stream") == 0);
        EXPECT(thrown_by([&] { none.done(); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { none.synchronize(); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { pool.alloc(512, none); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { forebay::buffer<int>(pool, 10, none); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { forebay::arena(pool, 4096, 0, none); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { forebay::stream_allocator<>{pool, none}.allocate(1); }) ==
               FOREBAY_STATUS_INVALID_HANDLE);
        void *block = pool.alloc(512);
        EXPECT(thrown_by([&] { pool.free(block, none); }) == FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(thrown_by([&] { pool.record_use(block, none); }) == FOREBAY_STATUS_INVALID_HANDLE);
        pool.free(block);
    };
    refused(from); // NOLINT
    EXPECT(thrown_by([&] { from.close(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    to.close();
    refused(to);
    EXPECT(thrown_by([&] { to.close(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    // Assigned again, it is one.
    from = forebay::stream{device};
    EXPECT(from.raw() != nullptr);
    // The default stream has no owner to lose it: a copy of it is moved.
    forebay::stream standard;
    EXPECT(thrown_by([&] { standard.close(); }) == FOREBAY_STATUS_INVALID_HANDLE && standard.raw() == nullptr);
    const forebay::stream moved = std::move(standard);
    EXPECT(moved.raw() == nullptr && thrown_by([&] { standard.raw(); }) == FOREBAY_STATUS_INVALID_HANDLE); // NOLINT
}

// A manager that was moved from or closed lists nothing, and not the buffers of the whole process.
void no_memory(const forebay::device &device) {
    forebay::buffer_manager from{device};
    const forebay::unified_buffer<int> live{from, 100};
    forebay::buffer_manager to = std::move(from);
    EXPECT(to.live_buffers().find("400") != std::string::npos);
    EXPECT(thrown_by([&] { from.live_buffers(); }) == FOREBAY_STATUS_INVALID_HANDLE); // NOLINT
    EXPECT(thrown_by([&] { forebay::buffer_manager{}.live_buffers(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    to.close();
    EXPECT(thrown_by([&] { to.live_buffers(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    EXPECT(thrown_by([&] { to.totals(); }) == FOREBAY_STATUS_INVALID_HANDLE);
}

void wrong_use(const forebay::device &device) {
    forebay::pool none;
    EXPECT(!none && thrown_by([&] { none.alloc(1); }) == FOREBAY_STATUS_INVALID_HANDLE);
    forebay::pool pool{device};
    forebay::pool moved = std::move(pool);
    EXPECT(thrown_by([&] { pool.alloc(1); }) == FOREBAY_STATUS_INVALID_HANDLE); // NOLINT
    forebay::buffer<char> orphan{moved, 100};
    EXPECT(moved.close() == 1);
    EXPECT(thrown_by([&] { moved.close(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    EXPECT(thrown_by([&] { orphan.record_use(forebay::stream{device}); }) == FOREBAY_STATUS_INVALID_HANDLE);
    EXPECT(thrown_by([] { forebay::device{"no such"}; }) == FOREBAY_STATUS_INVALID_ARGUMENT);
    EXPECT(thrown_by([&] { forebay::pool{device, "max_bytes:x"}; }) == FOREBAY_STATUS_CONFIG);
}

// Host and device sides of one buffer; views that refuse what conflicts with them, and that outlive their buffer.
void unified(const forebay::device &device, const forebay::pool &pool, const forebay::stream &stream) {
    const forebay::buffer_manager own{device}, over{pool};
    for (const forebay::buffer_manager *memory : {&own, &over}) {
        forebay::unified_buffer<float> x{*memory, 1000};
        EXPECT(x.state() == FOREBAY_BUFFER_STATE_UNINITIALIZED && x.size() == 1000);
        {
            const forebay::host_view<float> view = x.host_mut();
            view[7] = 2.5F;
            EXPECT(thrown_by([&] { x.on_device(stream); }) == FOREBAY_STATUS_BUSY);
            EXPECT(thrown_by([&] { x.host(); }) == FOREBAY_STATUS_BUSY);
            EXPECT(thrown_by([&] { x.resize(1); }) == FOREBAY_STATUS_BUSY);
        }
        float *there = x.on_device_mut(stream);
        forebay::check(forebay_fill(device.get(), there, 4, 0, 1, stream.get()));
        EXPECT(x.host()[7] == 2.5F && x.host(7, 1)[0] == 2.5F);
        forebay::host_view<const float> one = x.host();
        const forebay::host_view<const float> two = x.host();
        EXPECT(one.data() == two.data() && x.on_device(stream) != nullptr);
        EXPECT(thrown_by([&] { x.on_device_mut(stream); }) == FOREBAY_STATUS_BUSY);
        EXPECT(thrown_by([&] { x.host(1000, 1); }) == FOREBAY_STATUS_INVALID_ARGUMENT);
        one.release();
        one.release();
        forebay::unified_buffer<float> y{*memory, std::vector<float>(1000, 1.0F)};
        y.copy_from(x, stream);
        EXPECT(y.to_vector()[7] == 2.5F);
        y.fill(3.0F);
        y.resize(1001);
        EXPECT(y.host()[999] == 3.0F && y.host()[1000] == 0.0F && y.size() == 1001);
        EXPECT(memory->totals().buffers == 2 && memory->live_buffers().find("4000") != std::string::npos);
        // A view keeps the memory of a buffer that is gone.
        forebay::host_view<float> last = y.host_mut();
        y = forebay::unified_buffer<float>{};
        last[0] = 4.0F;
        EXPECT(memory->totals().buffers == 2);
        last = x.host_mut(0, 0);
        EXPECT(memory->totals().buffers == 1);
        EXPECT(thrown_by([&] { y.host(); }) == FOREBAY_STATUS_INVALID_HANDLE);
        forebay::unified_buffer<float> moved = std::move(x);
        EXPECT(moved.size() == 1000 && x.empty()); // NOLINT
    }
    EXPECT(own.totals().buffers == 0 && own.totals().created == 2);
}

struct sample {
    std::int32_t where;
    float value;
};

void shared(const forebay::device &device) {
    const forebay::buffer_manager memory{device};
    const std::string name = "owners-" + std::to_string(getpid());
    forebay::shared_buffer<std::uint32_t> created = forebay::shared_buffer<std::uint32_t>::create(memory, name, 100);
    const auto opened = forebay::shared_buffer<std::uint32_t>::open(memory, name);
    const auto same = forebay::shared_buffer<std::uint32_t>::create_or_open(memory, name, 100);
    created.write({7, 8}, 10);
    EXPECT(opened.size() == 100 && opened.read(9, 3) == (std::vector<std::uint32_t>{0, 7, 8}));
    EXPECT(std::string(same.info().type_name) == "u32" && same.to_vector()[11] == 8 && same.data() != nullptr);
    EXPECT(thrown_by([&] { forebay::shared_buffer<float>::open(memory, name); }) == FOREBAY_STATUS_WRONG_TYPE);
    EXPECT(thrown_by([&] { forebay::shared_buffer<int>::create(memory, name, 1); }) == FOREBAY_STATUS_NAME_TAKEN);
    EXPECT(thrown_by([&] { opened.read(100, 1); }) == FOREBAY_STATUS_INVALID_ARGUMENT);
    EXPECT(thrown_by([&] { created.write({1, 2}, 99); }) == FOREBAY_STATUS_INVALID_ARGUMENT);
    {
        const forebay::shared_lock held = created.lock();
        EXPECT(thrown_by([&] { opened.lock(std::chrono::milliseconds(0)); }) != FOREBAY_STATUS_OK);
        std::thread([&] {
            EXPECT(thrown_by([&] { opened.lock(std::chrono::milliseconds(1)); }) == FOREBAY_STATUS_TIMED_OUT);
        }).join();
    }
    forebay::shared_lock first = opened.lock(std::chrono::milliseconds(0));
    forebay::shared_lock moved = std::move(first);
    moved.release();
    moved.release();
    void *reached = nullptr;
    if (forebay_shared_host_address(created.get(), &reached) == FOREBAY_STATUS_OK) {
        // A view keeps the memory of a buffer that is gone, and its lock.
        forebay::shared_view<std::uint32_t> view = created.host();
        created = forebay::shared_buffer<std::uint32_t>{};
        view[10] = 9;
        EXPECT(view.size() == 100 && opened.read(10, 1)[0] == 9);
        std::thread([&] {
            EXPECT(thrown_by([&] { opened.host(std::chrono::milliseconds(1)); }) == FOREBAY_STATUS_TIMED_OUT);
        }).join();
    } else {
        EXPECT(thrown_by([&] { created.host(); }) == FOREBAY_STATUS_UNSUPPORTED);
    }
    opened.lock(std::chrono::milliseconds(0));
    EXPECT(thrown_by([] { forebay::shared_buffer<int>{}.lock(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    const auto samples = forebay::shared_buffer<sample>::create(memory, name + "-samples", 3, "sample.v1");
    samples.write({{1, 0.5F}}, 2);
    EXPECT(samples.size() == 3 && samples.read(2, 1)[0].value == 0.5F);
}

void pinned(const forebay::device &device, const forebay::pool &pool, const forebay::stream &stream) {
    if (!device.can(FOREBAY_CAN_PINNED)) {
        return;
    }
    forebay::pinned_array<int> values{device, 100};
    std::fill(values.begin(), values.end(), 7);
    const forebay::buffer<int> there{pool, 100, stream};
    there.copy_from(values.data(), values.size());
    EXPECT(there.to_vector() == std::vector<int>(100, 7));
    const forebay::pinned_array<int> moved = std::move(values);
    EXPECT(moved[99] == 7 && values.empty() && values.data() == nullptr); // NOLINT
    EXPECT(thrown_by([] { forebay::pinned_array<int>{forebay::device{}, 1}; }) == FOREBAY_STATUS_INVALID_HANDLE);
}

} // namespace

int main(int count, char **words) {
    forebay::device device{count > 1 ? words[1] : "host"};
    EXPECT(device.can(FOREBAY_CAN_DATA) && !device.name().empty());
    const forebay::pool pool{device, "max_bytes:64MiB"};
    {
        forebay::stream stream{device, 1};
        buffers(pool, stream);
        blocks(pool, stream);
        classes_of_errors(pool);
        standard_containers(device, pool, stream);
        temporary_memory(pool, stream);
        unified(device, pool, stream);
        pinned(device, pool, stream);
        shared(device);
        EXPECT(stream.raw() != nullptr);
        stream.close();
    }
    buffers_outlive_streams(device, pool);
    frees_are_tried_again(device, pool);
    arenas(pool);
    no_stream(device, pool);
    no_memory(device);
    wrong_use(device);
    {
        const forebay::tag_scope tag{"a part"};
        const forebay::buffer<char> tagged{pool, 100};
        EXPECT(pool.snapshot().find("a part") != std::string::npos);
    }
    std::vector<std::thread> threads;
    for (int number = 0; number < 4; number++) {
        threads.emplace_back([&pool, &device] {
            const forebay::stream own{device};
            for (int round = 0; round < 500; round++) {
                const forebay::buffer<int> values{pool, 100, own};
                EXPECT(values.data() != nullptr);
            }
        });
    }
    for (auto &thread : threads) {
        thread.join();
    }
    EXPECT(pool.statistics().blocks == 0);
    // A pool of a device that nobody else has open.
    const forebay::pool last{forebay::device{"sim:3"}};
    forebay::buffer<char> bytes{last, 3};
    bytes.copy_from("ab", 3);
    EXPECT(bytes.to_vector() == std::vector<char>({'a', 'b', '\0'}));
    return 0;
}
