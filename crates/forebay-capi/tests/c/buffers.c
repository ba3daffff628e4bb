/* Buffers: host and device memory that are kept coherent, mappings that are counted, and what is refused. */

#include <pthread.h>

#include "expect.h"

static const forebay_stream DEFAULT = {0};

#define INVALID FOREBAY_STATUS_INVALID_ARGUMENT
#define HANDLE FOREBAY_STATUS_INVALID_HANDLE
#define BUSY FOREBAY_STATUS_BUSY

enum { SIZE = 4096 };

static forebay_buffer made(forebay_buffer_manager memory, uint64_t size) {
    forebay_buffer buffer = {0};
    OK(forebay_buffer_create(memory, size, &buffer));
    return buffer;
}

static forebay_buffer_info info_of(forebay_buffer buffer) {
    forebay_buffer_info info = {.struct_size = sizeof info};
    OK(forebay_buffer_describe(buffer, &info));
    return info;
}

static unsigned char byte_at(forebay_buffer buffer, uint64_t offset) {
    unsigned char byte = 0;
    OK(forebay_buffer_copy_to(buffer, offset, &byte, 1));
    return byte;
}

/* There and back: what the host writes the device has, and the other way round. */
static void there_and_back(forebay_device device, forebay_buffer_manager memory) {
    forebay_stream stream = {0};
    OK(forebay_stream_create(device, 0, &stream));
    forebay_device_info what = {.struct_size = sizeof what};
    OK(forebay_device_describe(device, &what));
    const uint64_t one = FOREBAY_CAN_HOST_VISIBLE | FOREBAY_CAN_DATA;
    const int copies = (what.capabilities & one) != one;
    forebay_buffer x = made(memory, SIZE), y = made(memory, SIZE);
    EXPECT(info_of(x).state == FOREBAY_BUFFER_STATE_UNINITIALIZED && info_of(x).host_bytes == 0);

    forebay_mapping mapping = {0};
    void *host = NULL, *there = NULL;
    OK(forebay_buffer_map(x, 0, SIZE, FOREBAY_ACCESS_OVERWRITE, &mapping, &host));
    memset(host, 1, SIZE);
    EXPECT(info_of(x).mappings == 1);
    OK(forebay_buffer_unmap(x, mapping));
    OK(forebay_buffer_on_device(x, 0, SIZE, FOREBAY_ACCESS_UPDATE, stream, &there));
    OK(forebay_fill(device, there, 16, 7, 1, stream));
    EXPECT(byte_at(x, 15) == 7 && byte_at(x, 16) == 1);
    EXPECT(info_of(x).bytes_to_device == (copies ? SIZE : 0));

    /* Ten bytes of many: ten are copied. */
    const uint64_t before = info_of(x).bytes_to_device;
    OK(forebay_buffer_copy_from(x, 100, "0123456789", 10));
    OK(forebay_buffer_on_device(x, 0, SIZE, FOREBAY_ACCESS_READ, stream, &there));
    EXPECT(info_of(x).bytes_to_device - before == (copies ? 10 : 0));

    OK(forebay_buffer_copy(y, x, stream));
    EXPECT(byte_at(y, 3) == 7 && byte_at(y, 109) == '9');
    OK(forebay_buffer_fill(y, 8, 8, 0x0807060504030201, 8));
    EXPECT(byte_at(y, 8) == 1 && byte_at(y, 15) == 8);
    OK(forebay_buffer_resize(y, 2 * SIZE));
    EXPECT(byte_at(y, 9) == 2 && byte_at(y, 2 * SIZE - 1) == 0);
    OK(forebay_buffer_synchronize(y, stream));
    uint64_t freed = 0;
    OK(forebay_buffer_compact(y, FOREBAY_SIDE_HOST, stream, &freed));
    EXPECT((freed == 2 * SIZE) == copies);
    EXPECT(byte_at(y, 9) == 2);
    OK(forebay_buffer_invalidate(y, FOREBAY_SIDE_DEVICE));

    forebay_buffer_totals totals = {.struct_size = sizeof totals};
    OK(forebay_buffer_manager_totals(memory, &totals));
    EXPECT(totals.buffers == 2 && totals.bytes_to_device >= info_of(x).bytes_to_device);
    char *live = NULL;
    OK(forebay_live_buffers(memory, &live));
    EXPECT(strstr(live, "\"bytes\":4096") != NULL);
    forebay_string_free(live);
    OK(forebay_buffer_close(x));
    OK(forebay_buffer_close(y));
    OK(forebay_live_buffers((forebay_buffer_manager){0}, &live));
    EXPECT(strcmp(live, "[]") == 0);
    forebay_string_free(live);
    OK(forebay_stream_close(stream));
}

