/* Uploads and downloads by the transfer engine: there and back, tickets, batches, and what is refused. */

#include <pthread.h>

#include "expect.h"

static const forebay_stream DEFAULT = {0};

#define INVALID FOREBAY_STATUS_INVALID_ARGUMENT
#define HANDLE FOREBAY_STATUS_INVALID_HANDLE

/* More than one piece, and not a whole number of them. */
enum { SIZE = (9 << 20) + 13 };

static unsigned char *bytes(size_t size, unsigned seed) {
    unsigned char *made = malloc(size);
    EXPECT(made != NULL);
    for (size_t i = 0; i < size; i++) {
        made[i] = (unsigned char)(i * 31 + i / 251 + seed);
    }
    return made;
}

static void *block_of(forebay_pool pool, uint64_t size, forebay_stream stream) {
    void *block = NULL;
    OK(forebay_alloc(pool, size, stream, &block));
    return block;
}

/* From the device to the host as a device, and back, after the work of both streams. */
static void between(forebay_device device, forebay_pool pool) {
    forebay_device other = {0};
    forebay_pool other_pool = {0};
    forebay_stream stream = {0};
    OK(forebay_device_open("host", &other));
    OK(forebay_pool_create(other, NULL, &other_pool));
    OK(forebay_stream_create(device, 0, &stream));
    unsigned char *from = bytes(SIZE, 3), *back = calloc(SIZE, 1);
    void *here = block_of(pool, SIZE, stream), *there = block_of(other_pool, SIZE, DEFAULT);
    OK(forebay_upload(device, here, from, SIZE, stream, NULL));
    OK(forebay_fill(device, here, 100, 7, 1, stream));
    OK(forebay_copy_between(other, there, DEFAULT, device, here, stream, SIZE));
    OK(forebay_fill(other, (unsigned char *)there + SIZE - 1, 1, 8, 1, DEFAULT));
    OK(forebay_fill(device, here, SIZE, 0, 1, stream));
    OK(forebay_copy_between(device, here, stream, other, there, DEFAULT, SIZE));
    OK(forebay_download(device, back, here, SIZE, stream, NULL));
    EXPECT(back[0] == 7 && back[99] == 7 && back[SIZE - 1] == 8);
    EXPECT(memcmp(from + 100, back + 100, SIZE - 101) == 0);
    OK(forebay_copy_between(other, NULL, DEFAULT, device, NULL, stream, 0));
    REFUSED(forebay_copy_between(other, NULL, DEFAULT, device, here, stream, 1), INVALID, "invalid to: null");
    REFUSED(forebay_copy_between(other, there, DEFAULT, device, NULL, stream, 1), INVALID, "invalid from: null");
    EXPECT_STATUS(forebay_copy_between((forebay_device){0}, there, DEFAULT, device, here, stream, 1), HANDLE);
    EXPECT_STATUS(forebay_copy_between(other, there, (forebay_stream){device.id}, device, here, stream, 1), HANDLE);
    OK(forebay_free(pool, here, stream));
    OK(forebay_free(other_pool, there, DEFAULT));
    OK(forebay_stream_close(stream));
    OK(forebay_pool_close(other_pool, NULL));
    OK(forebay_device_close(other));
    free(from);
    free(back);
}

static void there_and_back(forebay_device device, forebay_pool pool) {
    forebay_stream stream = {0};
    OK(forebay_stream_create(device, 0, &stream));
    unsigned char *from = bytes(SIZE, 1), *back = calloc(SIZE, 1);
    void *block = block_of(pool, SIZE, stream);
    const forebay_transfer_options urgent = {.struct_size = sizeof urgent, .priority = 1};

    OK(forebay_upload(device, block, from, SIZE, stream, NULL));
    OK(forebay_download(device, back, block, SIZE, stream, &urgent));
    EXPECT(memcmp(from, back, SIZE) == 0);

    /* After the work of the stream: the fill, then the download. */
    OK(forebay_fill(device, block, 100, 7, 1, stream));
    OK(forebay_download(device, back, block, 101, stream, NULL));
    EXPECT(back[0] == 7 && back[99] == 7 && back[100] == from[100]);

    /* A ticket. */
    forebay_transfer up = {0}, down = {0};
    uint64_t moved = 1, total = 0;
    int32_t done = 0, cancelled = 9;
    OK(forebay_upload_async(device, block, from, SIZE, stream, &urgent, &up));
    OK(forebay_transfer_progress(up, &moved, &total));
    EXPECT(moved <= SIZE && total == SIZE);
    OK(forebay_transfer_wait(up));
    OK(forebay_transfer_wait(up));
    OK(forebay_transfer_is_done(up, &done));
    OK(forebay_transfer_progress(up, &moved, NULL));
    EXPECT(done == 1 && moved == SIZE);
    OK(forebay_transfer_cancel(up, &cancelled));
    EXPECT(cancelled == 0);
    OK(forebay_transfer_close(up));

    /* Ordered: what is enqueued next comes after the upload, and the source may change. */
    OK(forebay_upload_async(device, block, from, SIZE, stream, NULL, &up));
    OK(forebay_transfer_order(up));
    from[SIZE - 1] ^= 0xff;
    OK(forebay_transfer_close(up));
    OK(forebay_fill(device, block, 1, 5, 1, stream));
    OK(forebay_download_async(device, back, block, SIZE, stream, NULL, &down));
    OK(forebay_transfer_close(down)); /* has waited */
    from[SIZE - 1] ^= 0xff;
    EXPECT(back[0] == 5 && memcmp(from + 1, back + 1, SIZE - 1) == 0);

    /* Pinned memory, which the device copies itself; its middle is as good as any memory. */
    unsigned char *pinned = NULL;
    OK(forebay_pinned_alloc(device, SIZE, (void **)&pinned));
    memcpy(pinned, from, SIZE);
    memset(back, 0, SIZE);
    OK(forebay_upload(device, block, pinned, SIZE, stream, NULL));
    memset(pinned, 0, SIZE);
    OK(forebay_download(device, pinned, block, SIZE, stream, NULL));
    EXPECT(memcmp(from, pinned, SIZE) == 0);
    OK(forebay_upload_async(device, block, pinned + 5, 1000, stream, NULL, &up));
    OK(forebay_transfer_close(up));
    OK(forebay_download(device, back, block, 1000, stream, NULL));
    EXPECT(memcmp(from + 5, back, 1000) == 0);
    OK(forebay_pinned_free(device, pinned));

    OK(forebay_upload(device, NULL, NULL, 0, stream, NULL));
    OK(forebay_free(pool, block, stream));
    OK(forebay_stream_close(stream));
    free(from);
    free(back);
}

