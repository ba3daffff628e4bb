/* Many threads: on one pool with streams of their own, with blocks that change hands, on a pool that is closed while
 * they use it, and with errors of their own. */

#include <pthread.h>

#include "expect.h"

enum { THREADS = 4, ROUNDS = 2000 };

static const forebay_stream DEFAULT = {0};

static forebay_device device;
static forebay_pool pool;
static forebay_pool doomed;

/* Blocks on their way from one thread to another. */
static void *shelf[THREADS];
static pthread_mutex_t shelf_lock = PTHREAD_MUTEX_INITIALIZER;

static void *pairs(void *number) {
    forebay_stream stream = {0};
    OK(forebay_stream_create(device, 0, &stream));
    for (int round = 0; round < ROUNDS; round++) {
        void *block = NULL;
        const uint64_t size = 512u << ((uintptr_t)number + (unsigned)round % 5);
        OK(forebay_alloc(pool, size, stream, &block));
        EXPECT(block != NULL);
        if (round % 10 == 0) {
            /* Left for another thread, which frees what was left before. */
            pthread_mutex_lock(&shelf_lock);
            void *other = shelf[round % THREADS];
            shelf[round % THREADS] = block;
            pthread_mutex_unlock(&shelf_lock);
            block = other;
        }
        OK(forebay_free(pool, block, stream));
    }
    OK(forebay_stream_close(stream));
    return NULL;
}

/* Uses a pool until it is closed under its hands. */
static void *until_closed(void *number) {
    (void)number;
    uintptr_t rounds = 0;
    for (;;) {
        void *block = NULL;
        const forebay_status status = forebay_alloc(doomed, 4096, DEFAULT, &block);
        if (status == FOREBAY_STATUS_INVALID_HANDLE) {
            return (void *)rounds;
        }
        EXPECT(status == FOREBAY_STATUS_OK);
        const forebay_status freed = forebay_free(doomed, block, DEFAULT);
        EXPECT(freed == FOREBAY_STATUS_OK || freed == FOREBAY_STATUS_INVALID_HANDLE);
        rounds++;
    }
}

/* Opens and closes, so that slots are used again while others look at them. */
static void *openers(void *number) {
    (void)number;
    for (int round = 0; round < 20; round++) {
        forebay_pool own = {0};
        void *block = NULL;
        OK(forebay_pool_create(device, "max_bytes:64MiB", &own));
        OK(forebay_alloc(own, 512, DEFAULT, &block));
        OK(forebay_pool_close(own, NULL));
        EXPECT_STATUS(forebay_free(own, block, DEFAULT), FOREBAY_STATUS_INVALID_HANDLE);
        EXPECT(strstr(forebay_last_error(), "was closed") != NULL);
    }
    return NULL;
}

static void run(void *(*work)(void *), int count, void (*meanwhile)(void)) {
    pthread_t threads[THREADS];
    for (int index = 0; index < count; index++) {
        EXPECT(pthread_create(&threads[index], NULL, work, (void *)(uintptr_t)index) == 0);
    }
    if (meanwhile != NULL) {
        meanwhile();
    }
    for (int index = 0; index < count; index++) {
        EXPECT(pthread_join(threads[index], NULL) == 0);
    }
}

static void close_doomed(void) {
    for (int round = 0; round < 2000; round++) {
        void *block = NULL;
        OK(forebay_alloc(doomed, 4096, DEFAULT, &block));
        OK(forebay_free(doomed, block, DEFAULT));
    }
    OK(forebay_pool_close(doomed, NULL));
}

int main(int count, char **words) {
    device = device_of(count, words);
    OK(forebay_pool_create(device, NULL, &pool));
    run(pairs, THREADS, NULL);
    for (int index = 0; index < THREADS; index++) {
        OK(forebay_free(pool, shelf[index], DEFAULT));
    }
    run(openers, 2, NULL);
    for (int round = 0; round < 5; round++) {
        OK(forebay_pool_create(device, NULL, &doomed));
        run(until_closed, 2, close_doomed);
    }
    uint64_t left = 9;
    OK(forebay_pool_close(pool, &left));
    EXPECT(left == 0);
    OK(forebay_device_close(device));
    EXPECT(strlen(forebay_last_error()) == 0);
    return 0;
}
