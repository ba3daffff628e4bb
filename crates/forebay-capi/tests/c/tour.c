/* Every function of forebay.h once, used as it should be. */

/* For setenv. */
#define _POSIX_C_SOURCE 200809L

#include "expect.h"

static const forebay_stream DEFAULT = {0};

static forebay_statistics statistics(forebay_pool pool) {
    forebay_statistics figures = {.struct_size = sizeof figures};
    OK(forebay_pool_statistics(pool, &figures));
    EXPECT(figures.struct_size == sizeof figures);
    return figures;
}

static uint32_t kind_of(const char *name) {
    static const struct {
        const char *name;
        forebay_device_kind kind;
    } kinds[] = {
        {"host", FOREBAY_DEVICE_KIND_HOST}, {"sim", FOREBAY_DEVICE_KIND_SIM},       {"cuda", FOREBAY_DEVICE_KIND_CUDA},
        {"hip", FOREBAY_DEVICE_KIND_HIP},   {"opencl", FOREBAY_DEVICE_KIND_OPENCL},
    };
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds; i++) {
        if (strncmp(name, kinds[i].name, strlen(kinds[i].name)) == 0) {
            return kinds[i].kind;
        }
    }
    return FOREBAY_DEVICE_KIND_OTHER;
}

static void devices(forebay_device device, const char *name) {
    forebay_device_info info = {.struct_size = sizeof info};
    OK(forebay_device_describe(device, &info));
    EXPECT(info.total_bytes > 0 && info.free_bytes <= info.total_bytes);
    EXPECT(info.alignment >= 1 && strlen(info.name) > 0);
    EXPECT(info.capabilities & FOREBAY_CAN_DATA);
    const uint32_t kind = kind_of(name);
    EXPECT(info.kind == kind);

    forebay_device again = {0}, best = {0};
    OK(forebay_device_open(name, &again));
    EXPECT(again.id != device.id);
    OK(forebay_device_close(again));

    /* FOREBAY_DEVICE says which is best; without it the first of the list is, unless that is OpenCL on the processor. */
    EXPECT(setenv("FOREBAY_DEVICE", name, 1) == 0);
    OK(forebay_device_best(&best));
    OK(forebay_device_synchronize(best));
    OK(forebay_device_describe(best, &info));
    EXPECT(info.kind == kind);
    OK(forebay_device_close(best));
    EXPECT(setenv("FOREBAY_DEVICE", "vulkan:0", 1) == 0);
    REFUSED(forebay_device_best(&best), FOREBAY_STATUS_INVALID_ARGUMENT, "opencl:N");
    EXPECT(unsetenv("FOREBAY_DEVICE") == 0);
    OK(forebay_device_best(&best));
    OK(forebay_device_describe(best, &info));
    const uint32_t best_kind = info.kind;
    OK(forebay_device_close(best));

    /* The devices of this machine, by kind and number; the host last. */
    uint32_t devices = 0, previous = FOREBAY_DEVICE_KIND_OTHER, number = 0;
    int found = kind == FOREBAY_DEVICE_KIND_SIM;
    OK(forebay_device_count(&devices));
    EXPECT(devices >= 1);
    for (uint32_t index = 0; index < devices; index++) {
        forebay_device listed = {0};
        OK(forebay_device_at(index, &listed));
        OK(forebay_device_describe(listed, &info));
        EXPECT((info.kind == FOREBAY_DEVICE_KIND_HOST) == (index == devices - 1));
        EXPECT(index > 0 || info.kind == best_kind ||
               (info.kind == FOREBAY_DEVICE_KIND_OPENCL && best_kind == FOREBAY_DEVICE_KIND_HOST));
        number = info.kind == previous ? number + 1 : 0;
        EXPECT(info.ordinal == number && info.total_bytes > 0);
        found |= info.kind == kind;
        previous = info.kind;
        OK(forebay_device_close(listed));
    }
    EXPECT(found);
    REFUSED(forebay_device_at(devices, &best), FOREBAY_STATUS_INVALID_ARGUMENT, "index");
}

