/*
 * forebay: memory for accelerators.
 *
 * Every function that can fail gives a forebay_status; forebay_last_error() has the words, each thread its own.
 * Things are named by handles. One that is zero, closed, of another kind or made up is refused, never followed.
 * Any thread may make any call at any time. docs/c.md begins at the beginning.
 *
 * Written by "cargo xtask header" from crates/forebay-capi/src: change it there.
 */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

/* Whether this header fits the library that is loaded: a forebay_status. */
#define forebay_check() forebay_check_abi(FOREBAY_ABI_VERSION)

/**
 * Memory keeps what is written to it.
 */
#define FOREBAY_CAN_DATA 1

/**
 * The host may read and write device addresses directly.
 */
#define FOREBAY_CAN_HOST_VISIBLE (1 << 1)

/**
 * Addresses can be had apart from the memory behind them.
 */
#define FOREBAY_CAN_VIRTUAL_MEMORY (1 << 2)

/**
 * Host memory can be pinned.
 */
#define FOREBAY_CAN_PINNED (1 << 3)

/**
 * There is memory that moves by itself.
 */
#define FOREBAY_CAN_MANAGED (1 << 7)

/**
 * Other devices' memory can be reached.
 */
#define FOREBAY_CAN_PEERS (1 << 8)

/**
 * Streams of other libraries can be adopted.
 */
#define FOREBAY_CAN_FOREIGN_STREAMS (1 << 14)

/**
 * Giving memory back never waits for work under way.
 */
#define FOREBAY_CAN_PROMPT_FREE (1 << 15)

/**
 * Each thread has a default stream of its own.
 */
#define FOREBAY_CAN_PER_THREAD_STREAMS (1 << 16)

/**
 * What stands for a figure that was not counted.
 */
#define FOREBAY_NOT_COUNTED UINT64_MAX

/**
 * The version of the interface that this header describes. It changes where a function or structure
 * does so that programs built before cannot go on; what is only added leaves it as it is.
 */
#define FOREBAY_ABI_VERSION 0

/**
 * What a call came to. Numbers keep their meaning; later versions may add some.
 */
typedef enum {
    /**
     * It was done.
     */
    FOREBAY_STATUS_OK = 0,
    /**
     * There is not that much memory, after all that could be given back was.
     */
    FOREBAY_STATUS_OUT_OF_MEMORY = 1,
    /**
     * An argument is not allowed: a null pointer, a size, an alignment, a text.
     */
    FOREBAY_STATUS_INVALID_ARGUMENT = 2,
    /**
     * A handle is null, was closed, is of another kind, or was never given out.
     */
    FOREBAY_STATUS_INVALID_HANDLE = 3,
    /**
     * No block of the pool begins at that address.
     */
    FOREBAY_STATUS_NOT_A_BLOCK = 4,
    /**
     * The block is free already.
     */
    FOREBAY_STATUS_DOUBLE_FREE = 5,
    /**
     * The block is of another pool.
     */
    FOREBAY_STATUS_WRONG_POOL = 6,
    /**
     * The block has another size than was said.
     */
    FOREBAY_STATUS_WRONG_SIZE = 7,
    /**
     * The stream or the memory is of another device.
     */
    FOREBAY_STATUS_WRONG_DEVICE = 8,
    /**
     * A setting has no such value, or cannot change now.
     */
    FOREBAY_STATUS_CONFIG = 9,
    /**
     * The device is gone.
     */
    FOREBAY_STATUS_LOST = 10,
    /**
     * Something is still in use.
     */
    FOREBAY_STATUS_BUSY = 11,
    /**
     * This device, driver or system cannot do it.
     */
    FOREBAY_STATUS_UNSUPPORTED = 12,
    /**
     * It failed this time, and may succeed the next.
     */
    FOREBAY_STATUS_TRANSIENT = 13,
    /**
     * The arena is full.
     */
    FOREBAY_STATUS_FULL = 14,
    /**
     * What the checkpoint names was taken back, or it is of another arena.
     */
    FOREBAY_STATUS_LAPSED = 15,
    /**
     * A debugging aid found that memory was written to without right.
     */
    FOREBAY_STATUS_CORRUPTED = 16,
    /**
     * This process is a forked child: what its parent opened is not its own.
     */
    FOREBAY_STATUS_FORKED = 17,
    /**
     * There are as many handles or tags as there can be.
     */
    FOREBAY_STATUS_TOO_MANY = 18,
    /**
     * A file could not be written.
     */
    FOREBAY_STATUS_IO = 19,
    /**
     * The header is of another version of the library than the library itself.
     */
    FOREBAY_STATUS_ABI_MISMATCH = 20,
    /**
     * A defect of forebay itself; the words say where.
     */
    FOREBAY_STATUS_DEFECT = 21,
} forebay_status;

