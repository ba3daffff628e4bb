/* A program blocks a signal after it has opened a device, and takes it by sigwait: no thread of the library gets it. */

#define _GNU_SOURCE

#include <dirent.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "expect.h"

enum { SIZE = 8 << 20 };

/* Every thread but this one blocks these signals. Gives how many there are. */
static int threads_block(const int *signals, int count) {
    DIR *tasks = opendir("/proc/self/task");
    EXPECT(tasks != NULL);
    int seen = 0;
    for (struct dirent *task = readdir(tasks); task != NULL; task = readdir(tasks)) {
        char path[300], line[256], name[64] = "";
        if (task->d_name[0] == '.' || atoi(task->d_name) == getpid()) {
            continue;
        }
        snprintf(path, sizeof path, "/proc/self/task/%s/status", task->d_name);
        FILE *status = fopen(path, "r");
        if (status == NULL) {
            continue; /* The thread has ended. */
        }
        while (fgets(line, sizeof line, status) != NULL) {
            unsigned long long blocked = 0;
            if (sscanf(line, "Name: %63s", name) == 1 || sscanf(line, "SigBlk: %llx", &blocked) != 1) {
                continue;
            }
            seen++;
            for (int at = 0; at < count; at++) {
                if ((blocked >> (signals[at] - 1) & 1) == 0) {
                    fprintf(stderr, "the thread %s does not block signal %d\n", name, signals[at]);
                    exit(1);
                }
            }
        }
        fclose(status);
    }
    closedir(tasks);
    return seen;
}

int main(int count, char **words) {
    const forebay_device device = device_of(count, words);
    forebay_pool pool = {0};
    OK(forebay_pool_create(device, "upkeep:on", &pool));
    forebay_stream stream = {0};
    OK(forebay_stream_create(device, 0, &stream));
    void *block = NULL;
    OK(forebay_alloc(pool, SIZE, stream, &block));
    char *values = calloc(1, SIZE);
    EXPECT(values != NULL);
    OK(forebay_upload(device, block, values, SIZE, stream, NULL));
    OK(forebay_fill(device, block, SIZE, 1, 1, stream));
    OK(forebay_stream_synchronize(device, stream));
    forebay_buffer_manager memory = {0};
    OK(forebay_buffer_manager_create(device, &memory));
    forebay_shared shared = {0};
    char name[64];
    snprintf(name, sizeof name, "signals-%d", getpid());
    OK(forebay_shared_create(memory, name, "u8", 4096, &shared));

    const int wanted[] = {SIGUSR1, SIGTERM, SIGINT, SIGALRM, SIGPROF, SIGCHLD};
    EXPECT(threads_block(wanted, sizeof wanted / sizeof *wanted) > 2);

    sigset_t signals;
    sigemptyset(&signals);
    sigaddset(&signals, SIGUSR1);
    EXPECT(pthread_sigmask(SIG_BLOCK, &signals, NULL) == 0);
    for (int round = 0; round < 100; round++) {
        int taken = 0;
        EXPECT(kill(getpid(), SIGUSR1) == 0);
        EXPECT(sigwait(&signals, &taken) == 0 && taken == SIGUSR1);
    }

    OK(forebay_shared_close(shared));
    OK(forebay_buffer_manager_close(memory));
    OK(forebay_free(pool, block, stream));
    OK(forebay_stream_close(stream));
    OK(forebay_pool_close(pool, NULL));
    OK(forebay_device_close(device));
    free(values);
    return 0;
}