/* Each item has its own status, and the others are copied. */
static void batches(forebay_device device, forebay_pool pool) {
    enum { ITEMS = 300, EACH = 100 };
    unsigned char *from = bytes(ITEMS * EACH, 2), *back = calloc(ITEMS * EACH, 1);
    unsigned char *block = block_of(pool, ITEMS * EACH, DEFAULT);
    forebay_transfer_item up[ITEMS], down[ITEMS];
    forebay_status results[ITEMS];
    for (size_t i = 0; i < ITEMS; i++) {
        up[i] = (forebay_transfer_item){.to = block + i * EACH, .from = from + i * EACH, .size = EACH};
        down[i] = (forebay_transfer_item){.to = back + i * EACH, .from = block + i * EACH, .size = EACH};
        results[i] = FOREBAY_STATUS_DEFECT;
    }
    OK(forebay_upload_batch(device, up, ITEMS, DEFAULT, results));
    OK(forebay_download_batch(device, down, ITEMS, DEFAULT, NULL));
    EXPECT(memcmp(from, back, ITEMS * EACH) == 0);
    for (size_t i = 0; i < ITEMS; i++) {
        EXPECT(results[i] == FOREBAY_STATUS_OK);
    }
    memset(back, 0, ITEMS * EACH);
    down[7].from = NULL;
    down[8].size = UINT64_MAX;
    REFUSED(forebay_download_batch(device, down, ITEMS, DEFAULT, results), INVALID, "item 7 of 300: invalid from: null");
    EXPECT(results[7] == INVALID && results[8] == INVALID && results[9] == FOREBAY_STATUS_OK);
    EXPECT(back[7 * EACH] == 0 && memcmp(from + 9 * EACH, back + 9 * EACH, (ITEMS - 9) * EACH) == 0);
    OK(forebay_upload_batch(device, NULL, 0, DEFAULT, NULL));
    REFUSED(forebay_upload_batch(device, NULL, 1, DEFAULT, NULL), INVALID, "items");
    REFUSED(forebay_upload_batch(device, up, SIZE_MAX, DEFAULT, NULL), INVALID, "items");
    OK(forebay_free(pool, block, DEFAULT));
    free(from);
    free(back);
}

