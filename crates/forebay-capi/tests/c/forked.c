/* A child of a process that has opened a device: every call is refused, none hangs, and the parent goes on. Another
 * process forks first and opens afterwards, and is refused nothing. */

#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

/* What PyTorch and the Python package call is not in the header. */
struct pool_number {
    uint64_t first, second;
};
void *forebay_torch_allocate(size_t size, int device, void *stream);
void *forebay_torch_allocate_in(size_t size, int device, void *stream, struct pool_number pool, int capturing);
int forebay_torch_deallocate(void *block);
int forebay_torch_record_stream(void *block, void *stream);
int forebay_torch_find(const void *address, int exact, void *found);
int forebay_torch_empty_cache(struct pool_number pool);
int forebay_torch_retain(int device, struct pool_number pool);
int forebay_torch_begin(int device, struct pool_number pool);
int forebay_torch_stats(int device, void *figures);
int forebay_face_trim(int device);

static const forebay_stream DEFAULT = {0};

/* Made by the parent. */
static forebay_buffer_manager memory;
static forebay_buffer buffer;
static forebay_mapping mapping;
static forebay_transfer transfer;
static char source[4096];

/* Waits for a child, which must have ended well. An alarm ends one that hangs. */
static void wait_for(pid_t child) {
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define FORKED(call) EXPECT_STATUS(call, FOREBAY_STATUS_FORKED)

static void be_refused(forebay_device device, forebay_pool pool, forebay_stream stream, forebay_event recorded,
                       void *block, void *pytorch) {
    void *other = NULL;
    char *text = NULL;
    forebay_device opened = {0};
    forebay_statistics figures = {.struct_size = sizeof figures};
    alarm(20);
    FORKED(forebay_alloc(pool, 512, DEFAULT, &other));
    EXPECT(strstr(forebay_last_error(), "forked") != NULL);
    FORKED(forebay_alloc(pool, 512, stream, &other));
    FORKED(forebay_free(pool, block, DEFAULT));
    FORKED(forebay_free_sized(pool, block, 4096, stream));
    FORKED(forebay_free_anywhere(block, DEFAULT));
    FORKED(forebay_free_synchronized(pool, block));
    FORKED(forebay_record_use(pool, block, stream));
    FORKED(forebay_pool_statistics(pool, &figures));
    FORKED(forebay_pool_snapshot(pool, &text));
    FORKED(forebay_pool_trim(pool, 0, NULL));
    FORKED(forebay_stream_synchronize(device, stream));
    FORKED(forebay_stream_close(stream));
    FORKED(forebay_tag_enter("child"));
    FORKED(forebay_device_open("host", &opened));
    FORKED(forebay_device_best(&opened));
    uint32_t count = 0;
    forebay_event event = {0};
    FORKED(forebay_device_count(&count));
    FORKED(forebay_device_at(0, &opened));
    FORKED(forebay_event_create(device, &event));
    FORKED(forebay_event_synchronize(recorded));
    FORKED(forebay_stream_wait_event(stream, recorded));
    FORKED(forebay_event_close(recorded));
    FORKED(forebay_pinned_alloc(device, 4096, &other));
    FORKED(forebay_upload(device, block, source, 1, DEFAULT, NULL));
    FORKED(forebay_upload_async(device, block, source, 1, DEFAULT, NULL, &transfer));
    FORKED(forebay_transfer_wait(transfer));
    FORKED(forebay_transfer_cancel(transfer, NULL));
    FORKED(forebay_transfer_close(transfer));
    FORKED(forebay_buffer_create(memory, 1, &buffer));
    FORKED(forebay_buffer_map(buffer, 0, 1, FOREBAY_ACCESS_READ, &mapping, &other));
    FORKED(forebay_buffer_unmap(buffer, mapping));
    FORKED(forebay_buffer_close(buffer));
    FORKED(forebay_live_buffers((forebay_buffer_manager){0}, &text));
    FORKED(forebay_buffer_manager_close(memory));
    FORKED(forebay_pool_close(pool, NULL));
    FORKED(forebay_device_close(device));
    if (pytorch != NULL) {
        /* The thread that forked had it at hand. */
        EXPECT(forebay_torch_alloc(1 << 20, 0, NULL) == NULL);
        EXPECT(strstr(forebay_last_error(), "forked") != NULL);
        forebay_torch_free(pytorch, 1 << 20, 0, NULL);
        EXPECT(strstr(forebay_last_error(), "forked") != NULL);
        struct pool_number none = {0}, pool_of_graph = {1, 0};
        EXPECT(forebay_torch_allocate(1 << 20, 0, NULL) == NULL);
        EXPECT(forebay_torch_allocate_in(1 << 20, 0, NULL, pool_of_graph, 0) == NULL);
        EXPECT(forebay_torch_deallocate(pytorch) == -1);
        EXPECT(forebay_torch_record_stream(pytorch, NULL) == -1);
        EXPECT(forebay_torch_find(pytorch, 1, NULL) == -1);
        EXPECT(forebay_torch_empty_cache(none) == -1);
        EXPECT(forebay_torch_retain(0, pool_of_graph) == -1);
        EXPECT(forebay_torch_begin(0, pool_of_graph) == -1);
        EXPECT(forebay_torch_stats(0, NULL) == -1);
        EXPECT(forebay_face_trim(0) == -1);
        EXPECT(strstr(forebay_last_error(), "forked") != NULL);
    }
    _exit(0);
}

/* Whether a child that opens a device itself can use it. */
static void use(const char *name) {
    forebay_device device = {0};
    forebay_pool pool = {0};
    void *block = NULL;
    alarm(20);
    OK(forebay_device_open(name, &device));
    OK(forebay_pool_create(device, NULL, &pool));
    OK(forebay_alloc(pool, 1 << 20, DEFAULT, &block));
    OK(forebay_free(pool, block, DEFAULT));
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_device_close(device));
    _exit(0);
}