static void blocks(forebay_pool pool) {
    void *one = NULL, *two = NULL, *none = &one;
    OK(forebay_alloc(pool, 1 << 20, DEFAULT, &one));
    OK(forebay_alloc(pool, 1000, DEFAULT, &two));
    EXPECT(one != NULL && two != NULL && one != two);
    EXPECT((uintptr_t)one % 512 == 0);
    OK(forebay_alloc(pool, 0, DEFAULT, &none));
    EXPECT(none == NULL);
    OK(forebay_free(pool, NULL, DEFAULT));

    forebay_block_info info = {.struct_size = sizeof info};
    OK(forebay_block_query(pool, two, &info));
    EXPECT(info.address == (uintptr_t)two && info.requested_bytes == 1000 && info.size_bytes >= 1000);
    EXPECT(sizeof info.generation == sizeof(uint64_t) && info.generation > 0 && info.reserved == 0);
    OK(forebay_free(pool, one, DEFAULT));
    OK(forebay_free_sized(pool, two, 1000, DEFAULT));

    void *aligned = NULL;
    OK(forebay_alloc_aligned(pool, 100, 1 << 16, DEFAULT, &aligned));
    EXPECT((uintptr_t)aligned % (1 << 16) == 0);
    OK(forebay_free_anywhere(aligned, DEFAULT));

    const uint64_t sizes[3] = {700, 3 << 20, 0};
    void *batch[3] = {NULL, NULL, &info};
    OK(forebay_alloc_batch(pool, sizes, 3, DEFAULT, batch));
    EXPECT(batch[0] != NULL && batch[1] != NULL && batch[2] == NULL);
    OK(forebay_free(pool, batch[0], DEFAULT));
    OK(forebay_free(pool, batch[1], DEFAULT));
    EXPECT(statistics(pool).blocks == 0);
}

static void streams(forebay_device device, forebay_pool pool) {
    forebay_stream one = {0}, two = {0};
    OK(forebay_stream_create(device, 0, &one));
    OK(forebay_stream_create(device, 1, &two));
    void *block = NULL, *raw = NULL;
    OK(forebay_stream_raw(one, &raw));
    EXPECT(raw != NULL);
    OK(forebay_alloc(pool, 4096, one, &block));
    OK(forebay_fill(device, block, 4096, 0xAB, 1, two));
    OK(forebay_record_use(pool, block, two));
    OK(forebay_free(pool, block, one));
    OK(forebay_pool_process_deferred(pool));
    int32_t done = -1;
    OK(forebay_stream_synchronize(device, two));
    OK(forebay_stream_query((forebay_device){0}, two, &done));
    EXPECT(done == 1);
    OK(forebay_stream_synchronize((forebay_device){0}, one));
    OK(forebay_forget_stream(pool, two));
    OK(forebay_stream_close(one));
    OK(forebay_stream_close(two));
}