static void wrong(forebay_device device, forebay_pool pool) {
    unsigned char *from = bytes(4096, 3);
    void *block = block_of(pool, 4096, DEFAULT);
    forebay_transfer up = {0}, none = {0};
    forebay_transfer_options options = {0};
    int32_t done = 0;
    REFUSED(forebay_upload(device, NULL, from, 1, DEFAULT, NULL), INVALID, "invalid to: null");
    REFUSED(forebay_upload(device, block, NULL, 1, DEFAULT, NULL), INVALID, "invalid from: null");
    REFUSED(forebay_download(device, NULL, block, 1, DEFAULT, NULL), INVALID, "invalid to: null");
    REFUSED(forebay_upload_async(device, block, from, 1, DEFAULT, NULL, NULL), INVALID, "null");
    REFUSED(forebay_upload(device, block, from, 1, DEFAULT, &options), INVALID, "struct_size");
    EXPECT_STATUS(forebay_upload(device, block, from, UINT64_MAX, DEFAULT, NULL), INVALID);
    EXPECT_STATUS(forebay_upload_async(device, block, from, UINT64_MAX, DEFAULT, NULL, &up), INVALID);
    EXPECT(up.id == 0);
    REFUSED(forebay_upload((forebay_device){0}, block, from, 1, DEFAULT, NULL), HANDLE, "null");
    REFUSED(forebay_upload((forebay_device){pool.id}, block, from, 1, DEFAULT, NULL), HANDLE, "handle of a pool");
    EXPECT_STATUS(forebay_upload(device, block, from, 1, (forebay_stream){device.id}, NULL), HANDLE);
    REFUSED(forebay_transfer_wait(none), HANDLE, "null");
    REFUSED(forebay_transfer_wait((forebay_transfer){pool.id}), HANDLE, "handle of a pool");

    OK(forebay_upload_async(device, block, from, 4096, DEFAULT, NULL, &up));
    REFUSED(forebay_transfer_is_done(up, NULL), INVALID, "null");
    REFUSED(forebay_pool_close((forebay_pool){up.id}, NULL), HANDLE, "handle of a transfer");
    OK(forebay_transfer_close(up));
    REFUSED(forebay_transfer_close(up), HANDLE, "closed");
    REFUSED(forebay_transfer_wait(up), HANDLE, "closed");
    REFUSED(forebay_transfer_order(up), HANDLE, "closed");
    REFUSED(forebay_transfer_cancel(up, NULL), HANDLE, "closed");
    REFUSED(forebay_transfer_is_done(up, &done), HANDLE, "closed");
    REFUSED(forebay_transfer_progress(up, NULL, NULL), HANDLE, "closed");
    OK(forebay_free(pool, block, DEFAULT));
    free(from);
}

/* A transfer keeps its device and its stream, also if their handles are closed. */
static void outlives_its_handles(const char *name) {
    forebay_device device = {0};
    forebay_pool pool = {0};
    forebay_stream stream = {0};
    forebay_transfer up = {0};
    unsigned char *from = bytes(SIZE, 4);
    OK(forebay_device_open(name, &device));
    OK(forebay_pool_create(device, NULL, &pool));
    OK(forebay_stream_create(device, 0, &stream));
    void *block = block_of(pool, SIZE, stream);
    OK(forebay_upload_async(device, block, from, SIZE, stream, NULL, &up));
    OK(forebay_stream_close(stream));
    OK(forebay_device_close(device));
    REFUSED(forebay_upload(device, block, from, 1, DEFAULT, NULL), HANDLE, "closed");
    OK(forebay_transfer_order(up));
    OK(forebay_transfer_wait(up));
    OK(forebay_transfer_close(up));
    OK(forebay_free_synchronized(pool, block));
    OK(forebay_pool_close(pool, NULL));
    free(from);
}

/* Threads that share a ticket, one of which closes it. */
static forebay_transfer shared;

static void *waiter(void *cancels) {
    if (cancels != NULL) {
        OK(forebay_transfer_cancel(shared, NULL));
    }
    const forebay_status status = forebay_transfer_wait(shared);
    return (void *)(uintptr_t)status;
}

static void two_threads(forebay_device device, forebay_pool pool) {
    unsigned char *from = bytes(SIZE, 5);
    void *block = block_of(pool, SIZE, DEFAULT);
    for (int round = 0; round < 10; round++) {
        pthread_t running[2];
        void *status[2] = {NULL, NULL};
        OK(forebay_upload_async(device, block, from, SIZE, DEFAULT, NULL, &shared));
        EXPECT(pthread_create(&running[0], NULL, waiter, NULL) == 0);
        EXPECT(pthread_create(&running[1], NULL, waiter, round % 2 == 0 ? NULL : &shared) == 0);
        for (int i = 0; i < 2; i++) {
            EXPECT(pthread_join(running[i], &status[i]) == 0);
        }
        const forebay_status outcome = (forebay_status)(uintptr_t)status[0];
        EXPECT(outcome == FOREBAY_STATUS_OK || (round % 2 == 1 && outcome == FOREBAY_STATUS_CANCELLED));
        EXPECT(status[0] == status[1] && forebay_transfer_wait(shared) == outcome);
        EXPECT_STATUS(forebay_transfer_close(shared), outcome);
    }
    /* Closed under the hands of a thread that waits: either it was in time, or it is refused. */
    for (int round = 0; round < 10; round++) {
        pthread_t running;
        void *status = NULL;
        OK(forebay_upload_async(device, block, from, SIZE, DEFAULT, NULL, &shared));
        EXPECT(pthread_create(&running, NULL, waiter, NULL) == 0);
        OK(forebay_transfer_close(shared));
        EXPECT(pthread_join(running, &status) == 0);
        EXPECT(status == NULL || (forebay_status)(uintptr_t)status == HANDLE);
    }
    OK(forebay_free(pool, block, DEFAULT));
    free(from);
}

int main(int count, char **words) {
    forebay_device device = device_of(count, words);
    forebay_pool pool = {0};
    OK(forebay_pool_create(device, NULL, &pool));
    there_and_back(device, pool);
    between(device, pool);
    batches(device, pool);
    wrong(device, pool);
    two_threads(device, pool);
    outlives_its_handles(count > 1 ? words[1] : "host");
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_device_close(device));
    return 0;
}