/**
 * How near a pool is to its limit.
 */
typedef enum {
    /**
     * So little is held that caches may grow again.
     */
    FOREBAY_PRESSURE_LOW = 0,
    /**
     * Neither little nor much.
     */
    FOREBAY_PRESSURE_NORMAL = 1,
    /**
     * Idle memory is cleaned up.
     */
    FOREBAY_PRESSURE_MODERATE = 2,
    /**
     * The program should hold back.
     */
    FOREBAY_PRESSURE_HIGH = 3,
    /**
     * Everything idle is given back at once.
     */
    FOREBAY_PRESSURE_CRITICAL = 4,
} forebay_pressure;

/**
 * The kinds of device.
 */
typedef enum {
    /**
     * One that this header does not know.
     */
    FOREBAY_DEVICE_KIND_OTHER = 0,
    /**
     * The host's own memory and threads.
     */
    FOREBAY_DEVICE_KIND_HOST = 1,
    /**
     * A simulated accelerator.
     */
    FOREBAY_DEVICE_KIND_SIM = 2,
    /**
     * An NVIDIA GPU.
     */
    FOREBAY_DEVICE_KIND_CUDA = 3,
    /**
     * An AMD GPU.
     */
    FOREBAY_DEVICE_KIND_HIP = 4,
    /**
     * A device behind OpenCL.
     */
    FOREBAY_DEVICE_KIND_OPENCL = 5,
    /**
     * An Apple GPU.
     */
    FOREBAY_DEVICE_KIND_METAL = 6,
} forebay_device_kind;

/**
 * On which side an end of a copy lies.
 */
typedef enum {
    /**
     * Host memory.
     */
    FOREBAY_SIDE_HOST = 0,
    /**
     * Memory of the device.
     */
    FOREBAY_SIDE_DEVICE = 1,
} forebay_side;

/**
 * A pool. All zeros is none.
 */
typedef struct {
    /**
     * Not to be looked at.
     */
    uint64_t id;
} forebay_pool;

/**
 * A stream. All zeros is the default stream of whichever device a call is about.
 */
typedef struct {
    /**
     * Not to be looked at.
     */
    uint64_t id;
} forebay_stream;

/**
 * An arena. All zeros is none.
 */
typedef struct {
    /**
     * Not to be looked at.
     */
    uint64_t id;
} forebay_arena;

/**
 * A place in an arena to come back to. All zeros is none.
 */
typedef struct {
    /**
     * Not to be looked at.
     */
    uint64_t id;
} forebay_checkpoint;

/**
 * How an arena stands.
 */
typedef struct {
    /**
     * `sizeof(forebay_arena_usage)`, set before the call; after it, how much of it was filled.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Blocks, and what lies between them.
     */
    uint64_t used_bytes;
    /**
     * The rest of the capacity.
     */
    uint64_t available_bytes;
    /**
     * All there is.
     */
    uint64_t capacity_bytes;
    /**
     * The most that was ever used at once.
     */
    uint64_t high_water_bytes;
    /**
     * In how many pieces of the pool.
     */
    uint64_t chunks;
} forebay_arena_usage;

/**
 * What is known of a block.
 */
typedef struct {
    /**
     * `sizeof(forebay_block_info)`, set before the call; after it, how much of it was filled.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * How often its address was given out, this time included: tells it from every other block that was
     * or will be at the same address.
     */
    uint64_t generation;
    /**
     * Where it begins.
     */
    uint64_t address;
    /**
     * How large it is: what was asked for, rounded up.
     */
    uint64_t size_bytes;
    /**
     * What was asked for.
     */
    uint64_t requested_bytes;
} forebay_block_info;

