// The transfers of forebay.hpp: they go there and back, wait when they go, move, and are told when they are used wrongly.

#include <forebay.hpp>

#include <numeric>
#include <thread>

#include "expect.hpp"

namespace {

// More than one piece, and not a whole number of them.
constexpr std::size_t count = (9u << 20) / sizeof(int) + 13;

std::vector<int> numbers(int first) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

void there_and_back(const forebay::pool &pool, const forebay::stream &stream) {
    const forebay::buffer<int> buffer{pool, count, stream};
    buffer.upload(numbers(1));
    EXPECT(buffer.download() == numbers(1));
    std::vector<int> part(100);
    buffer.download(part.data(), part.size(), 1);
    EXPECT(part[99] == 100);

    std::vector<int> values = numbers(2);
    forebay::transfer up = buffer.upload_async(values, -1);
    up.wait();
    EXPECT(up && up.done() && !up.cancel() && up.progress().first == buffer.bytes() &&
           up.progress().second == buffer.bytes());

    // What is moved from is none; one that is replaced ends as at its destructor.
    forebay::transfer moved = std::move(up);
    EXPECT(!up && thrown_by([&] { up.wait(); }) == FOREBAY_STATUS_INVALID_HANDLE); // NOLINT
    moved = buffer.upload_async(values);
    moved.order();
    values.assign(count, 0);
    moved.close();
    EXPECT(!moved && thrown_by([&] { moved.close(); }) == FOREBAY_STATUS_INVALID_HANDLE);
    EXPECT(buffer.download() == numbers(2));
}

void it_is_cancelled_when_it_goes(const forebay::pool &pool, const forebay::stream &stream) {
    const forebay::buffer<int> buffer{pool, count, stream};
    for (int round = 0; round < 10; round++) {
        std::vector<int> values = numbers(round), back(count);
        buffer.upload_async(values).order();
        values.assign(count, -1);
        buffer.download_async(back.data(), back.size()).wait();
        EXPECT(back == numbers(round));
        static_cast<void>(buffer.upload_async(values));
        values.assign(count, -2);
        buffer.download(back.data(), back.size());
        const std::vector<int> before = numbers(round);
        for (std::size_t index = 0; index < count; index++) {
            EXPECT(back[index] == -1 || back[index] == before[index]);
        }
    }
}

void wrong_use(const forebay::pool &pool) {
    const forebay::buffer<int> buffer{pool, 10};
    int one = 0;
    for (const auto &refused : {std::size_t{11}, SIZE_MAX}) {
        bool thrown = false;
        try {
            static_cast<void>(buffer.upload_async(&one, refused));
        } catch (const std::out_of_range &) {
            thrown = true;
        }
        EXPECT(thrown);
    }
    EXPECT(thrown_by([&] { buffer.upload(nullptr, 1); }) == FOREBAY_STATUS_INVALID_ARGUMENT);
    EXPECT(thrown_by([&] { forebay::transfer().wait(); }) == FOREBAY_STATUS_INVALID_HANDLE);
}

void cancelled_by_another_thread(const forebay::pool &pool, const forebay::stream &stream) {
    const std::vector<int> values = numbers(3);
    const forebay::buffer<int> buffer{pool, count, stream};
    for (int round = 0; round < 10; round++) {
        forebay::transfer up = buffer.upload_async(values);
        bool cancelled = false;
        std::thread other([&] { cancelled = up.cancel(); });
        const forebay_status outcome = thrown_by([&] { up.wait(); });
        other.join();
        EXPECT(outcome == (cancelled ? FOREBAY_STATUS_CANCELLED : FOREBAY_STATUS_OK));
        EXPECT(thrown_by([&] { up.close(); }) == outcome);
    }
}

} // namespace

int main(int words, char **word) {
    const forebay::device device{words > 1 ? word[1] : "host"};
    const forebay::pool pool{device};
    {
        const forebay::stream stream{device};
        there_and_back(pool, stream);
        it_is_cancelled_when_it_goes(pool, stream);
        cancelled_by_another_thread(pool, stream);
    }
    wrong_use(pool);
    EXPECT(pool.statistics().blocks == 0);
    return 0;
}
