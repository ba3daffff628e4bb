/* What a program can do wrong: each is an error with its words, none of it ends the program, and the pool goes on. */

#include "expect.h"

static const forebay_stream DEFAULT = {0};

#define INVALID FOREBAY_STATUS_INVALID_ARGUMENT
#define HANDLE FOREBAY_STATUS_INVALID_HANDLE

/* Nulls where a result or a text should go. */
static void nulls(forebay_device device, forebay_pool pool) {
    forebay_arena arena = {0};
    OK(forebay_arena_create(pool, 4096, 0, DEFAULT, &arena));
    void *block = NULL;
    REFUSED(forebay_device_open(NULL, &device), INVALID, "invalid name: null");
    REFUSED(forebay_device_open("host", NULL), INVALID, "null");
    REFUSED(forebay_device_best(NULL), INVALID, "null");
    REFUSED(forebay_device_count(NULL), INVALID, "null");
    REFUSED(forebay_device_at(0, NULL), INVALID, "null");
    REFUSED(forebay_event_create(device, NULL), INVALID, "null");
    REFUSED(forebay_event_query((forebay_event){0}, NULL), INVALID, "null");
    REFUSED(forebay_pinned_alloc(device, 4096, NULL), INVALID, "null");
    REFUSED(forebay_pool_create_with_callbacks(device, NULL, NULL, NULL, NULL, NULL), INVALID, "null");
    REFUSED(forebay_device_describe(device, NULL), INVALID, "null");
    REFUSED(forebay_pool_create(device, NULL, NULL), INVALID, "null");
    REFUSED(forebay_pool_of_process(device, NULL), INVALID, "null");
    REFUSED(forebay_pool_device(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_set(pool, NULL, "1"), INVALID, "invalid key: null");
    REFUSED(forebay_pool_set(pool, "max_bytes", NULL), INVALID, "invalid value: null");
    REFUSED(forebay_pool_get(pool, "max_bytes", NULL), INVALID, "null");
    REFUSED(forebay_pool_limit(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_pressure(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_statistics(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_snapshot(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_summary(pool, NULL), INVALID, "null");
    REFUSED(forebay_pool_warm_up(pool, NULL, NULL, 1, DEFAULT, NULL), INVALID, "sizes");
    REFUSED(forebay_alloc(pool, 512, DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_alloc_aligned(pool, 512, 512, DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_alloc_batch(pool, NULL, 2, DEFAULT, &block), INVALID, "sizes");
    REFUSED(forebay_block_query(pool, NULL, NULL), INVALID, "null");
    REFUSED(forebay_stream_create(device, 0, NULL), INVALID, "null");
    REFUSED(forebay_stream_adopt(device, NULL, NULL), INVALID, "null");
    REFUSED(forebay_stream_raw(DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_stream_query(device, DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_arena_create(pool, 512, 0, DEFAULT, NULL), INVALID, "null");
    REFUSED(forebay_arena_alloc(arena, 512, 0, NULL), INVALID, "null");
    REFUSED(forebay_arena_checkpoint(arena, NULL), INVALID, "null");
    REFUSED(forebay_arena_statistics(arena, NULL), INVALID, "null");
    REFUSED(forebay_tag_enter(NULL), INVALID, "null");
    REFUSED(forebay_trace_stop(pool, NULL, NULL), INVALID, "null");
    REFUSED(forebay_copy(device, NULL, DEFAULT), INVALID, "null");
    OK(forebay_alloc(pool, 512, DEFAULT, &block));
    REFUSED(forebay_copy_to_device(device, block, NULL, 512, DEFAULT), INVALID, "null");
    REFUSED(forebay_copy_to_host(device, NULL, block, 512, DEFAULT), INVALID, "null");
    REFUSED(forebay_copy_on_device(device, block, NULL, 512, DEFAULT), INVALID, "null");
    REFUSED(forebay_fill(device, NULL, 512, 0, 1, DEFAULT), INVALID, "null");
    OK(forebay_free(pool, block, DEFAULT));
    OK(forebay_arena_close(arena));
}

/* Every function that takes a pool, with one that is none. */
static void no_pool(forebay_pool pool) {
    void *block = &pool;
    uint64_t number = 0;
    char *text = NULL;
    forebay_device device = {0};
    forebay_arena arena = {0};
    forebay_pressure level = FOREBAY_PRESSURE_LOW;
    forebay_statistics figures = {.struct_size = sizeof figures};
    forebay_block_info info = {.struct_size = sizeof info};
    EXPECT_STATUS(forebay_alloc(pool, 512, DEFAULT, &block), HANDLE);
    EXPECT(block == NULL);
    EXPECT_STATUS(forebay_alloc_aligned(pool, 512, 512, DEFAULT, &block), HANDLE);
    EXPECT_STATUS(forebay_alloc_batch(pool, &number, 1, DEFAULT, &block), HANDLE);
    EXPECT_STATUS(forebay_free(pool, &pool, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_free_sized(pool, &pool, 512, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_free_synchronized(pool, &pool), HANDLE);
    EXPECT_STATUS(forebay_record_use(pool, &pool, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_forget_stream(pool, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_block_query(pool, &pool, &info), HANDLE);
    EXPECT_STATUS(forebay_pool_set(pool, "max_bytes", "1MiB"), HANDLE);
    EXPECT_STATUS(forebay_pool_get(pool, "max_bytes", &text), HANDLE);
    EXPECT_STATUS(forebay_pool_device(pool, &device), HANDLE);
    EXPECT_STATUS(forebay_pool_limit(pool, &number), HANDLE);
    EXPECT_STATUS(forebay_pool_pressure(pool, &level), HANDLE);
    EXPECT_STATUS(forebay_pool_trim(pool, 0, NULL), HANDLE);
    EXPECT_STATUS(forebay_pool_empty_cache(pool, NULL), HANDLE);
    EXPECT_STATUS(forebay_pool_collect(pool, 0, NULL), HANDLE);
    EXPECT_STATUS(forebay_pool_defragment(pool), HANDLE);
    EXPECT_STATUS(forebay_pool_process_deferred(pool), HANDLE);
    EXPECT_STATUS(forebay_pool_warm_up(pool, &number, &number, 1, DEFAULT, NULL), HANDLE);
    EXPECT_STATUS(forebay_pool_statistics(pool, &figures), HANDLE);
    EXPECT_STATUS(forebay_pool_snapshot(pool, &text), HANDLE);
    EXPECT_STATUS(forebay_pool_summary(pool, &text), HANDLE);
    EXPECT_STATUS(forebay_trace_start(pool, 10), HANDLE);
    EXPECT_STATUS(forebay_trace_stop(pool, "x.csv", NULL), HANDLE);
    EXPECT_STATUS(forebay_arena_create(pool, 512, 0, DEFAULT, &arena), HANDLE);
    EXPECT_STATUS(forebay_pool_close(pool, NULL), HANDLE);
    EXPECT(text == NULL && arena.id == 0 && device.id == 0);
}

static void no_device(forebay_device device) {
    forebay_device_info info = {.struct_size = sizeof info};
    forebay_pool pool = {0};
    forebay_stream stream = {0};
    int32_t done = 0;
    EXPECT_STATUS(forebay_device_describe(device, &info), HANDLE);
    EXPECT_STATUS(forebay_device_synchronize(device), HANDLE);
    EXPECT_STATUS(forebay_pool_create(device, NULL, &pool), HANDLE);
    EXPECT_STATUS(forebay_pool_of_process(device, &pool), HANDLE);
    EXPECT_STATUS(forebay_pool_forget_process(device, NULL), HANDLE);
    forebay_event event = {0};
    void *memory = &info;
    EXPECT_STATUS(forebay_pool_create_with_callbacks(device, NULL, NULL, NULL, NULL, &pool), HANDLE);
    EXPECT_STATUS(forebay_event_create(device, &event), HANDLE);
    EXPECT_STATUS(forebay_pinned_alloc(device, 4096, &memory), HANDLE);
    EXPECT(memory == NULL && event.id == 0);
    EXPECT_STATUS(forebay_pinned_free(device, &info), HANDLE);
    EXPECT_STATUS(forebay_stream_create(device, 0, &stream), HANDLE);
    EXPECT_STATUS(forebay_stream_adopt(device, NULL, &stream), HANDLE);
    EXPECT_STATUS(forebay_stream_synchronize(device, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_stream_query(device, DEFAULT, &done), HANDLE);
    EXPECT_STATUS(forebay_copy_to_device(device, &info, &info, 8, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_fill(device, &info, 8, 0, 1, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_device_close(device), HANDLE);
}

static void no_arena(forebay_arena arena) {
    void *block = NULL;
    forebay_checkpoint checkpoint = {0};
    forebay_arena_usage usage = {.struct_size = sizeof usage};
    EXPECT_STATUS(forebay_arena_alloc(arena, 512, 0, &block), HANDLE);
    EXPECT_STATUS(forebay_arena_checkpoint(arena, &checkpoint), HANDLE);
    EXPECT_STATUS(forebay_arena_rewind(arena, checkpoint), HANDLE);
    EXPECT_STATUS(forebay_arena_reset(arena), HANDLE);
    EXPECT_STATUS(forebay_arena_statistics(arena, &usage), HANDLE);
    EXPECT_STATUS(forebay_arena_close(arena), HANDLE);
}

static void no_event(forebay_event event) {
    int32_t done = 0;
    EXPECT_STATUS(forebay_event_record(event, DEFAULT), HANDLE);
    EXPECT_STATUS(forebay_event_query(event, &done), HANDLE);
    EXPECT_STATUS(forebay_event_synchronize(event), HANDLE);
    EXPECT_STATUS(forebay_stream_wait_event(DEFAULT, event), HANDLE);
    EXPECT_STATUS(forebay_event_close(event), HANDLE);
}

static void no_stream(forebay_device device, forebay_pool pool, forebay_stream stream) {
    void *block = NULL, *raw = NULL;
    OK(forebay_alloc(pool, 512, DEFAULT, &block));
    void *other = NULL;
    EXPECT_STATUS(forebay_alloc(pool, 512, stream, &other), HANDLE);
    EXPECT_STATUS(forebay_free(pool, block, stream), HANDLE);
    EXPECT_STATUS(forebay_record_use(pool, block, stream), HANDLE);
    EXPECT_STATUS(forebay_stream_synchronize(device, stream), HANDLE);
    EXPECT_STATUS(forebay_stream_raw(stream, &raw), HANDLE);
    forebay_event event = {0};
    OK(forebay_event_create(device, &event));
    EXPECT_STATUS(forebay_event_record(event, stream), HANDLE);
    EXPECT_STATUS(forebay_stream_wait_event(stream, event), HANDLE);
    OK(forebay_event_close(event));
    EXPECT_STATUS(forebay_fill(device, block, 512, 0, 1, stream), HANDLE);
    EXPECT_STATUS(forebay_free_anywhere(block, stream), HANDLE);
    EXPECT_STATUS(forebay_stream_close(stream), HANDLE);
    OK(forebay_free(pool, block, DEFAULT));
}

/* Handles that are closed, of another kind, made up or null. */
static void handles(forebay_device device, forebay_pool pool) {
    forebay_pool closed = {0};
    OK(forebay_pool_create(device, NULL, &closed));
    OK(forebay_pool_close(closed, NULL));
    no_pool(closed);
    REFUSED(forebay_pool_close(closed, NULL), HANDLE, "was closed");
    no_pool((forebay_pool){0});
    REFUSED(forebay_pool_close((forebay_pool){0}, NULL), HANDLE, "is null");
    no_pool((forebay_pool){device.id});
    REFUSED(forebay_pool_close((forebay_pool){device.id}, NULL), HANDLE, "is the handle of a device");
    no_pool((forebay_pool){UINT64_MAX});
    no_pool((forebay_pool){0x1234});
    no_pool((forebay_pool){(uintptr_t)&closed});

    forebay_device gone = {0};
    OK(forebay_device_open("host", &gone));
    OK(forebay_device_close(gone));
    no_device(gone);
    no_device((forebay_device){0});
    no_device((forebay_device){pool.id});
    no_device((forebay_device){UINT64_MAX});

    forebay_arena arena = {0};
    OK(forebay_arena_create(pool, 4096, 0, DEFAULT, &arena));
    OK(forebay_arena_close(arena));
    no_arena(arena);
    no_arena((forebay_arena){0});
    no_arena((forebay_arena){pool.id});

    forebay_event event = {0};
    OK(forebay_event_create(device, &event));
    OK(forebay_event_close(event));
    REFUSED(forebay_event_close(event), HANDLE, "the event handle");
    no_event(event);
    no_event((forebay_event){0});
    no_event((forebay_event){pool.id});
    no_event((forebay_event){UINT64_MAX});

    forebay_stream stream = {0};
    OK(forebay_stream_create(device, 0, &stream));
    OK(forebay_stream_close(stream));
    no_stream(device, pool, stream);
    no_stream(device, pool, (forebay_stream){pool.id});
    no_stream(device, pool, (forebay_stream){UINT64_MAX});
    EXPECT_STATUS(forebay_stream_close(DEFAULT), HANDLE);
}

/* Blocks that are free, of another pool, none at all, or of another size. */
static void blocks(forebay_device device, forebay_pool pool) {
    void *block = NULL, *huge = &block;
    OK(forebay_alloc(pool, 4096, DEFAULT, &block));
    REFUSED(forebay_free_sized(pool, block, 1, DEFAULT), FOREBAY_STATUS_WRONG_SIZE, "freed with size 1 B");
    REFUSED(forebay_free(pool, (char *)block + 8, DEFAULT), FOREBAY_STATUS_NOT_A_BLOCK, "not a block");
    REFUSED(forebay_free(pool, &block, DEFAULT), FOREBAY_STATUS_NOT_A_BLOCK, "not a block");

    forebay_pool other = {0};
    OK(forebay_pool_create(device, NULL, &other));
    REFUSED(forebay_free(other, block, DEFAULT), FOREBAY_STATUS_WRONG_POOL, "free it there");
    OK(forebay_pool_close(other, NULL));

    OK(forebay_free(pool, block, DEFAULT));
    REFUSED(forebay_free(pool, block, DEFAULT), FOREBAY_STATUS_DOUBLE_FREE, "freed already");
    REFUSED(forebay_free_anywhere(block, DEFAULT), FOREBAY_STATUS_DOUBLE_FREE, "freed already");
    EXPECT(forebay_record_use(pool, block, DEFAULT) != FOREBAY_STATUS_OK);
    forebay_block_info info = {.struct_size = sizeof info};
    REFUSED(forebay_block_query(pool, block, &info), FOREBAY_STATUS_NOT_A_BLOCK, "not a block");

    /* Sizes that were negative before they were passed. */
    const uint64_t sizes[4] = {(uint64_t)-1, (uint64_t)INT64_MIN, UINT64_MAX / 2, (uint64_t)1 << 50};
    for (int index = 0; index < 4; index++) {
        REFUSED(forebay_alloc(pool, sizes[index], DEFAULT, &huge), FOREBAY_STATUS_OUT_OF_MEMORY, "requested");
        EXPECT(huge == NULL);
        EXPECT(forebay_alloc_aligned(pool, sizes[index], 1 << 20, DEFAULT, &huge) != FOREBAY_STATUS_OK);
        EXPECT(forebay_alloc_batch(pool, &sizes[index], 1, DEFAULT, &huge) != FOREBAY_STATUS_OK);
    }
    const uint64_t alignments[4] = {0, 3, UINT64_MAX, 1000};
    for (int index = 0; index < 4; index++) {
        EXPECT_STATUS(forebay_alloc_aligned(pool, 512, alignments[index], DEFAULT, &huge), INVALID);
    }
    EXPECT(forebay_alloc_aligned(pool, 512, (uint64_t)1 << 63, DEFAULT, &huge) != FOREBAY_STATUS_OK);
    REFUSED(forebay_alloc_batch(pool, sizes, SIZE_MAX, DEFAULT, &huge), INVALID, "array");
    OK(forebay_alloc_batch(pool, NULL, 0, DEFAULT, NULL));
}

/* Streams and memory of another device. */
static void wrong_device(forebay_device device, forebay_pool pool) {
    forebay_device far = {0};
    OK(forebay_device_open("sim:7", &far));
    forebay_stream stream = {0};
    OK(forebay_stream_create(far, 0, &stream));
    void *block = NULL, *none = NULL;
    OK(forebay_alloc(pool, 4096, DEFAULT, &block));
    REFUSED(forebay_alloc(pool, 512, stream, &none), FOREBAY_STATUS_WRONG_DEVICE, "a stream of that device");
    REFUSED(forebay_free(pool, block, stream), FOREBAY_STATUS_WRONG_DEVICE, "the stream is of");
    REFUSED(forebay_free_anywhere(block, stream), FOREBAY_STATUS_WRONG_DEVICE, "the stream is of");
    EXPECT_STATUS(forebay_record_use(pool, block, stream), FOREBAY_STATUS_WRONG_DEVICE);
    EXPECT_STATUS(forebay_forget_stream(pool, stream), FOREBAY_STATUS_WRONG_DEVICE);
    EXPECT_STATUS(forebay_stream_synchronize(device, stream), FOREBAY_STATUS_WRONG_DEVICE);
    EXPECT_STATUS(forebay_fill(device, block, 8, 0, 1, stream), FOREBAY_STATUS_WRONG_DEVICE);
    EXPECT(forebay_fill(far, block, 8, 0, 1, DEFAULT) != FOREBAY_STATUS_OK);
    OK(forebay_free(pool, block, DEFAULT));

    forebay_event event = {0};
    forebay_device_info info = {.struct_size = sizeof info};
    OK(forebay_device_describe(device, &info));
    OK(forebay_event_create(device, &event));
    EXPECT_STATUS(forebay_event_record(event, stream), FOREBAY_STATUS_WRONG_DEVICE);
    /* Of the same kind but another machine, it is no event that the stream's device knows. */
    EXPECT_STATUS(forebay_stream_wait_event(stream, event),
                  info.kind == FOREBAY_DEVICE_KIND_SIM ? INVALID : FOREBAY_STATUS_WRONG_DEVICE);
    OK(forebay_event_close(event));

    void *pinned = NULL;
    OK(forebay_pinned_alloc(device, 4096, &pinned));
    EXPECT_STATUS(forebay_pinned_free(far, pinned), INVALID);
    EXPECT_STATUS(forebay_pinned_free(device, (char *)pinned + 8), INVALID);
    OK(forebay_pinned_free(device, pinned));
    EXPECT_STATUS(forebay_pinned_free(device, pinned), INVALID);
    EXPECT(forebay_pinned_alloc(device, UINT64_MAX, &pinned) != FOREBAY_STATUS_OK);
    EXPECT(pinned == NULL);
    OK(forebay_stream_close(stream));
    OK(forebay_device_close(far));
}

/* Texts and figures that are not allowed. */
static void arguments(forebay_device device, forebay_pool pool) {
    forebay_device none = {0};
    forebay_pool made = {0};
    REFUSED(forebay_device_open("gpu", &none), INVALID, "\"gpu\"");
    REFUSED(forebay_device_open("\xff\xfe", &none), INVALID, "UTF-8");
    EXPECT(forebay_device_open("cuda:9999", &none) != FOREBAY_STATUS_OK);
    REFUSED(forebay_device_at(9999, &none), INVALID, "invalid index: 9999; expected 0 to ");
    REFUSED(forebay_pool_create(device, "max_byte:8GiB", &made), FOREBAY_STATUS_CONFIG, "did you mean");
    REFUSED(forebay_pool_create(device, "max_bytes:lots", &made), FOREBAY_STATUS_CONFIG, "max_bytes");
    EXPECT(none.id == 0 && made.id == 0);
    REFUSED(forebay_pool_set(pool, "magazines", "off"), FOREBAY_STATUS_CONFIG, "magazines");
    REFUSED(forebay_pool_set(pool, "nothing", "1"), FOREBAY_STATUS_CONFIG, "nothing");
    EXPECT_STATUS(forebay_tag_leave(), INVALID);
    EXPECT_STATUS(forebay_trace_start(pool, 0), INVALID);
    EXPECT(forebay_trace_start(pool, UINT64_MAX) != FOREBAY_STATUS_OK);
    REFUSED(forebay_trace_stop(pool, "x.csv", NULL), INVALID, "under way");
    OK(forebay_trace_start(pool, 10));
    REFUSED(forebay_trace_start(pool, 10), FOREBAY_STATUS_BUSY, "already");
    EXPECT_STATUS(forebay_trace_stop(pool, "no-such-ending.xyz", NULL), FOREBAY_STATUS_IO);
    OK(forebay_trace_stop(pool, "/dev/shm/forebay-c-test.csv", NULL));
    remove("/dev/shm/forebay-c-test.csv");

    forebay_statistics figures = {.struct_size = 0};
    REFUSED(forebay_pool_statistics(pool, &figures), INVALID, "struct_size");
    figures.struct_size = UINT32_MAX;
    REFUSED(forebay_pool_statistics(pool, &figures), INVALID, "struct_size");

    void *block = NULL;
    OK(forebay_alloc(pool, 4096, DEFAULT, &block));
    EXPECT_STATUS(forebay_fill(device, block, 4096, 0, 3, DEFAULT), INVALID);
    EXPECT_STATUS(forebay_fill(device, (char *)block + 1, 8, 0, 4, DEFAULT), INVALID);
    EXPECT(forebay_fill(device, block, UINT64_MAX, 0, 1, DEFAULT) != FOREBAY_STATUS_OK);
    EXPECT_STATUS(forebay_copy_on_device(device, block, (char *)block + 8, 4000, DEFAULT), INVALID);
    forebay_copy_shape shape = {.struct_size = sizeof shape, .to_side = 2, .to = 8, .from = 8};
    EXPECT_STATUS(forebay_copy(device, &shape, DEFAULT), INVALID);
    OK(forebay_free(pool, block, DEFAULT));

    forebay_arena arena = {0};
    EXPECT(forebay_arena_create(pool, UINT64_MAX, 0, DEFAULT, &arena) != FOREBAY_STATUS_OK);
    OK(forebay_arena_create(pool, 4096, 0, DEFAULT, &arena));
    REFUSED(forebay_arena_alloc(arena, 8192, 0, &block), FOREBAY_STATUS_FULL, "full");
    REFUSED(forebay_arena_alloc(arena, UINT64_MAX, 0, &block), FOREBAY_STATUS_FULL, "full");
    EXPECT_STATUS(forebay_arena_alloc(arena, 8, 3, &block), INVALID);
    EXPECT_STATUS(forebay_arena_rewind(arena, (forebay_checkpoint){0}), FOREBAY_STATUS_LAPSED);
    EXPECT_STATUS(forebay_arena_rewind(arena, (forebay_checkpoint){UINT64_MAX}), FOREBAY_STATUS_LAPSED);
    forebay_arena other = {0};
    forebay_checkpoint checkpoint = {0};
    OK(forebay_arena_create(pool, 4096, 0, DEFAULT, &other));
    OK(forebay_arena_checkpoint(other, &checkpoint));
    EXPECT_STATUS(forebay_arena_rewind(arena, checkpoint), FOREBAY_STATUS_LAPSED);
    OK(forebay_arena_close(other));
    OK(forebay_arena_close(arena));
    REFUSED(forebay_check_abi(FOREBAY_ABI_VERSION + 1), FOREBAY_STATUS_ABI_MISMATCH, "version");
}

/* Closing what others still need leaves it to them. */
static void order_of_closing(forebay_device device) {
    forebay_pool pool = {0};
    forebay_arena arena = {0};
    forebay_stream stream = {0};
    void *block = NULL;
    OK(forebay_pool_create(device, NULL, &pool));
    OK(forebay_stream_create(device, 0, &stream));
    OK(forebay_arena_create(pool, 4096, 0, stream, &arena));
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_stream_close(stream));
    OK(forebay_arena_alloc(arena, 512, 0, &block));
    OK(forebay_arena_close(arena));
}

int main(int count, char **words) {
    forebay_device device = device_of(count, words);
    forebay_pool pool = {0};
    OK(forebay_pool_create(device, NULL, &pool));
    nulls(device, pool);
    handles(device, pool);
    blocks(device, pool);
    wrong_device(device, pool);
    arguments(device, pool);
    order_of_closing(device);
    uint64_t left = 9;
    OK(forebay_pool_close(pool, &left));
    EXPECT(left == 0);
    OK(forebay_device_close(device));
    return 0;
}