/* A copy on one stream waits for a fill on another. */
static void events(forebay_device device, forebay_pool pool) {
    enum { BYTES = 8 << 20 };
    forebay_stream filling = {0}, copying = {0};
    forebay_event filled = {0};
    int32_t done = -1;
    void *block = NULL, *back = NULL;
    OK(forebay_stream_create(device, 0, &filling));
    OK(forebay_stream_create(device, 0, &copying));
    OK(forebay_event_create(device, &filled));
    OK(forebay_event_query(filled, &done));
    EXPECT(done == 1);
    OK(forebay_event_synchronize(filled));
    OK(forebay_pinned_alloc(device, BYTES, &back));
    EXPECT(back != NULL && (uintptr_t)back % 4096 == 0);
    memset(back, 0, BYTES);
    OK(forebay_alloc(pool, BYTES, filling, &block));
    for (unsigned round = 1; round <= 3; round++) {
        OK(forebay_fill(device, block, BYTES, round, 1, filling));
        OK(forebay_event_record(filled, filling));
        OK(forebay_stream_wait_event(copying, filled));
        OK(forebay_copy_to_host(device, back, block, BYTES, copying));
        OK(forebay_stream_synchronize(device, copying));
        EXPECT(((unsigned char *)back)[BYTES - 1] == round);
        OK(forebay_event_query(filled, &done));
        EXPECT(done == 1);
    }
    OK(forebay_stream_wait_event(DEFAULT, filled));
    OK(forebay_event_record(filled, DEFAULT));
    OK(forebay_event_synchronize(filled));
    OK(forebay_event_close(filled));
    OK(forebay_free(pool, block, filling));
    OK(forebay_pinned_free(device, back));
    OK(forebay_pinned_free(device, NULL));
    OK(forebay_pinned_alloc(device, 0, &back));
    EXPECT(back == NULL);
    OK(forebay_stream_close(filling));
    OK(forebay_stream_close(copying));
}

/* What a program keeps that it can do without, and what its callbacks were told. */
struct cache {
    forebay_pool pool;
    void *block;
    int shortages;
    forebay_pressure highest;
};

static int32_t empty_cache(void *context, const forebay_shortage *shortage) {
    struct cache *cache = context;
    EXPECT(shortage->struct_size == sizeof *shortage);
    EXPECT(shortage->requested_bytes == 48 << 20 && shortage->limit_bytes == 64 << 20);
    EXPECT(shortage->live_bytes <= shortage->held_bytes && shortage->needed_bytes >= 48 << 20);
    cache->shortages++;
    if (cache->block == NULL) {
        return 0;
    }
    OK(forebay_free(cache->pool, cache->block, DEFAULT));
    cache->block = NULL;
    return 1;
}

static void note_pressure(void *context, forebay_pressure level, uint64_t held_bytes) {
    struct cache *cache = context;
    EXPECT(held_bytes <= 64 << 20);
    cache->highest = level > cache->highest ? level : cache->highest;
}

/* A request that does not fit is served after a callback has freed a block, and refused where it has none. */
static void callbacks(forebay_device device) {
    struct cache cache = {.highest = FOREBAY_PRESSURE_LOW};
    void *large = NULL, *none = NULL;
    OK(forebay_pool_create_with_callbacks(device, "max_bytes:64MiB", empty_cache, note_pressure, &cache, &cache.pool));
    OK(forebay_alloc(cache.pool, 32 << 20, DEFAULT, &cache.block));
    EXPECT(cache.shortages == 0);
    OK(forebay_alloc(cache.pool, 48 << 20, DEFAULT, &large));
    EXPECT(cache.shortages == 1 && cache.block == NULL);
    REFUSED(forebay_alloc(cache.pool, 48 << 20, DEFAULT, &none), FOREBAY_STATUS_OUT_OF_MEMORY, "requested");
    EXPECT(cache.shortages == 2);
    OK(forebay_free(cache.pool, large, DEFAULT));
    OK(forebay_alloc(cache.pool, 64 << 20, DEFAULT, &large));
    EXPECT(cache.highest >= FOREBAY_PRESSURE_MODERATE);
    OK(forebay_free(cache.pool, large, DEFAULT));
    OK(forebay_pool_close(cache.pool, NULL));
    OK(forebay_pool_create_with_callbacks(device, NULL, NULL, NULL, NULL, &cache.pool));
    OK(forebay_pool_close(cache.pool, NULL));
}

