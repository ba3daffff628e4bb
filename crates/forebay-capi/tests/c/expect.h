/* What the test programs share: an expectation that is not met says where and why, and ends the program. */

#ifndef EXPECT_H
#define EXPECT_H

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <forebay.h>

#define EXPECT(holds)                                                                                         \
    do {                                                                                                      \
        if (!(holds)) {                                                                                       \
            fprintf(stderr, "%s:%d: %s does not hold; last error: %s\n", __FILE__, __LINE__, #holds,          \
                    forebay_last_error());                                                                    \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

/* A call that comes to a status. */
#define EXPECT_STATUS(call, wanted)                                                                           \
    do {                                                                                                      \
        const forebay_status expect_got = (call);                                                             \
        if (expect_got != (wanted)) {                                                                         \
            fprintf(stderr, "%s:%d: %s came to %s, not %s; last error: %s\n", __FILE__, __LINE__, #call,      \
                    forebay_status_name((int32_t)expect_got), forebay_status_name((int32_t)(wanted)),         \
                    forebay_last_error());                                                                    \
            exit(1);                                                                                          \
        }                                                                                                     \
    } while (0)

/* A call that goes well. */
#define OK(call) EXPECT_STATUS(call, FOREBAY_STATUS_OK)

/* A call that is refused, with words that have this in them. */
#define REFUSED(call, status, words)                                                                          \
    do {                                                                                                      \
        EXPECT_STATUS(call, status);                                                                          \
        EXPECT(strstr(forebay_last_error(), words) != NULL);                                                  \
    } while (0)

/* The device the program is to run on: its first argument. */
static inline forebay_device device_of(int count, char **words) {
    forebay_device device = {0};
    OK(forebay_check());
    OK(forebay_device_open(count > 1 ? words[1] : "host", &device));
    return device;
}

#endif