/**
 * A device. All zeros is none.
 */
typedef struct {
    /**
     * Not to be looked at.
     */
    uint64_t id;
} forebay_device;

/**
 * What a device is, and how much memory it has.
 */
typedef struct {
    /**
     * `sizeof(forebay_device_info)`, set before the call; after it, how much of it was filled.
     */
    uint32_t struct_size;
    /**
     * A `forebay_device_kind`.
     */
    uint32_t kind;
    /**
     * Which of its kind.
     */
    uint32_t ordinal;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * What it can do: the sum of `FOREBAY_CAN_...`, and perhaps of others.
     */
    uint64_t capabilities;
    /**
     * What every address of its memory is a multiple of.
     */
    uint64_t alignment;
    /**
     * All its memory.
     */
    uint64_t total_bytes;
    /**
     * What could still be had.
     */
    uint64_t free_bytes;
    /**
     * What this process has of it through forebay.
     */
    uint64_t held_bytes;
    /**
     * The name the vendor or system gives it.
     */
    char name[128];
    /**
     * The version of the driver or system, for people.
     */
    char driver[128];
} forebay_device_info;

/**
 * How a pool stands. Counts are exact: every call that has returned is in them once.
 */
typedef struct {
    /**
     * `sizeof(forebay_statistics)`, set before the call; after it, how much of it was filled.
     */
    uint32_t struct_size;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * Bytes in blocks, rounding counted.
     */
    uint64_t live_bytes;
    /**
     * Bytes asked for by live blocks.
     */
    uint64_t requested_bytes;
    /**
     * Blocks that are live.
     */
    uint64_t blocks;
    /**
     * The most bytes ever out of the heap at once, in blocks or at hand in magazines.
     */
    uint64_t peak_out_bytes;
    /**
     * The most bytes ever in live blocks at once; `FOREBAY_NOT_COUNTED` unless the setting
     * `statistics` is `exact`.
     */
    uint64_t peak_live_bytes;
    /**
     * Bytes at hand in magazines.
     */
    uint64_t cached_bytes;
    /**
     * Freed bytes that are kept from use for a while.
     */
    uint64_t quarantined_bytes;
    /**
     * Bytes that nobody gets any more, because they were written to without right.
     */
    uint64_t retired_bytes;
    /**
     * Bytes taken from the device.
     */
    uint64_t held_bytes;
    /**
     * The most bytes ever taken from the device at once.
     */
    uint64_t peak_held_bytes;
    /**
     * Bytes taken from the device that are in no block.
     */
    uint64_t free_bytes;
    /**
     * The largest free piece.
     */
    uint64_t largest_free_bytes;
    /**
     * In how many pieces the heap is free.
     */
    uint64_t pieces;
    /**
     * Blocks given out.
     */
    uint64_t allocations;
    /**
     * Blocks taken back.
     */
    uint64_t frees;
    /**
     * Allocations that took no memory from the driver.
     */
    uint64_t hits;
    /**
     * Of those, the ones that a magazine had.
     */
    uint64_t magazine_hits;
    /**
     * Requests that no hole held.
     */
    uint64_t misses;
    /**
     * Times a stream was made to wait for another.
     */
    uint64_t waits;
    /**
     * The most the pool may take from the device.
     */
    uint64_t limit_bytes;
    /**
     * How long all calls of the driver took, by the clock.
     */
    uint64_t driver_ns;
} forebay_statistics;

/**
 * A copy of any shape: rows in slices, each side with its own distances. Where there is one row, or
 * one slice, its distance is not looked at.
 */
typedef struct {
    /**
     * `sizeof(forebay_copy_shape)`.
     */
    uint32_t struct_size;
    /**
     * Where to: a `forebay_side`.
     */
    uint32_t to_side;
    /**
     * Where from: a `forebay_side`.
     */
    uint32_t from_side;
    /**
     * Zero.
     */
    uint32_t reserved;
    /**
     * The first byte written.
     */
    uint64_t to;
    /**
     * From a row to the next, there.
     */
    uint64_t to_row_bytes;
    /**
     * From a slice to the next, there.
     */
    uint64_t to_slice_bytes;
    /**
     * The first byte read.
     */
    uint64_t from;
    /**
     * From a row to the next, there.
     */
    uint64_t from_row_bytes;
    /**
     * From a slice to the next, there.
     */
    uint64_t from_slice_bytes;
    /**
     * The bytes of a row.
     */
    uint64_t width_bytes;
    /**
     * The rows of a slice.
     */
    uint64_t rows;
    /**
     * The slices.
     */
    uint64_t slices;
} forebay_copy_shape;