static void copies(forebay_device device, forebay_pool pool) {
    enum { COUNT = 1000 };
    static uint32_t there[COUNT], back[COUNT];
    for (uint32_t index = 0; index < COUNT; index++) {
        there[index] = index * 7;
    }
    void *first = NULL, *second = NULL;
    OK(forebay_alloc(pool, sizeof there, DEFAULT, &first));
    OK(forebay_alloc(pool, sizeof there, DEFAULT, &second));
    OK(forebay_copy_to_device(device, first, there, sizeof there, DEFAULT));
    OK(forebay_copy_on_device(device, second, first, sizeof there, DEFAULT));
    OK(forebay_fill(device, second, 8, 0x01020304, 4, DEFAULT));
    OK(forebay_copy_to_host(device, back, second, sizeof there, DEFAULT));
    OK(forebay_stream_synchronize(device, DEFAULT));
    EXPECT(back[0] == 0x01020304 && back[1] == 0x01020304);
    EXPECT(memcmp(back + 2, there + 2, sizeof there - 8) == 0);

    /* Two rows of two numbers each, out of rows of four. */
    const forebay_copy_shape shape = {
        .struct_size = sizeof shape,
        .to_side = FOREBAY_SIDE_HOST,
        .from_side = FOREBAY_SIDE_DEVICE,
        .to = (uintptr_t)back,
        .to_row_bytes = 8,
        .from = (uintptr_t)first,
        .from_row_bytes = 16,
        .width_bytes = 8,
        .rows = 2,
        .slices = 1,
    };
    OK(forebay_copy(device, &shape, DEFAULT));
    OK(forebay_stream_synchronize(device, DEFAULT));
    EXPECT(back[0] == there[0] && back[1] == there[1] && back[2] == there[4] && back[3] == there[5]);
    OK(forebay_free(pool, first, DEFAULT));
    OK(forebay_free(pool, second, DEFAULT));
}

static void upkeep(forebay_pool pool) {
    uint64_t bytes = 0;
    forebay_pressure level = FOREBAY_PRESSURE_CRITICAL;
    OK(forebay_pool_limit(pool, &bytes));
    EXPECT(bytes == 256 << 20);
    OK(forebay_pool_pressure(pool, &level));
    EXPECT(level == FOREBAY_PRESSURE_LOW);
    OK(forebay_pool_set(pool, "max_bytes", "128MiB"));
    OK(forebay_pool_limit(pool, &bytes));
    EXPECT(bytes == 128 << 20);
    char *value = NULL;
    OK(forebay_pool_get(pool, "max_bytes", &value));
    EXPECT(strcmp(value, "128MiB") == 0);
    forebay_string_free(value);

    const uint64_t sizes[2] = {8 << 20, 4096}, counts[2] = {2, 10};
    forebay_warm_up_result warm = {.struct_size = sizeof warm};
    OK(forebay_pool_warm_up(pool, sizes, counts, 2, DEFAULT, &warm));
    EXPECT(warm.complete == 1 && warm.had_blocks == 12 && warm.had_bytes == warm.asked_bytes);
    OK(forebay_pool_warm_up(pool, sizes, counts, 2, DEFAULT, NULL));
    EXPECT(statistics(pool).held_bytes >= 16 << 20);
    OK(forebay_pool_defragment(pool));
    OK(forebay_pool_collect(pool, 1000, NULL));
    OK(forebay_pool_trim(pool, 4 << 20, &bytes));
    EXPECT(bytes > 0);
    OK(forebay_pool_empty_cache(pool, NULL));
    EXPECT(statistics(pool).held_bytes == 0);
}

