/* One hot pair again and again through the C edge, for an instruction counter to look at.
 *
 * hot_pair PAIRS WAY: WAY is "default" (on the default stream), "stream" (on a stream of its own), "sized", "pinned"
 * (pinned memory, after a pair of device memory), or "none" (the loop without the pair). "cargo xtask instructions" runs it under callgrind.
 */

#include "expect.h"

/* The loop that is measured: the same but for the pair. */
#define REPEAT(body)                                                                                          \
    for (unsigned long pair = 0; pair < pairs; pair++) {                                                      \
        void *block = NULL;                                                                                   \
        body;                                                                                                 \
        __asm__ volatile("" : : "r"(block) : "memory");                                                       \
    }

int main(int count, char **words) {
    const unsigned long pairs = count > 1 ? strtoul(words[1], NULL, 10) : 1000;
    const char *way = count > 2 ? words[2] : "default";
    enum { SIZE = 64 << 10 };
    forebay_device device = {0};
    forebay_pool pool = {0};
    forebay_stream stream = {0};
    /* Addresses alone: under valgrind there are too few for a pool to reserve. */
    OK(forebay_device_open("phantom", &device));
    OK(forebay_pool_create(device, NULL, &pool));
    if (strcmp(way, "stream") == 0) {
        OK(forebay_stream_create(device, 0, &stream));
    }
    /* The first two make the shelf and the bin. */
    for (int warm = 0; warm < 2; warm++) {
        void *block = NULL;
        OK(forebay_alloc(pool, SIZE, stream, &block));
        OK(forebay_free(pool, block, stream));
    }
    for (int warm = 0; warm < 2 && strcmp(way, "pinned") == 0; warm++) {
        void *memory = NULL;
        OK(forebay_pinned_alloc(device, SIZE, &memory));
        OK(forebay_pinned_free(device, memory));
    }
    if (strcmp(way, "none") == 0) {
        REPEAT((void)pool)
    } else if (strcmp(way, "pinned") == 0) {
        REPEAT(forebay_pinned_alloc(device, SIZE, &block); forebay_pinned_free(device, block))
    } else if (strcmp(way, "sized") == 0) {
        REPEAT(forebay_alloc(pool, SIZE, stream, &block); forebay_free_sized(pool, block, SIZE, stream))
    } else {
        REPEAT(forebay_alloc(pool, SIZE, stream, &block); forebay_free(pool, block, stream))
    }
    forebay_statistics figures = {.struct_size = sizeof figures};
    OK(forebay_pool_statistics(pool, &figures));
    EXPECT(figures.blocks == 0);
    return 0;
}