/**
 * What a warm-up asked for and got.
 */
typedef struct {
    /**
     * `sizeof(forebay_warm_up_figures)`, set before the call; after it, how much of it was filled.
     */
    uint32_t struct_size;
    /**
     * 1 where all of it could be had, else 0.
     */
    uint32_t complete;
    /**
     * Blocks asked for.
     */
    uint64_t asked_blocks;
    /**
     * Their bytes.
     */
    uint64_t asked_bytes;
    /**
     * Blocks that could be had together.
     */
    uint64_t had_blocks;
    /**
     * Their bytes.
     */
    uint64_t had_bytes;
} forebay_warm_up_figures;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/**
 * An arena of `capacity` bytes from a pool, to be used in the order of `stream`. Where `most` is above
 * `capacity` it grows up to that, each piece as large as all before it; else it does not.
 *
 * The caller promises:
 *
 * * `arena` is null, or a handle can be written there.
 */
forebay_status forebay_arena_create(forebay_pool pool,
                                    uint64_t capacity,
                                    uint64_t most,
                                    forebay_stream stream,
                                    forebay_arena *arena);

/**
 * `size` bytes of an arena, at a multiple of `alignment`, a power of two; 0 stands for 512. They are
 * good until they are taken back by `forebay_arena_rewind`, `forebay_arena_reset` or
 * `forebay_arena_close`.
 *
 * The caller promises:
 *
 * * `block` is null, or a pointer can be written there.
 */
forebay_status forebay_arena_alloc(forebay_arena arena, uint64_t size, uint64_t alignment, void **block);

/**
 * The present place of an arena, to come back to.
 *
 * The caller promises:
 *
 * * `checkpoint` is null, or one can be written there.
 */
forebay_status forebay_arena_checkpoint(forebay_arena arena, forebay_checkpoint *checkpoint);

/**
 * Takes back everything that was allocated since the checkpoint, which can be used again.
 */
forebay_status forebay_arena_rewind(forebay_arena arena, forebay_checkpoint checkpoint);

/**
 * Takes back everything that was allocated. The memory stays the arena's; checkpoints lapse.
 */
forebay_status forebay_arena_reset(forebay_arena arena);

/**
 * How an arena stands.
 *
 * The caller promises:
 *
 * * `usage` is null, or a `forebay_arena_usage` whose `struct_size` is set, which can be written.
 */
forebay_status forebay_arena_figures(forebay_arena arena, forebay_arena_usage *usage);

/**
 * Closes an arena and gives its memory back to its pool, in the order of its stream.
 */
forebay_status forebay_arena_close(forebay_arena arena);

/**
 * At least `size` bytes, to be used in the order of `stream`. `block` gets the address, a multiple of
 * 512; null where there are none, and where `size` is 0. What the block holds is not defined.
 *
 * The caller promises:
 *
 * * `block` is null, or a pointer can be written there.
 */
forebay_status forebay_alloc(forebay_pool pool, uint64_t size, forebay_stream stream, void **block);

/**
 * As `forebay_alloc`, at a multiple of `alignment`, a power of two.
 *
 * The caller promises:
 *
 * * `block` is null, or a pointer can be written there.
 */
forebay_status forebay_alloc_aligned(forebay_pool pool,
                                     uint64_t size,
                                     uint64_t alignment,
                                     forebay_stream stream,
                                     void **block);

/**
 * Blocks of all these sizes, or none of them: `blocks` gets as many addresses as there are sizes.
 *
 * The caller promises:
 *
 * * `sizes` is null, or has `count` sizes; `blocks` is null, or has room for `count` addresses.
 */
forebay_status forebay_alloc_batch(forebay_pool pool,
                                   const uint64_t *sizes,
                                   size_t count,
                                   forebay_stream stream,
                                   void **blocks);

