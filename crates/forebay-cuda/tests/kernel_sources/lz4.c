/* Runs the kernel of kernels/lz4.c as plain C: the cases come in by the standard input, the results go out by the
 * standard output. Each part of a case is an allocation of its own, so that a sanitizer sees every access out of bounds.
 *
 *   in    bytes of the input, bytes of the output, bytes of a block, blocks: u64; where blocks end: u64 each; the input
 *   out   a status of each block: u32; the output
 *
 * With LANES above 1 each lane is a thread, and they meet where lanes do on a device. */
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifndef LANES
#define LANES 1u
#endif

static pthread_barrier_t barrier;
static _Thread_local unsigned int lane_number, block_number;

static void meet(void)
{
    if (LANES > 1u)
        pthread_barrier_wait(&barrier);
}

#define LANE lane_number
#define BLOCK block_number
#define SYNC() meet()
#include "../../kernels/lz4.c"

/* The bytes of the output before the kernel ran. */
#define BEFORE 0xa5

static struct {
    u64 data_size, to_size, block_size, blocks;
    u8 *data, *to;
    u64 *ends;
    u32 *statuses;
} launch;

/* The allocation has exactly these bytes, and at least one, so that it is one. */
static void *exactly(u64 size)
{
    void *memory = malloc(size > 0 ? size : 1);
    if (memory == NULL)
        exit(3);
    return memory;
}

static void get(void *to, u64 size)
{
    if (fread(to, 1, size, stdin) != size)
        exit(4);
}

static void *run_lane(void *lane)
{
    lane_number = *(unsigned int *)lane;
    /* One group more than there are blocks, as where the groups of a launch are rounded up. */
    for (block_number = 0; block_number <= launch.blocks; block_number++) {
        forebay_lz4_decode(launch.data, launch.data_size, launch.ends, launch.to, launch.to_size,
                           (u32)launch.block_size, (u32)launch.blocks, launch.statuses);
        meet();
    }
    return NULL;
}

int main(void)
{
    while (fread(&launch, 4 * sizeof(u64), 1, stdin) == 1) {
        pthread_t threads[LANES];
        unsigned int lanes[LANES], lane;
        launch.ends = exactly(launch.blocks * sizeof(u64));
        launch.data = exactly(launch.data_size);
        launch.to = exactly(launch.to_size);
        launch.statuses = exactly(launch.blocks * sizeof(u32));
        get(launch.ends, launch.blocks * sizeof(u64));
        get(launch.data, launch.data_size);
        memset(launch.to, BEFORE, launch.to_size);
        memset(launch.statuses, 0xff, launch.blocks * sizeof(u32));
        pthread_barrier_init(&barrier, NULL, LANES);
        for (lane = 0; lane < LANES; lane++) {
            lanes[lane] = lane;
            if (lane > 0 && pthread_create(&threads[lane], NULL, run_lane, &lanes[lane]) != 0)
                return 5;
        }
        run_lane(&lanes[0]);
        for (lane = 1; lane < LANES; lane++)
            pthread_join(threads[lane], NULL);
        pthread_barrier_destroy(&barrier);
        fwrite(launch.statuses, sizeof(u32), launch.blocks, stdout);
        fwrite(launch.to, 1, launch.to_size, stdout);
        free(launch.ends);
        free(launch.data);
        free(launch.to);
        free(launch.statuses);
    }
    return fflush(stdout) == 0 ? 0 : 6;
}
