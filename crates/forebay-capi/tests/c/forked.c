/* A child of a process that has opened a device: every call is refused, none hangs, and the parent goes on. Another
 * process forks first and opens afterwards, and is refused nothing. */

#define _POSIX_C_SOURCE 200809L

#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

/* What PyTorch and the Python package call is not in the header. */
void forebay_torch_reset(void);
void *forebay_torch_base_allocation(void *pointer, size_t *size);
void forebay_torch_record_stream(void *pointer, void *stream);
int forebay_face_trim(int device);

static const forebay_stream DEFAULT = {0};

/* Waits for a child, which must have ended well. An alarm ends one that hangs. */
static void wait_for(pid_t child) {
    int status = 0;
    EXPECT(child > 0 && waitpid(child, &status, 0) == child);
    EXPECT(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

#define FORKED(call) EXPECT_STATUS(call, FOREBAY_STATUS_FORKED)

static void be_refused(forebay_device device, forebay_pool pool, forebay_stream stream, void *block, void *pytorch) {
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
    FORKED(forebay_pool_close(pool, NULL));
    FORKED(forebay_device_close(device));
    if (pytorch != NULL) {
        /* The thread that forked had it at hand. */
        EXPECT(forebay_torch_alloc(1 << 20, 0, NULL) == NULL);
        EXPECT(strstr(forebay_last_error(), "forked") != NULL);
        forebay_torch_free(pytorch, 1 << 20, 0, NULL);
        EXPECT(strstr(forebay_last_error(), "forked") != NULL);
        size_t size = 1;
        forebay_torch_reset();
        EXPECT(forebay_torch_base_allocation(pytorch, &size) == NULL && size == 0);
        forebay_torch_record_stream(pytorch, NULL);
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
    void *pytorch = strcmp(name, "cuda:0") == 0 ? forebay_torch_alloc(1 << 20, 0, NULL) : NULL;
    pid_t child = fork();
    if (child == 0) {
        be_refused(device, pool, stream, block, pytorch);
    }
    wait_for(child);

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
    OK(forebay_stream_close(stream));
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_device_close(device));
    return 0;
}