/**
 * Gives back the block that begins at `block`, in the order of `stream`: its memory may be used again
 * by what is enqueued there from now on. Null is ignored.
 *
 * The caller promises:
 *
 * * Nothing but what was enqueued on `stream` before uses the block.
 */
forebay_status forebay_free(forebay_pool pool, void *block, forebay_stream stream);

/**
 * As `forebay_free`, where the caller knows how much was asked for, or how large the block is:
 * anything else is refused.
 *
 * The caller promises:
 *
 * * As for `forebay_free`.
 */
forebay_status forebay_free_sized(forebay_pool pool, void *block, uint64_t size, forebay_stream stream);

/**
 * Gives back a block to whichever pool of the process it is of, for who was handed an address alone.
 * Looks through the pools one by one. The stream must be of the block's device.
 *
 * The caller promises:
 *
 * * As for `forebay_free`.
 */
forebay_status forebay_free_anywhere(void *block, forebay_stream stream);

/**
 * Gives back a block whose stream was closed: waits until the device has done all its work, then frees
 * the block in the order of the default stream. For owners that outlive their stream; `forebay_free`
 * does not wait, and is the way wherever a stream is there. What is no live block of the pool is refused
 * without a wait. Null is ignored.
 *
 * Where the device cannot be waited for, as while a graph is captured, nothing is changed: the block
 * stays live and can be freed later.
 *
 * The caller promises:
 *
 * * Nothing but work that was enqueued on the device before uses the block.
 */
forebay_status forebay_free_synchronized(forebay_pool pool, void *block);

/**
 * Says that a block is used on `stream` too, beside the one it will be freed on: its memory is used
 * again only after what is enqueued on both by then.
 *
 * The caller promises:
 *
 * * None: an address that is no block's is refused.
 */
forebay_status forebay_record_use(forebay_pool pool, void *block, forebay_stream stream);

/**
 * Says that nothing more is allocated or freed on a stream here: what was freed on it becomes everybody's
 * once its work so far is done. This tells one pool. A stream that is about to be destroyed by its maker
 * is closed before that, as the device follows it while its handle is open; `forebay_stream_close` tells
 * all pools by itself.
 */
forebay_status forebay_forget_stream(forebay_pool pool, forebay_stream stream);

/**
 * What is known of the live block that begins at `block`.
 *
 * The caller promises:
 *
 * * `info` is null, or a `forebay_block_info` whose `struct_size` is set, which can be written.
 */
forebay_status forebay_block_query(forebay_pool pool, const void *block, forebay_block_info *info);

/**
 * Opens a device by name: "host", "cuda", "sim", or with a number "cuda:1", "sim:1". A simulated one
 * has 8 GiB, or as much as is said: "sim@1GiB"; "phantom" is one whose memory is addresses alone, and
 * takes none of the host's. Opening the same name again gives the same device, as long as it is open.
 *
 * The caller promises:
 *
 * * `name` is null, or a text that ends with a zero byte.
 * * `device` is null, or a handle can be written there.
 */
forebay_status forebay_device_open(const char *name, forebay_device *device);

/**
 * Opens the best device there is: the first GPU, else the host.
 *
 * The caller promises:
 *
 * * `device` is null, or a handle can be written there.
 */
forebay_status forebay_device_best(forebay_device *device);

/**
 * What a device is, and how much memory it has. Asks the driver: not for every step of a program.
 *
 * The caller promises:
 *
 * * `info` is null, or a `forebay_device_info` whose `struct_size` is set, which can be written.
 */
forebay_status forebay_device_describe(forebay_device device, forebay_device_info *info);

/**
 * Waits until all work of all streams of a device is done.
 */
forebay_status forebay_device_synchronize(forebay_device device);

/**
 * Closes a device's handle. Pools, streams and arenas of the device keep it open beneath them.
 */
forebay_status forebay_device_close(forebay_device device);

/**
 * Why the last call on this thread that failed did: text that ends with a zero byte, good until the
 * next call that fails on this thread. Empty where none has failed. Never null.
 */
const char *forebay_last_error(void);

/**
 * The pool of a device that the whole process shares: made when it is first asked for, as the
 * environment says (`FOREBAY_CONF`), and the same from then on. Closing the handle leaves the pool.
 *
 * The caller promises:
 *
 * * `pool` is null, or a handle can be written there.
 */