/* A mapping refuses what conflicts with it, until it ends. */
static void mapped(forebay_buffer_manager memory) {
    forebay_buffer x = made(memory, SIZE), y = made(memory, SIZE);
    forebay_mapping write = {0}, read = {0}, other = {0};
    void *host = NULL, *again = NULL;
    unsigned char byte = 0;
    OK(forebay_buffer_map(x, 0, 100, FOREBAY_ACCESS_UPDATE, &write, &host));
    REFUSED(forebay_buffer_map(x, 99, 1, FOREBAY_ACCESS_READ, &other, &again), BUSY,
            "bytes 0 to 100 of the buffer are mapped on the host for writing by a view that still lives: release it first");
    EXPECT(again == NULL);
    REFUSED(forebay_buffer_on_device(x, 0, SIZE, FOREBAY_ACCESS_READ, DEFAULT, &again), BUSY, "release it first");
    REFUSED(forebay_buffer_copy_to(x, 0, &byte, 1), BUSY, "release it first");
    REFUSED(forebay_buffer_copy_from(x, 99, &byte, 1), BUSY, "release it first");
    REFUSED(forebay_buffer_fill(x, 0, 1, 0, 1), BUSY, "release it first");
    REFUSED(forebay_buffer_copy(y, x, DEFAULT), BUSY, "release it first");
    REFUSED(forebay_buffer_copy(x, y, DEFAULT), BUSY, "release it first");
    REFUSED(forebay_buffer_resize(x, 10), BUSY, "release it first");
    REFUSED(forebay_buffer_compact(x, FOREBAY_SIDE_HOST, DEFAULT, NULL), BUSY, "release it first");
    REFUSED(forebay_buffer_invalidate(x, FOREBAY_SIDE_HOST), BUSY, "release it first");
    REFUSED(forebay_buffer_synchronize(x, DEFAULT), BUSY, "release it first");
    REFUSED(forebay_buffer_close(x), BUSY, "release it first");
    /* Beside it everything goes on, and the view stays where it is. */
    memset(host, 3, 100);
    OK(forebay_buffer_map(x, 100, 100, FOREBAY_ACCESS_UPDATE, &other, &again));
    EXPECT((char *)again == (char *)host + 100);
    OK(forebay_buffer_unmap(x, other));
    OK(forebay_buffer_unmap(x, write));
    REFUSED(forebay_buffer_unmap(x, write), HANDLE, "ended before");
    REFUSED(forebay_buffer_unmap(x, (forebay_mapping){0}), HANDLE, "another buffer");

    OK(forebay_buffer_map(x, 0, SIZE, FOREBAY_ACCESS_READ, &read, &host));
    OK(forebay_buffer_map(x, 0, SIZE, FOREBAY_ACCESS_READ, &other, &again));
    EXPECT(host == again && *(unsigned char *)host == 3);
    OK(forebay_buffer_on_device(x, 0, SIZE, FOREBAY_ACCESS_READ, DEFAULT, &again));
    REFUSED(forebay_buffer_on_device(x, 0, SIZE, FOREBAY_ACCESS_UPDATE, DEFAULT, &again), BUSY, "reading");
    REFUSED(forebay_buffer_unmap(y, read), HANDLE, "another buffer");
    OK(forebay_buffer_unmap(x, read));
    OK(forebay_buffer_unmap(x, other));
    OK(forebay_buffer_close(x));
    REFUSED(forebay_buffer_close(x), HANDLE, "closed");
    REFUSED(forebay_buffer_unmap(x, other), HANDLE, "closed");
    OK(forebay_buffer_close(y));
}