static void arenas(forebay_pool pool) {
    forebay_arena arena = {0};
    OK(forebay_arena_create(pool, 1 << 20, 4 << 20, DEFAULT, &arena));
    forebay_checkpoint start = {0}, here = {0}, again = {0};
    OK(forebay_arena_checkpoint(arena, &start));
    void *block = NULL, *same = NULL;
    OK(forebay_arena_alloc(arena, 1000, 0, &block));
    EXPECT(block != NULL && (uintptr_t)block % 512 == 0);
    OK(forebay_arena_checkpoint(arena, &here));
    OK(forebay_arena_alloc(arena, 100, 4096, &same));
    EXPECT((uintptr_t)same % 4096 == 0);
    for (int round = 0; round < 10; round++) {
        OK(forebay_arena_rewind(arena, here));
        OK(forebay_arena_checkpoint(arena, &again));
        EXPECT(again.id == here.id);
        OK(forebay_arena_alloc(arena, 512, 0, &same));
    }
    OK(forebay_arena_rewind(arena, start));
    REFUSED(forebay_arena_rewind(arena, here), FOREBAY_STATUS_LAPSED, "taken back");
    OK(forebay_arena_alloc(arena, 1000, 0, &same));
    EXPECT(same == block);
    OK(forebay_arena_alloc(arena, 2 << 20, 0, &same));
    forebay_arena_usage usage = {.struct_size = sizeof usage};
    OK(forebay_arena_statistics(arena, &usage));
    EXPECT(usage.chunks >= 2 && usage.used_bytes >= (2 << 20) + 1000);
    OK(forebay_arena_reset(arena));
    OK(forebay_arena_statistics(arena, &usage));
    EXPECT(usage.used_bytes == 0 && usage.high_water_bytes >= 2 << 20);
    OK(forebay_arena_close(arena));
    EXPECT(statistics(pool).blocks == 0);
}

static void tags_and_snapshots(forebay_pool pool) {
    void *block = NULL;
    OK(forebay_tag_enter("weights"));
    OK(forebay_tag_enter("first layer"));
    OK(forebay_alloc(pool, 2048, DEFAULT, &block));
    OK(forebay_tag_leave());
    OK(forebay_tag_leave());
    char *json = NULL, *summary = NULL;
    OK(forebay_pool_snapshot(pool, &json));
    EXPECT(strncmp(json, "{\"schema\":\"forebay.pool.v1\"", 26) == 0);
    EXPECT(strstr(json, "first layer") != NULL);
    forebay_string_free(json);
    OK(forebay_pool_summary(pool, &summary));
    EXPECT(strstr(summary, "live") != NULL);
    forebay_string_free(summary);
    forebay_string_free(NULL);
    OK(forebay_free(pool, block, DEFAULT));
}

static void traces(forebay_pool pool, const char *folder) {
    char path[4096];
    snprintf(path, sizeof path, "%s/recorded.csv", folder);
    void *block = NULL;
    uint64_t events = 0;
    OK(forebay_trace_start(pool, 100));
    for (int round = 0; round < 3; round++) {
        OK(forebay_alloc(pool, 3 << 20, DEFAULT, &block));
        OK(forebay_free(pool, block, DEFAULT));
    }
    REFUSED(forebay_trace_stop(pool, "/no/such/folder/x.csv", NULL), FOREBAY_STATUS_IO, "/no/such/folder");
    OK(forebay_trace_stop(pool, path, &events));
    EXPECT(events == 6);
    FILE *file = fopen(path, "r");
    EXPECT(file != NULL);
    char line[64] = "";
    EXPECT(fgets(line, sizeof line, file) != NULL);
    EXPECT(strcmp(line, "op,id,bytes,stream\n") == 0);
    fclose(file);
    remove(path);
}

__attribute__((noinline)) void *allocate_weights(forebay_pool pool) {
    void *block = NULL;
    OK(forebay_alloc(pool, 1 << 20, DEFAULT, &block));
    return block;
}

__attribute__((noinline)) void *allocate_state(forebay_pool pool) {
    void *block = NULL;
    OK(forebay_alloc(pool, 2 << 20, DEFAULT, &block));
    return block;
}