forebay_status forebay_pool_of_process(forebay_device device, forebay_pool *pool);

/**
 * Lets the process forget its shared pool of a device; the next who asks gets a new one. Handles to
 * the old one stay good. `had`, where it is not null, gets 1 if there was one, else 0.
 *
 * The caller promises:
 *
 * * `had` is null, or a number can be written there.
 */
forebay_status forebay_pool_forget_process(forebay_device device, int32_t *had);

/**
 * A pool of its own. `settings` is null, or "key:value,key:value" as `FOREBAY_CONF` has it, and stands
 * above what the environment says.
 *
 * The caller promises:
 *
 * * `settings` is null, or a text that ends with a zero byte.
 * * `pool` is null, or a handle can be written there.
 */
forebay_status forebay_pool_create(forebay_device device, const char *settings, forebay_pool *pool);

/**
 * Closes a pool. One of its own gives all its memory back to the device, blocks that are still live
 * among it: they must not be used any more. `left`, where it is not null, gets how many those were.
 * Arenas keep the pool open beneath them, and so does a call of another thread until it returns.
 *
 * The caller promises:
 *
 * * `left` is null, or a number can be written there.
 */
forebay_status forebay_pool_close(forebay_pool pool, uint64_t *left);

/**
 * A handle to the device of a pool, to be closed by itself.
 *
 * The caller promises:
 *
 * * `device` is null, or a handle can be written there.
 */
forebay_status forebay_pool_device(forebay_pool pool, forebay_device *device);

/**
 * Changes a setting while the pool lives: its name and its value, as in `FOREBAY_CONF`.
 *
 * The caller promises:
 *
 * * Both are null, or texts that end with a zero byte.
 */
forebay_status forebay_pool_set(forebay_pool pool, const char *key, const char *value);

/**
 * The value of a setting in force. `value` gets a text, to be given back by `forebay_string_free`.
 *
 * The caller promises:
 *
 * * `key` is null, or a text that ends with a zero byte.
 * * `value` is null, or a pointer can be written there.
 */
forebay_status forebay_pool_get(forebay_pool pool, const char *key, char **value);

/**
 * The most the pool may take from its device. Changed by the settings `max_bytes` and `max_fraction`.
 *
 * The caller promises:
 *
 * * `bytes` is null, or a number can be written there.
 */
forebay_status forebay_pool_limit(forebay_pool pool, uint64_t *bytes);

/**
 * How near the pool is to its limit. Waits for nobody.
 *
 * The caller promises:
 *
 * * `level` is null, or a `forebay_pressure` can be written there.
 */
forebay_status forebay_pool_pressure(forebay_pool pool, forebay_pressure *level);

/**
 * How a pool stands, in figures. Stops the threads that are in it for a moment.
 *
 * The caller promises:
 *
 * * `statistics` is null, or a `forebay_statistics` whose `struct_size` is set, which can be written.
 */
forebay_status forebay_pool_statistics(forebay_pool pool, forebay_statistics *statistics);

/**
 * All there is to see of a pool, as one line of JSON with the schema "forebay.pool.v1". `json` gets a
 * text, to be given back by `forebay_string_free`.
 *
 * The caller promises:
 *
 * * `json` is null, or a pointer can be written there.
 */
forebay_status forebay_pool_snapshot(forebay_pool pool, char **json);

/**
 * A summary of how a pool stands, for people. `summary` gets a text, to be given back by
 * `forebay_string_free`.
 *
 * The caller promises:
 *
 * * `summary` is null, or a pointer can be written there.
 */
forebay_status forebay_pool_summary(forebay_pool pool, char **summary);

/**
 * The name of a status, as it is written in C: a text that is there for ever. "unknown status" for a
 * number that is none.
 */
const char *forebay_status_name(int32_t status);

/**
 * A new stream of a device. `priority` is above 0 for streams that go first where there is a choice,
 * below 0 for those that go last, and ignored where the device has no priorities.
 *
 * The caller promises:
 *
 * * `stream` is null, or a handle can be written there.
 */
forebay_status forebay_stream_create(forebay_device device, int32_t priority, forebay_stream *stream);

