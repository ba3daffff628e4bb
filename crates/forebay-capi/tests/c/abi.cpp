// A header of another version than the library: the first call says so, with its words, on whichever thread it is made.

#include <forebay.h>
#undef FOREBAY_ABI_VERSION
#define FOREBAY_ABI_VERSION 77
#include <forebay.hpp>

#include <string>
#include <thread>

#include "expect.hpp"

namespace {

template <typename Work>
void mismatch(Work work) {
    std::string words;
    try {
        work();
    } catch (const forebay::error &error) {
        EXPECT(error.code() == FOREBAY_STATUS_ABI_MISMATCH);
        words = error.what();
    }
    EXPECT(words.find("version 77") != std::string::npos);
}

} // namespace

int main(int count, char **words) {
    const std::string name = count > 1 ? words[1] : "host";
    const auto open = [&] {
        mismatch([&] { forebay::device{name}; });
        mismatch([] { forebay::device::best(); });
    };
    std::thread(open).join();
    open();
    return 0;
}