/* A refusal is described in a file, which the error names: the text, and the snapshot with the refused request beside it. */
static void refusals(forebay_device device, const char *folder) {
    char path[4096], settings[4200], line[4096];
    snprintf(path, sizeof path, "%s/oom.txt", folder);
    snprintf(settings, sizeof settings, "max_bytes:4MiB,oom_report:%s", path);
    forebay_pool pool;
    void *none = NULL;
    OK(forebay_pool_create(device, settings, &pool));
    REFUSED(forebay_alloc(pool, 8 << 20, DEFAULT, &none), FOREBAY_STATUS_OUT_OF_MEMORY, "oom.txt describes this refusal");
    FILE *text = fopen(path, "r");
    EXPECT(text != NULL && fgets(line, sizeof line, text) != NULL && strstr(line, "refused a request") != NULL);
    fclose(text);
    snprintf(path, sizeof path, "%s/oom.txt.json", folder);
    FILE *json = fopen(path, "r");
    EXPECT(json != NULL);
    fclose(json);
    OK(forebay_pool_close(pool, NULL));
}

/* With the functions that allocated, and with transfers. */
static void traces_with_stacks(forebay_device device, forebay_pool pool, const char *folder) {
    static char page[1 << 20], from[100000];
    char path[4096];
    snprintf(path, sizeof path, "%s/recorded.json", folder);
    OK(forebay_upload(device, NULL, NULL, 0, DEFAULT, NULL));
    OK(forebay_pool_set(pool, "stacks", "on"));
    OK(forebay_trace_start(pool, 100));
    void *weights = allocate_weights(pool), *state = allocate_state(pool);
    OK(forebay_upload(device, weights, from, sizeof from, DEFAULT, NULL));
    OK(forebay_free(pool, weights, DEFAULT));
    OK(forebay_free(pool, state, DEFAULT));
    uint64_t events = 0;
    OK(forebay_trace_stop(pool, path, &events));
    OK(forebay_pool_set(pool, "stacks", "off"));
    EXPECT(events == 4);
    FILE *file = fopen(path, "r");
    EXPECT(file != NULL);
    page[fread(page, 1, sizeof page - 1, file)] = 0;
    fclose(file);
    remove(path);
    EXPECT(strstr(page, "\"stack\":\"allocate_weights") && strstr(page, "\"stack\":\"allocate_state"));
    const char *upload = strstr(page, "\"cat\":\"transfer\"");
    EXPECT(upload && strstr(upload, "100000") && !strstr(upload + 1, "\"cat\":\"transfer\""));
}

int main(int count, char **words) {
    forebay_device device = device_of(count, words);
    char version[32];
    snprintf(version, sizeof version, "%d.%d.%d", FOREBAY_VERSION_MAJOR, FOREBAY_VERSION_MINOR, FOREBAY_VERSION_PATCH);
    EXPECT(strcmp(forebay_version(), version) == 0 && forebay_abi_version() == FOREBAY_ABI_VERSION);
    devices(device, count > 1 ? words[1] : "host");

    forebay_pool pool = {0}, shared = {0}, same = {0};
    OK(forebay_pool_create(device, "max_bytes:256MiB", &pool));
    blocks(pool);
    streams(device, pool);
    events(device, pool);
    callbacks(device);
    copies(device, pool);
    upkeep(pool);
    arenas(pool);
    tags_and_snapshots(pool);
    traces(pool, count > 2 ? words[2] : ".");
    refusals(device, count > 2 ? words[2] : ".");
    traces_with_stacks(device, pool, count > 2 ? words[2] : ".");

    OK(forebay_pool_of_process(device, &shared));
    OK(forebay_pool_of_process(device, &same));
    void *block = NULL;
    OK(forebay_alloc(shared, 512, DEFAULT, &block));
    OK(forebay_free(same, block, DEFAULT));
    OK(forebay_pool_close(same, NULL));
    int32_t had = 0;
    OK(forebay_pool_forget_process(device, &had));
    EXPECT(had == 1);
    OK(forebay_pool_close(shared, NULL));

    uint64_t left = 9;
    OK(forebay_alloc(pool, 512, DEFAULT, &block));
    OK(forebay_pool_close(pool, &left));
    EXPECT(left == 1);
    OK(forebay_device_close(device));
    EXPECT(strcmp(forebay_status_name(5), "FOREBAY_STATUS_DOUBLE_FREE") == 0);
    return 0;
}