/**
 * A stream that another library made, as CUDA's `cudaStream_t`. It is not destroyed with the handle.
 *
 * The caller promises:
 *
 * * `raw` is a live stream of that device, and stays so until the handle is closed: the driver follows
 *   it.
 * * `stream` is null, or a handle can be written there.
 */
forebay_status forebay_stream_adopt(forebay_device device, void *raw, forebay_stream *stream);

/**
 * The stream as the driver names it, for calls of other libraries: with CUDA, the `cudaStream_t`.
 *
 * The caller promises:
 *
 * * `raw` is null, or a pointer can be written there.
 */
forebay_status forebay_stream_raw(forebay_stream stream, void **raw);

/**
 * Waits until all work of a stream is done. The default stream is that of `device`; for others
 * `device` may be all zeros.
 */
forebay_status forebay_stream_synchronize(forebay_device device, forebay_stream stream);

/**
 * Whether all work of a stream is done: 1 if so, else 0. Does not wait. The default stream is that of
 * `device`; for others `device` may be all zeros.
 *
 * The caller promises:
 *
 * * `done` is null, or a number can be written there.
 */
forebay_status forebay_stream_query(forebay_device device, forebay_stream stream, int32_t *done);

/**
 * Closes a stream: one that was made here is destroyed, and its work still runs; one that was adopted
 * is forgotten, and may be destroyed by its maker from then on. The pools of its device are told before
 * that, so that what was freed on it serves other streams. A block of it that still lives goes back by
 * `forebay_free_synchronized`, or by `forebay_free` on a stream that was made to wait for this one's work
 * before. Closed it is in any case: where a pool could not be told, the status says so.
 */
forebay_status forebay_stream_close(forebay_stream stream);

/**
 * Allocates under the tag of that name, on this thread, until `forebay_tag_leave`. Tags nest. There
 * are at most 255 names in a process.
 *
 * The caller promises:
 *
 * * `name` is null, or a text that ends with a zero byte.
 */
forebay_status forebay_tag_enter(const char *name);

/**
 * Leaves the tag that this thread entered last.
 */
forebay_status forebay_tag_leave(void);

/**
 * Gives back a text that a function of this library made. Null is ignored.
 *
 * The caller promises:
 *
 * * `text` is null, or was given by a function that says to give it back here, and was not given back.
 */
void forebay_string_free(char *text);

/**
 * At least `size` bytes of GPU `device`, to be used in the order of `stream`, from the pool of the
 * process or, while a graph is captured on `stream`, from the graph's. Null where there are none, with
 * the reason in `forebay_last_error`, and where `size` is 0.
 *
 * The caller promises:
 *
 * * `stream` is a stream of that GPU as CUDA names it, and is not destroyed while blocks allocated or
 *   freed on it are in use.
 */
void *forebay_torch_alloc(ptrdiff_t size, int device, void *stream);

/**
 * Gives back a block of `forebay_torch_alloc`, in the order of `stream`. Null is ignored, and so is
 * the size. What is no live block changes nothing; the reason is in `forebay_last_error`.
 *
 * The caller promises:
 *
 * * As for `forebay_torch_alloc`; nothing but what was enqueued on `stream` before uses the block.
 */
void forebay_torch_free(void *block, ptrdiff_t _size, int device, void *stream);

/**
 * Begins to record what a pool is asked: the last `events` of it, 16,777,216 at most. Every call of
 * the pool takes the long way until the recording ends.
 */
forebay_status forebay_trace_start(forebay_pool pool, uint64_t events);

/**
 * Ends the recording and writes it to `path`: by its ending CSV (`.csv`, `.csv.gz`) or forebay's own
 * form (`.fbt`). `events`, where it is not null, gets how many there were. Where it cannot be
 * written it goes on, and can be stopped with another path.
 *
 * The caller promises:
 *
 * * `path` is null, or a text that ends with a zero byte.
 * * `events` is null, or a number can be written there.
 */
forebay_status forebay_trace_stop(forebay_pool pool, const char *path, uint64_t *events);

/**
 * Enqueues a copy of `size` bytes from the host to the device.
 *
 * The caller promises:
 *
 * * `from` can be read until the copy is done, and is not written meanwhile: synchronise the stream
 *   before it is changed or goes.
 * * `to` is memory of the device until then.
 */
