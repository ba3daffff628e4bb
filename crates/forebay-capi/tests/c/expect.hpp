// What the C++ test programs share: an expectation that is not met says where and why, and ends the program.

#ifndef EXPECT_HPP
#define EXPECT_HPP

#include <forebay.hpp>

#include <cstdio>
#include <cstdlib>

#define EXPECT(holds)                                                                                         \
    do {                                                                                                      \
        if (!(holds)) {                                                                                       \
            std::fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #holds,     \
                         forebay_last_error());                                                               \
            std::exit(1);                                                                                     \
        }                                                                                                     \
    } while (false)

// The code of what `work` throws.
template <typename Work>
forebay_status thrown_by(Work work) {
    try {
        work();
    } catch (const forebay::error &error) {
        EXPECT(error.what()[0] != '\0' && error.name()[0] == 'F');
        return error.code();
    }
    return FOREBAY_STATUS_OK;
}

#endif
