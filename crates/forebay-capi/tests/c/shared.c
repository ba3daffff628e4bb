/* Shared buffers: contents that several processes have by name, what is refused, and the lock. */

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <sys/wait.h>
#include <unistd.h>

#include "expect.h"

#define INVALID FOREBAY_STATUS_INVALID_ARGUMENT
#define HANDLE FOREBAY_STATUS_INVALID_HANDLE
#define TIMED_OUT FOREBAY_STATUS_TIMED_OUT

static char name[64];

static forebay_buffer_manager manager(forebay_device device) {
    forebay_buffer_manager memory = {0};
    OK(forebay_buffer_manager_create(device, &memory));
    return memory;
}

static void contents(forebay_buffer_manager memory) {
    forebay_shared created = {0}, opened = {0}, same = {0};
    OK(forebay_shared_create(memory, name, "u32", 400, &created));
    OK(forebay_shared_open(memory, name, "u32", &opened));
    OK(forebay_shared_create_or_open(memory, name, "u32", 400, &same));
    uint32_t value = 7, found[3] = {9, 9, 9};
    OK(forebay_shared_write(created, 40, &value, sizeof value));
    OK(forebay_shared_read(opened, 36, found, sizeof found));
    EXPECT(found[0] == 0 && found[1] == 7 && found[2] == 0);
    OK(forebay_shared_read(opened, 400, NULL, 0));

    forebay_shared_info info = {.struct_size = sizeof info};
    OK(forebay_shared_describe(opened, &info));
    EXPECT(info.size_bytes == 400 && info.element_bytes == 4 && strcmp(info.type_name, "u32") == 0);
    EXPECT(strcmp(info.name, name) == 0 && info.creator_pid == (uint32_t)getpid() && info.creator_uid == geteuid());
    void *here = NULL, *there = NULL;
    OK(forebay_shared_address(created, &here));
    OK(forebay_shared_address(opened, &there));
    EXPECT(here != NULL && there != NULL && here != there);
    const forebay_status reached = forebay_shared_host_address(opened, &there);
    EXPECT(reached == FOREBAY_STATUS_OK ? ((uint32_t *)there)[10] == 7 : there == NULL);
    EXPECT(reached == FOREBAY_STATUS_OK || reached == FOREBAY_STATUS_UNSUPPORTED);

    OK(forebay_shared_close(created));
    OK(forebay_shared_close(same));
    OK(forebay_shared_read(opened, 40, found, 4));
    EXPECT(found[0] == 7);
    OK(forebay_shared_close(opened));
    REFUSED(forebay_shared_open(memory, name, "u32", &opened), FOREBAY_STATUS_NOT_FOUND, "no living process");
}

static void refused(forebay_buffer_manager memory) {
    forebay_shared shared = {0}, other = {1};
    unsigned char bytes[8] = {0};
    OK(forebay_shared_create(memory, name, NULL, 16, &shared));
    REFUSED(forebay_shared_create(memory, name, NULL, 16, &other), FOREBAY_STATUS_NAME_TAKEN, "already");
    EXPECT(other.id == 0);
    REFUSED(forebay_shared_open(memory, name, "samples.v2", &other), FOREBAY_STATUS_WRONG_TYPE, "u8 of 1 B");
    REFUSED(forebay_shared_create_or_open(memory, name, "u8", 17, &other), FOREBAY_STATUS_WRONG_SIZE, "not 17");
    REFUSED(forebay_shared_create(memory, "f-64", "f64", 12, &other), INVALID, "multiple of 8 B");
    REFUSED(forebay_shared_create(memory, "a b", NULL, 12, &other), INVALID, "cannot name");
    REFUSED(forebay_shared_create(memory, NULL, NULL, 12, &other), INVALID, "name");
    REFUSED(forebay_shared_create(memory, name, NULL, 12, NULL), INVALID, "shared");
    REFUSED(forebay_shared_read(shared, 9, bytes, 8), INVALID, "at most 7 B from there on, as the buffer has 16 B");
    REFUSED(forebay_shared_write(shared, UINT64_MAX, bytes, 8), INVALID, "as the buffer has 16 B");
    REFUSED(forebay_shared_write(shared, 0, NULL, 8), INVALID, "from");
    REFUSED(forebay_shared_unlock(shared), INVALID, "does not hold");
    OK(forebay_shared_close(shared));
    EXPECT_STATUS(forebay_shared_close(shared), HANDLE);
    EXPECT_STATUS(forebay_shared_read(shared, 0, bytes, 1), HANDLE);
    EXPECT_STATUS(forebay_shared_lock(shared, 0), HANDLE);
}