/* Nulls, handles that are none, ranges that are not there. */
static void wrong(forebay_device device, forebay_buffer_manager memory) {
    forebay_buffer x = made(memory, 100), none = {0};
    forebay_mapping mapping = {0};
    forebay_buffer_info info = {0};
    void *host = NULL;
    REFUSED(forebay_buffer_manager_create(device, NULL), INVALID, "null");
    REFUSED(forebay_buffer_manager_over((forebay_pool){0}, &memory), HANDLE, "null");
    REFUSED(forebay_buffer_manager_totals(memory, NULL), INVALID, "null");
    REFUSED(forebay_live_buffers(memory, NULL), INVALID, "null");
    REFUSED(forebay_buffer_create(memory, 1, NULL), INVALID, "null");
    REFUSED(forebay_buffer_create((forebay_buffer_manager){x.id}, 1, &none), HANDLE, "the handle of a buffer");
    REFUSED(forebay_buffer_create(memory, UINT64_MAX, &none), INVALID, "elements");
    REFUSED(forebay_buffer_describe(x, NULL), INVALID, "null");
    REFUSED(forebay_buffer_describe(x, &info), INVALID, "struct_size");
    REFUSED(forebay_buffer_map(x, 0, 1, 0, NULL, &host), INVALID, "null");
    REFUSED(forebay_buffer_map(x, 0, 1, 0, &mapping, NULL), INVALID, "null");
    REFUSED(forebay_buffer_map(x, 0, 1, 3, &mapping, &host), INVALID, "access");
    REFUSED(forebay_buffer_map(none, 0, 1, 0, &mapping, &host), HANDLE, "null");
    const uint64_t ranges[][2] = {{0, 101}, {101, 0}, {1, UINT64_MAX}, {UINT64_MAX, 1}, {UINT64_MAX, UINT64_MAX}};
    for (size_t i = 0; i < sizeof ranges / sizeof *ranges; i++) {
        const uint64_t offset = ranges[i][0], size = ranges[i][1];
        REFUSED(forebay_buffer_map(x, offset, size, 0, &mapping, &host), INVALID, "range");
        REFUSED(forebay_buffer_on_device(x, offset, size, 0, DEFAULT, &host), INVALID, "range");
        REFUSED(forebay_buffer_fill(x, offset, size, 0, 1), INVALID, "range");
    }
    REFUSED(forebay_buffer_on_device(x, 0, 1, 0, DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_buffer_copy_from(x, 0, NULL, 1), INVALID, "from");
    REFUSED(forebay_buffer_copy_to(x, 0, NULL, 1), INVALID, "to");
    REFUSED(forebay_buffer_copy_from(x, 0, &info, SIZE_MAX), INVALID, "from");
    REFUSED(forebay_buffer_fill(x, 1, 4, 0, 4), INVALID, "type");
    REFUSED(forebay_buffer_fill(x, 0, 4, 0, 3), INVALID, "width");
    REFUSED(forebay_buffer_resize(x, UINT64_MAX), INVALID, "elements");
    REFUSED(forebay_buffer_copy(x, x, DEFAULT), INVALID, "another buffer");
    REFUSED(forebay_buffer_copy(x, none, DEFAULT), HANDLE, "null");
    REFUSED(forebay_buffer_compact(x, 2, DEFAULT, NULL), INVALID, "side");
    REFUSED(forebay_buffer_invalidate(x, 2), INVALID, "side");
    OK(forebay_buffer_copy_from(x, 100, NULL, 0));
    OK(forebay_buffer_close(x));
}

/* Threads on one buffer: a write is alone, or refused. */
static forebay_buffer shared;

static void *writer(void *number) {
    uintptr_t written = 0;
    for (int round = 0; round < 500; round++) {
        forebay_mapping mapping = {0};
        void *host = NULL;
        const forebay_status status = forebay_buffer_map(shared, 0, 8, FOREBAY_ACCESS_UPDATE, &mapping, &host);
        if (status == BUSY) {
            continue;
        }
        EXPECT(status == FOREBAY_STATUS_OK);
        memset(host, (int)(uintptr_t)number, 8);
        EXPECT(((unsigned char *)host)[0] == ((unsigned char *)host)[7]);
        OK(forebay_buffer_unmap(shared, mapping));
        written++;
    }
    return (void *)written;
}

static void threads(forebay_buffer_manager memory) {
    pthread_t running[4];
    uintptr_t written = 0;
    shared = made(memory, 64);
    for (uintptr_t i = 0; i < 4; i++) {
        EXPECT(pthread_create(&running[i], NULL, writer, (void *)i) == 0);
    }
    for (int i = 0; i < 4; i++) {
        void *count = NULL;
        EXPECT(pthread_join(running[i], &count) == 0);
        written += (uintptr_t)count;
    }
    EXPECT(written > 0 && info_of(shared).mappings == 0);
    OK(forebay_buffer_close(shared));
}

int main(int count, char **words) {
    forebay_device device = device_of(count, words);
    forebay_buffer_manager memory = {0}, over = {0};
    forebay_pool pool = {0};
    OK(forebay_buffer_manager_create(device, &memory));
    there_and_back(device, memory);
    mapped(memory);
    wrong(device, memory);
    threads(memory);

    /* A buffer keeps its pool, and outlives its manager. */
    OK(forebay_pool_create(device, NULL, &pool));
    OK(forebay_buffer_manager_over(pool, &over));
    forebay_buffer last = made(over, SIZE);
    void *there = NULL;
    OK(forebay_buffer_on_device(last, 0, SIZE, FOREBAY_ACCESS_UPDATE, DEFAULT, &there));
    OK(forebay_buffer_manager_close(over));
    OK(forebay_pool_close(pool, NULL));
    EXPECT(byte_at(last, 0) == 0);
    OK(forebay_buffer_close(last));
    OK(forebay_buffer_manager_close(memory));
    OK(forebay_device_close(device));
    return 0;
}