forebay_status forebay_copy_to_device(forebay_device device,
                                      void *to,
                                      const void *from,
                                      uint64_t size,
                                      forebay_stream stream);

/**
 * Enqueues a copy of `size` bytes from the device to the host.
 *
 * The caller promises:
 *
 * * `to` can be written until the copy is done, and nobody else uses it meanwhile: synchronise the
 *   stream before it is read or goes.
 * * `from` is memory of the device until then.
 */
forebay_status forebay_copy_to_host(forebay_device device,
                                    void *to,
                                    const void *from,
                                    uint64_t size,
                                    forebay_stream stream);

/**
 * Enqueues a copy of `size` bytes within the device. The two must not overlap.
 *
 * The caller promises:
 *
 * * Both are memory of the device until the copy is done.
 */
forebay_status forebay_copy_on_device(forebay_device device,
                                      void *to,
                                      const void *from,
                                      uint64_t size,
                                      forebay_stream stream);

/**
 * Enqueues a copy of any shape.
 *
 * The caller promises:
 *
 * * `shape` is null, or a `forebay_copy_shape` whose `struct_size` is set.
 * * The rows on the host's side can be read, or written and are used by nobody else, until the copy is
 *   done; those on the device's side are its memory until then; no row written shares a byte with one
 *   read.
 */
forebay_status forebay_copy(forebay_device device, const forebay_copy_shape *shape, forebay_stream stream);

/**
 * Enqueues a fill of `size` bytes with the low `width` bytes of `pattern`, again and again. `width` is
 * 1, 2 or 4; address and size must be multiples of it.
 *
 * The caller promises:
 *
 * * `to` is memory of the device until the fill is done.
 */
forebay_status forebay_fill(forebay_device device,
                            void *to,
                            uint64_t size,
                            uint32_t pattern,
                            uint32_t width,
                            forebay_stream stream);

/**
 * Gives back to the device what is free, down to `keep` bytes held. Waits for the device where work
 * may still use it. `released`, where it is not null, gets how much that was.
 *
 * The caller promises:
 *
 * * `released` is null, or a number can be written there.
 */
forebay_status forebay_pool_trim(forebay_pool pool, uint64_t keep, uint64_t *released);

/**
 * Gives back to the device everything that is free: `forebay_pool_trim` that keeps nothing.
 *
 * The caller promises:
 *
 * * `released` is null, or a number can be written there.
 */
forebay_status forebay_pool_empty_cache(forebay_pool pool, uint64_t *released);

/**
 * Gives back to the device what was not needed in the last `age_ms` milliseconds, as far as that was
 * watched. Does not wait.
 *
 * The caller promises:
 *
 * * `released` is null, or a number can be written there.
 */
forebay_status forebay_pool_collect(forebay_pool pool, uint64_t age_ms, uint64_t *released);

/**
 * Makes what is free as few and as large pieces as can be without waiting.
 */
forebay_status forebay_pool_defragment(forebay_pool pool);

/**
 * Takes back what was freed while other streams used it, as far as they are done. Does not wait.
 */
forebay_status forebay_pool_process_deferred(forebay_pool pool);

/**
 * Takes `counts[i]` blocks of `sizes[i]` bytes each, all at once, and gives them back on `stream`:
 * what the pool took from its device for them is then at hand. Where there is no room for all, what
 * fits is taken, and the figures say how much that was.
 *
 * The caller promises:
 *
 * * `sizes` and `counts` are null, or have `count` numbers each.
 * * `figures` is null, or a `forebay_warm_up_figures` whose `struct_size` is set, which can be written.
 */
forebay_status forebay_pool_warm_up(forebay_pool pool,
                                    const uint64_t *sizes,
                                    const uint64_t *counts,
                                    size_t count,
                                    forebay_stream stream,
                                    forebay_warm_up_figures *figures);

/**
 * The version of the interface of the library that is loaded.
 */
uint32_t forebay_abi_version(void);

/**
 * Whether a program that was built with a header of this version can use the library that is loaded:
 * `forebay_check_abi(FOREBAY_ABI_VERSION)`.
 */
forebay_status forebay_check_abi(uint32_t header);

/**
 * The version of the library, for people: "0.1.0".
 */
const char *forebay_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