int main(int count, char **words) {
    const char *name = count > 1 ? words[1] : "host";
    pid_t early = fork();
    if (early == 0) {
        use(name);
    }
    wait_for(early);

    forebay_device device = device_of(count, words);
    forebay_pool pool = {0};
    forebay_stream stream = {0};
    void *block = NULL, *again = NULL;
    OK(forebay_pool_create(device, NULL, &pool));
    OK(forebay_stream_create(device, 0, &stream));
    OK(forebay_alloc(pool, 4096, stream, &block));
    void *mapped = NULL;
    OK(forebay_buffer_manager_over(pool, &memory));
    OK(forebay_buffer_create(memory, 4096, &buffer));
    OK(forebay_buffer_map(buffer, 0, 4096, FOREBAY_ACCESS_UPDATE, &mapping, &mapped));
    OK(forebay_upload_async(device, block, source, sizeof source, stream, NULL, &transfer));
    forebay_event recorded = {0};
    OK(forebay_event_create(device, &recorded));
    OK(forebay_event_record(recorded, stream));
    void *pytorch = strcmp(name, "cuda:0") == 0 ? forebay_torch_alloc(1 << 20, 0, NULL) : NULL;
    pid_t child = fork();
    if (child == 0) {
        be_refused(device, pool, stream, recorded, block, pytorch);
    }
    wait_for(child);
    OK(forebay_transfer_close(transfer));
    memset(mapped, 1, 4096);
    OK(forebay_buffer_unmap(buffer, mapping));
    OK(forebay_buffer_close(buffer));
    OK(forebay_buffer_manager_close(memory));

    if (pytorch != NULL) {
        /* The parent has what it had; and the process's pool is one, whoever asks for it. */
        forebay_pool shared = {0};
        OK(forebay_pool_of_process(device, &shared));
        OK(forebay_free(shared, pytorch, DEFAULT));
        EXPECT(forebay_torch_alloc(1 << 20, 0, NULL) == pytorch);
        forebay_torch_free(pytorch, 1 << 20, 0, NULL);
        EXPECT_STATUS(forebay_free(shared, pytorch, DEFAULT), FOREBAY_STATUS_DOUBLE_FREE);
        OK(forebay_pool_close(shared, NULL));
    }
    OK(forebay_free(pool, block, stream));
    OK(forebay_alloc(pool, 4096, stream, &again));
    EXPECT(again == block);
    OK(forebay_free(pool, again, stream));
    OK(forebay_event_close(recorded));
    OK(forebay_stream_close(stream));
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_device_close(device));
    return 0;
}