static void *count_up(void *at) {
    const forebay_shared shared = *(const forebay_shared *)at;
    for (int round = 0; round < 200; round++) {
        uint64_t value = 0;
        OK(forebay_shared_lock(shared, -1));
        OK(forebay_shared_read(shared, 0, &value, sizeof value));
        value++;
        OK(forebay_shared_write(shared, 0, &value, sizeof value));
        OK(forebay_shared_unlock(shared));
    }
    return NULL;
}

static atomic_bool waits;

static void *lock_in_vain(void *at) {
    const forebay_shared shared = *(const forebay_shared *)at;
    REFUSED(forebay_shared_lock(shared, 20), TIMED_OUT, "another holds the lock");
    EXPECT_STATUS(forebay_shared_unlock(shared), INVALID);
    atomic_store(&waits, true);
    /* Until the handle is closed under it. */
    EXPECT_STATUS(forebay_shared_lock(shared, -1), HANDLE);
    return NULL;
}

static void locks(forebay_buffer_manager memory) {
    forebay_shared shared = {0}, again = {0};
    OK(forebay_shared_create(memory, name, "u64", 8, &shared));
    OK(forebay_shared_open(memory, name, "u64", &again));
    pthread_t threads[4];
    for (int index = 0; index < 4; index++) {
        EXPECT(pthread_create(&threads[index], NULL, count_up, index % 2 ? &shared : &again) == 0);
    }
    for (int index = 0; index < 4; index++) {
        EXPECT(pthread_join(threads[index], NULL) == 0);
    }
    uint64_t value = 0;
    OK(forebay_shared_read(shared, 0, &value, sizeof value));
    EXPECT(value == 800);

    OK(forebay_shared_lock(shared, 0));
    REFUSED(forebay_shared_lock(shared, 0), FOREBAY_STATUS_BUSY, "already");
    REFUSED(forebay_shared_lock(again, 20), TIMED_OUT, "after 20 ms");
    EXPECT(pthread_create(&threads[0], NULL, lock_in_vain, &shared) == 0);
    while (!atomic_load(&waits)) {
        sched_yield();
    }
    OK(forebay_shared_close(shared));
    EXPECT(pthread_join(threads[0], NULL) == 0);
    OK(forebay_shared_lock(again, 1000));
    OK(forebay_shared_unlock(again));
    OK(forebay_shared_close(again));
}

/* Another process writes under the lock, and is killed there: the lock is free, and what it wrote is here. */
static int other_process(const char *of) {
    forebay_device device = {0};
    forebay_shared shared = {0};
    OK(forebay_device_open("host", &device));
    OK(forebay_shared_open(manager(device), of, NULL, &shared));
    OK(forebay_shared_lock(shared, -1));
    OK(forebay_shared_write(shared, 3, "x", 1));
    raise(SIGKILL);
    return 1;
}

static void processes(forebay_buffer_manager memory, const char *program) {
    forebay_shared shared = {0};
    OK(forebay_shared_create(memory, name, NULL, 10, &shared));
    const pid_t child = fork();
    if (child == 0) {
        execl(program, program, "--other", name, (char *)NULL);
        _exit(1);
    }
    int status = 0;
    EXPECT(waitpid(child, &status, 0) == child && WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL);
    char found = 0;
    OK(forebay_shared_lock(shared, 10000));
    OK(forebay_shared_read(shared, 3, &found, 1));
    EXPECT(found == 'x');
    OK(forebay_shared_unlock(shared));
    OK(forebay_shared_close(shared));
}

int main(int count, char **words) {
    if (count > 2 && strcmp(words[1], "--other") == 0) {
        return other_process(words[2]);
    }
    forebay_device device = device_of(count, words);
    forebay_buffer_manager memory = manager(device);
    snprintf(name, sizeof name, "c-%d", (int)getpid());
    contents(memory);
    refused(memory);
    locks(memory);
    if (count > 1 && strcmp(words[1], "host") == 0) {
        processes(memory, words[0]);
    }
    OK(forebay_buffer_manager_close(memory));
    OK(forebay_device_close(device));
    return 0;
}
