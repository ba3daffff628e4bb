/*
 * forebay: memory for accelerators.
 *
 * Every function that can fail gives a forebay_status; forebay_last_error() has the words, each thread its own.
 * Things are named by handles. One that is zero, closed, of another kind or made up is refused, never followed.
 * Any thread may make any call at any time. docs/c.md begins at the beginning.
 *
 * Of each pointer the caller promises, beside what its function says, that it is null or: a text that ends with a
 * zero byte; an array of as many values as the parameter after it says, which nobody writes during the call; where
 * a result can be written, and nobody else uses it during the call. A structure there has its struct_size. A null
 * pointer is refused, unless its function says what it means.
 *
 * Written by "cargo xtask header" from crates/forebay-capi/src: change it there.
 */

#ifndef FOREBAY_H
#define FOREBAY_H

#include <stddef.h>
#include <stdint.h>

/* Marks functions whose result is needed: where they fail there is no device, pool, stream, event, buffer or block. */
#if (defined(__cplusplus) && __cplusplus >= 201703L) || (defined(__STDC_VERSION__) && __STDC_VERSION__ >= 202311L)
#define FOREBAY_MUST_USE [[nodiscard]]
#elif defined(__GNUC__)
#define FOREBAY_MUST_USE __attribute__((warn_unused_result))
#else
#define FOREBAY_MUST_USE
#endif

/* Whether this header fits the library that is loaded: a forebay_status. */
#define forebay_check() forebay_check_abi(FOREBAY_ABI_VERSION)

/// Memory keeps what is written to it.
#define FOREBAY_CAN_DATA 1

/// The host may read and write device addresses directly.
#define FOREBAY_CAN_HOST_VISIBLE (1 << 1)

/// Addresses can be had apart from the memory behind them.
#define FOREBAY_CAN_VIRTUAL_MEMORY (1 << 2)

/// Host memory can be pinned.
#define FOREBAY_CAN_PINNED (1 << 3)

/// There is memory that moves by itself.
#define FOREBAY_CAN_MANAGED (1 << 7)

/// Other devices' memory can be reached.
#define FOREBAY_CAN_PEERS (1 << 8)

/// Streams of other libraries can be adopted.
#define FOREBAY_CAN_FOREIGN_STREAMS (1 << 14)

/// Giving memory back never waits for work under way.
#define FOREBAY_CAN_PROMPT_FREE (1 << 15)

/// Each thread has a default stream of its own.
#define FOREBAY_CAN_PER_THREAD_STREAMS (1 << 16)

/// The value of a figure that was not counted.
#define FOREBAY_NOT_COUNTED UINT64_MAX

/// The version of the interface that this header describes. It changes where a function or structure
/// does so that programs built before cannot go on; what is only added leaves it as it is.
#define FOREBAY_ABI_VERSION 0

/// The version of this header: the first part of "0.1.0". `forebay_version` has that of the library.
#define FOREBAY_VERSION_MAJOR 0

/// The second part.
#define FOREBAY_VERSION_MINOR 1

/// The third part.
#define FOREBAY_VERSION_PATCH 0

/// What a call came to. Numbers keep their meaning; later versions may add some.
typedef enum {
    /// It was done.
    FOREBAY_STATUS_OK = 0,
    /// There is not that much memory, after all that could be given back was.
    FOREBAY_STATUS_OUT_OF_MEMORY = 1,
    /// An argument is not allowed: a null pointer, a size, an alignment, a text.
    FOREBAY_STATUS_INVALID_ARGUMENT = 2,
    /// A handle is null, was closed, is of another kind, or was never given out.
    FOREBAY_STATUS_INVALID_HANDLE = 3,
    /// No block of the pool begins at that address.
    FOREBAY_STATUS_NOT_A_BLOCK = 4,
    /// The block is free already.
    FOREBAY_STATUS_DOUBLE_FREE = 5,
    /// The block is of another pool.
    FOREBAY_STATUS_WRONG_POOL = 6,
    /// The block has another size than was said.
    FOREBAY_STATUS_WRONG_SIZE = 7,
    /// The stream or the memory is of another device.
    FOREBAY_STATUS_WRONG_DEVICE = 8,
    /// A setting has no such value, or cannot change now.
    FOREBAY_STATUS_CONFIG = 9,
    /// The device is gone.
    FOREBAY_STATUS_LOST = 10,
    /// Something is still in use.
    FOREBAY_STATUS_BUSY = 11,
    /// This device, driver or system cannot do it.
    FOREBAY_STATUS_UNSUPPORTED = 12,
    /// It failed this time, and may succeed the next.
    FOREBAY_STATUS_TRANSIENT = 13,
    /// The arena is full.
    FOREBAY_STATUS_FULL = 14,
    /// What the checkpoint names was taken back, or it is of another arena.
    FOREBAY_STATUS_LAPSED = 15,
    /// A debugging aid found that memory was written to without right.
    FOREBAY_STATUS_CORRUPTED = 16,
    /// This process is a forked child: what its parent opened is not its own.
    FOREBAY_STATUS_FORKED = 17,
    /// There are as many handles or tags as there can be.
    FOREBAY_STATUS_TOO_MANY = 18,
    /// A file could not be written.
    FOREBAY_STATUS_IO = 19,
    /// The header is of another version of the library than the library itself.
    FOREBAY_STATUS_ABI_MISMATCH = 20,
    /// A defect of forebay itself; the words say where.
    FOREBAY_STATUS_DEFECT = 21,
    /// A living process has that name already.
    FOREBAY_STATUS_NAME_TAKEN = 22,
    /// No living process has that name.
    FOREBAY_STATUS_NOT_FOUND = 23,
    /// What has that name is of another type, or not forebay's.
    FOREBAY_STATUS_WRONG_TYPE = 24,
    /// What has that name is of another user.
    FOREBAY_STATUS_DENIED = 25,
    /// It took longer than the caller, or the library, waits.
    FOREBAY_STATUS_TIMED_OUT = 26,
    /// The transfer was cancelled.
    FOREBAY_STATUS_CANCELLED = 27,
} forebay_status;

/// The memory pressure of a pool: how near it is to its limit.
typedef enum {
    /// Little is held, so caches may grow again.
    FOREBAY_PRESSURE_LOW = 0,
    /// Neither little nor much.
    FOREBAY_PRESSURE_NORMAL = 1,
    /// Idle memory is released over time.
    FOREBAY_PRESSURE_MODERATE = 2,
    /// The program should hold back.
    FOREBAY_PRESSURE_HIGH = 3,
    /// All idle memory is released at once.
    FOREBAY_PRESSURE_CRITICAL = 4,
} forebay_pressure;

/// What an access does with the contents of a buffer.
typedef enum {
    /// Reads them.
    FOREBAY_ACCESS_READ = 0,
    /// Reads and writes them.
    FOREBAY_ACCESS_UPDATE = 1,
    /// Writes all of them without reading any, so the old contents are not copied.
    FOREBAY_ACCESS_OVERWRITE = 2,
} forebay_access;

/// Which replicas of a buffer are there, and which is newer.
typedef enum {
    /// Nothing was written: all zero.
    FOREBAY_BUFFER_STATE_UNINITIALIZED = 0,
    /// There is host memory alone.
    FOREBAY_BUFFER_STATE_HOST_ONLY = 1,
    /// There is device memory alone.
    FOREBAY_BUFFER_STATE_DEVICE_ONLY = 2,
    /// Both are the same.
    FOREBAY_BUFFER_STATE_SYNCHRONIZED = 3,
    /// The host's is newer.
    FOREBAY_BUFFER_STATE_HOST_DIRTY = 4,
    /// The device's is newer.
    FOREBAY_BUFFER_STATE_DEVICE_DIRTY = 5,
    /// Each is newer in some range.
    FOREBAY_BUFFER_STATE_MIXED = 6,
} forebay_buffer_state;

/// The kinds of device.
typedef enum {
    /// One that this header does not know.
    FOREBAY_DEVICE_KIND_OTHER = 0,
    /// The host's own memory and threads.
    FOREBAY_DEVICE_KIND_HOST = 1,
    /// A simulated accelerator.
    FOREBAY_DEVICE_KIND_SIM = 2,
    /// An NVIDIA GPU.
    FOREBAY_DEVICE_KIND_CUDA = 3,
    /// An AMD GPU.
    FOREBAY_DEVICE_KIND_HIP = 4,
    /// A device behind OpenCL.
    FOREBAY_DEVICE_KIND_OPENCL = 5,
    /// An Apple GPU.
    FOREBAY_DEVICE_KIND_METAL = 6,
} forebay_device_kind;

/// On which side an end of a copy lies.
typedef enum {
    /// Host memory.
    FOREBAY_SIDE_HOST = 0,
    /// Memory of the device.
    FOREBAY_SIDE_DEVICE = 1,
} forebay_side;

/// A pool. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_pool;

/// A stream. All zeros is the default stream of whichever device a call is about.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_stream;

/// An arena. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_arena;

/// A position in an arena to rewind to. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_checkpoint;

/// The usage of an arena.
typedef struct {
    /// `sizeof(forebay_arena_usage)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// Zero.
    uint32_t reserved;
    /// Bytes in blocks, and in the gaps between them.
    uint64_t used_bytes;
    /// The rest of the capacity.
    uint64_t available_bytes;
    /// All its bytes.
    uint64_t capacity_bytes;
    /// The most bytes ever in use.
    uint64_t high_water_bytes;
    /// How many blocks of the pool it consists of.
    uint64_t chunks;
} forebay_arena_usage;

/// The description of a live block.
typedef struct {
    /// `sizeof(forebay_block_info)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// Zero.
    uint32_t reserved;
    /// How often its address was allocated, this time included. Distinguishes it from every other block at the
    /// same address, past or future.
    uint64_t generation;
    /// Its first address.
    uint64_t address;
    /// Its size: the requested size, rounded up.
    uint64_t size_bytes;
    /// The requested size.
    uint64_t requested_bytes;
} forebay_block_info;

/// A buffer. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_buffer;

/// A buffer at one moment.
typedef struct {
    /// `sizeof(forebay_buffer_info)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// A `forebay_buffer_state`.
    uint32_t state;
    /// The number under which `forebay_live_buffers` lists it.
    uint64_t number;
    /// Its size.
    uint64_t size_bytes;
    /// Live mappings.
    uint64_t mappings;
    /// Bytes of host memory.
    uint64_t host_bytes;
    /// Bytes of device memory.
    uint64_t device_bytes;
    /// Copies from the device to the host.
    uint64_t copies_to_host;
    /// Their bytes.
    uint64_t bytes_to_host;
    /// Copies from the host to the device.
    uint64_t copies_to_device;
    /// Their bytes.
    uint64_t bytes_to_device;
} forebay_buffer_info;

/// A view of a buffer's host memory. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_mapping;

/// A device. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_device;

/// A manager of buffers. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_buffer_manager;

/// What the buffers of a manager add up to.
typedef struct {
    /// `sizeof(forebay_buffer_totals)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// Zero.
    uint32_t reserved;
    /// Live buffers.
    uint64_t buffers;
    /// Buffers made so far.
    uint64_t created;
    /// Bytes of host memory.
    uint64_t host_bytes;
    /// Bytes of device memory.
    uint64_t device_bytes;
    /// Bytes of host memory of closed buffers that copies still use.
    uint64_t parked_bytes;
    /// Copies from the device to the host, those of closed buffers included.
    uint64_t copies_to_host;
    /// Their bytes.
    uint64_t bytes_to_host;
    /// Copies from the host to the device, those of closed buffers included.
    uint64_t copies_to_device;
    /// Their bytes.
    uint64_t bytes_to_device;
} forebay_buffer_totals;

/// The figures of a request that is about to be refused.
typedef struct {
    /// How many bytes of this structure the library fills: read no field beyond.
    uint32_t struct_size;
    /// Zero.
    uint32_t reserved;
    /// The requested bytes.
    uint64_t requested_bytes;
    /// The contiguous bytes that the request needs, after rounding and with its alignment.
    uint64_t needed_bytes;
    /// The most bytes that the pool may hold.
    uint64_t limit_bytes;
    /// The bytes that the pool holds.
    uint64_t held_bytes;
    /// Those in live blocks.
    uint64_t live_bytes;
    /// Those in free blocks that threads have cached.
    uint64_t cached_bytes;
    /// Those in no live block, cached blocks included.
    uint64_t free_bytes;
    /// The largest free piece for this request.
    uint64_t largest_free_bytes;
    /// The bytes that the device has free.
    uint64_t device_free_bytes;
    /// The bytes of the device that are neither free nor held by this pool.
    uint64_t held_elsewhere_bytes;
} forebay_shortage;

/// Called before a request is refused, to free memory of the pool or to raise its limit. Returns whether it did:
/// other than 0 if so, and the request is tried again. It is called until the request fits or it returns 0, so it may
/// free one entry of a cache at a time; after 16 calls that made no room, the request is refused. The structure is
/// valid until the callback returns.
typedef int32_t (*forebay_on_shortage)(void *context, const forebay_shortage *shortage);

/// Called when the memory pressure of a pool changes, from moderate up and back, with the bytes that the pool
/// holds.
typedef void (*forebay_on_pressure)(void *context, forebay_pressure level, uint64_t held_bytes);

/// What a device is, and how much memory it has.
typedef struct {
    /// `sizeof(forebay_device_info)`, set before the call; after it, how much of it was filled.
    uint32_t struct_size;
    /// A `forebay_device_kind`.
    uint32_t kind;
    /// Which of its kind.
    uint32_t ordinal;
    /// Zero.
    uint32_t reserved;
    /// What it can do: the sum of `FOREBAY_CAN_...`, and perhaps of others.
    uint64_t capabilities;
    /// The alignment of its allocations.
    uint64_t alignment;
    /// All its memory.
    uint64_t total_bytes;
    /// The memory that is still free.
    uint64_t free_bytes;
    /// The memory that this process holds through forebay.
    uint64_t held_bytes;
    /// The name the vendor or system gives it.
    char name[128];
    /// The version of the driver or system, for people.
    char driver[128];
} forebay_device_info;

/// How a transfer is made. All zeros but the size is the default.
typedef struct {
    /// `sizeof(forebay_transfer_options)`.
    uint32_t struct_size;
    /// Above 0 for high, below 0 for low: of several transfers, a piece of the most urgent one begins first.
    int32_t priority;
} forebay_transfer_options;

/// A transfer under way, or done. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_transfer;

/// One transfer of a batch.
typedef struct {
    /// Where to.
    void *to;
    /// Where from.
    const void *from;
    /// How many bytes.
    uint64_t size;
} forebay_transfer_item;

/// An event. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_event;

/// A shared buffer. All zeros is none.
typedef struct {
    /// Not to be looked at.
    uint64_t id;
} forebay_shared;

/// A shared buffer: what it is, and who created it.
typedef struct {
    /// `sizeof(forebay_shared_info)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// The bytes of an element.
    uint32_t element_bytes;
    /// Its size.
    uint64_t size_bytes;
    /// The process that created it, which may have ended.
    uint32_t creator_pid;
    /// The user that created it.
    uint32_t creator_uid;
    /// The name.
    char name[88];
    /// The name of the element type, cut where it does not fit.
    char type_name[128];
} forebay_shared_info;

/// The statistics of a pool. Counts are exact: every call that has returned is counted once.
typedef struct {
    /// `sizeof(forebay_statistics)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// Zero.
    uint32_t reserved;
    /// Bytes in live blocks, rounding included.
    uint64_t live_bytes;
    /// Bytes asked for by live blocks.
    uint64_t requested_bytes;
    /// Live blocks.
    uint64_t blocks;
    /// The most bytes ever out of the heap at once, in live blocks or cached in magazines.
    uint64_t peak_out_bytes;
    /// The most bytes ever in live blocks at once; `FOREBAY_NOT_COUNTED` unless the setting
    /// `statistics` is `exact`.
    uint64_t peak_live_bytes;
    /// Bytes cached in magazines.
    uint64_t cached_bytes;
    /// Freed bytes in quarantine.
    uint64_t quarantined_bytes;
    /// Bytes that are never reused, because they were corrupted.
    uint64_t retired_bytes;
    /// Bytes taken from the device.
    uint64_t held_bytes;
    /// The most bytes ever taken from the device at once.
    uint64_t peak_held_bytes;
    /// Bytes taken from the device that are in no live block.
    uint64_t free_bytes;
    /// The largest free piece.
    uint64_t largest_free_bytes;
    /// How many free pieces the heap has.
    uint64_t pieces;
    /// Blocks allocated.
    uint64_t allocations;
    /// Blocks freed.
    uint64_t frees;
    /// Allocations that took no memory from the driver.
    uint64_t hits;
    /// Those of them that a magazine served.
    uint64_t magazine_hits;
    /// Requests that fitted in no hole.
    uint64_t misses;
    /// Times a stream was made to wait for another.
    uint64_t waits;
    /// The most bytes that the pool may take from the device.
    uint64_t limit_bytes;
    /// The wall time of all driver calls.
    uint64_t driver_ns;
} forebay_statistics;

/// A copy of any shape: rows in slices, each side with its own distances. Where there is one row, or
/// one slice, its distance is not looked at.
typedef struct {
    /// `sizeof(forebay_copy_shape)`.
    uint32_t struct_size;
    /// Where to: a `forebay_side`.
    uint32_t to_side;
    /// Where from: a `forebay_side`.
    uint32_t from_side;
    /// Zero.
    uint32_t reserved;
    /// The first byte written.
    uint64_t to;
    /// From a row to the next, there.
    uint64_t to_row_bytes;
    /// From a slice to the next, there.
    uint64_t to_slice_bytes;
    /// The first byte read.
    uint64_t from;
    /// From a row to the next, there.
    uint64_t from_row_bytes;
    /// From a slice to the next, there.
    uint64_t from_slice_bytes;
    /// The bytes of a row.
    uint64_t width_bytes;
    /// The rows of a slice.
    uint64_t rows;
    /// The slices.
    uint64_t slices;
} forebay_copy_shape;

/// The result of a warm-up.
typedef struct {
    /// `sizeof(forebay_warm_up_result)`, set before the call; after it, how many bytes were filled.
    uint32_t struct_size;
    /// 1 where all blocks could be allocated, else 0.
    uint32_t complete;
    /// Requested blocks.
    uint64_t asked_blocks;
    /// Their bytes.
    uint64_t asked_bytes;
    /// Blocks that could be allocated at once.
    uint64_t had_blocks;
    /// Their bytes.
    uint64_t had_bytes;
} forebay_warm_up_result;

#ifdef __cplusplus
extern "C" {
#endif // __cplusplus

/// Creates an arena of `capacity` bytes from a pool, to be used in the order of `stream`. Where `most` is
/// above `capacity` it grows up to that by doubling; else it does not grow.
FOREBAY_MUST_USE
forebay_status forebay_arena_create(forebay_pool pool,
                                    uint64_t capacity,
                                    uint64_t most,
                                    forebay_stream stream,
                                    forebay_arena *arena);

/// Allocates `size` bytes of an arena, at a multiple of `alignment`, a power of two; 0 stands for 512.
/// They are valid until `forebay_arena_rewind`, `forebay_arena_reset` or `forebay_arena_close` takes them
/// back.
FOREBAY_MUST_USE
forebay_status forebay_arena_alloc(forebay_arena arena,
                                   uint64_t size,
                                   uint64_t alignment,
                                   void **block);

/// The present position of an arena, to rewind to.
forebay_status forebay_arena_checkpoint(forebay_arena arena, forebay_checkpoint *checkpoint);

/// Takes back everything that was allocated since the checkpoint, which can be used again.
forebay_status forebay_arena_rewind(forebay_arena arena, forebay_checkpoint checkpoint);

/// Takes back everything that was allocated. The memory stays the arena's; checkpoints lapse.
forebay_status forebay_arena_reset(forebay_arena arena);

/// The usage of an arena.
forebay_status forebay_arena_statistics(forebay_arena arena, forebay_arena_usage *usage);

/// Closes an arena and frees its memory to its pool, in the order of its stream.
forebay_status forebay_arena_close(forebay_arena arena);

/// Allocates at least `size` bytes, to be used in the order of `stream`. `block` gets the address, a multiple
/// of 512; null on failure, and where `size` is 0. The contents of the block are undefined.
FOREBAY_MUST_USE
forebay_status forebay_alloc(forebay_pool pool,
                             uint64_t size,
                             forebay_stream stream,
                             void **block);

/// As `forebay_alloc`, but the address is a multiple of `alignment`, which must be a power of two.
FOREBAY_MUST_USE
forebay_status forebay_alloc_aligned(forebay_pool pool,
                                     uint64_t size,
                                     uint64_t alignment,
                                     forebay_stream stream,
                                     void **block);

/// Allocates blocks of all these sizes, or none of them. `blocks` gets as many addresses as there are sizes.
FOREBAY_MUST_USE
forebay_status forebay_alloc_batch(forebay_pool pool,
                                   const uint64_t *sizes,
                                   size_t count,
                                   forebay_stream stream,
                                   void **blocks);

/// Frees the block that begins at `block`, in the order of `stream`: work that is enqueued there from now on
/// may reuse its memory. Null is ignored.
///
/// The caller promises:
///
/// * Only work that was enqueued on `stream` before uses the block.
forebay_status forebay_free(forebay_pool pool, void *block, forebay_stream stream);

/// As `forebay_free`, with the requested size or the size of the block as a check: any other size is refused.
///
/// The caller promises:
///
/// * As for `forebay_free`.
forebay_status forebay_free_sized(forebay_pool pool, void *block, uint64_t size, forebay_stream stream);

/// Frees a block of any pool of the process, for callers that have only its address. Searches the pools one
/// by one. The stream must belong to the block's device.
///
/// The caller promises:
///
/// * As for `forebay_free`.
forebay_status forebay_free_anywhere(void *block, forebay_stream stream);

/// Frees a block whose stream was closed: waits until the device has done all its work, then frees the block
/// in the order of the default stream. For owners that outlive their stream; with a stream, use
/// `forebay_free`, which does not wait. An address that is no live block of the pool is refused without a
/// wait. Null is ignored.
///
/// Where the device cannot be synchronised, such as while a graph is captured, nothing changes: the block
/// stays live and can be freed later.
///
/// The caller promises:
///
/// * Only work that was enqueued on the device before uses the block.
forebay_status forebay_free_synchronized(forebay_pool pool, void *block);

/// Records that `stream` uses a block, besides the stream that it will be freed on: its memory is reused only
/// after all work that both have when it is freed.
forebay_status forebay_record_use(forebay_pool pool, void *block, forebay_stream stream);

/// Makes one pool forget a stream, on which nothing more is allocated or freed: memory that was freed on it
/// serves all streams once its work so far is done. Close an adopted stream before its maker destroys it,
/// since the device uses it while its handle is open; `forebay_stream_close` makes all pools forget it.
forebay_status forebay_forget_stream(forebay_pool pool, forebay_stream stream);

/// Describes the live block that begins at `block`.
forebay_status forebay_block_query(forebay_pool pool, const void *block, forebay_block_info *info);

/// Closes a buffer and frees its memory, after the work that uses it. Refused with `FOREBAY_STATUS_BUSY` while
/// it is mapped.
forebay_status forebay_buffer_close(forebay_buffer buffer);

/// Describes a buffer: size, state, memory, copies.
forebay_status forebay_buffer_describe(forebay_buffer buffer, forebay_buffer_info *info);

/// Maps `size` bytes from `offset` on in host memory, for a `forebay_access`. Copies what the host lacks, and
/// waits for that. `memory` gets the address, which is valid until `forebay_buffer_unmap`; null on failure. Bytes
/// mapped for writing count as newer than the device's from now on.
///
/// Until it is unmapped, calls that conflict with it are refused with `FOREBAY_STATUS_BUSY`: writing the same
/// bytes on either side, and for a mapping to write also reading them; resizing, compacting, invalidating and
/// closing the buffer.
FOREBAY_MUST_USE
forebay_status forebay_buffer_map(forebay_buffer buffer,
                                  uint64_t offset,
                                  uint64_t size,
                                  uint32_t access,
                                  forebay_mapping *mapping,
                                  void **memory);

/// Ends a mapping. Its memory must not be used any more. Refused the second time.
forebay_status forebay_buffer_unmap(forebay_buffer buffer, forebay_mapping mapping);

/// The address of `size` bytes from `offset` on in device memory, for work on `stream` that does a
/// `forebay_access`. Copies what the device lacks, in the order of the stream; the stream waits for earlier use
/// on others. `memory` gets the address; null on failure, and where the buffer has no bytes. Enqueue the work before
/// the next call with this buffer: later work is not ordered with that call.
FOREBAY_MUST_USE
forebay_status forebay_buffer_on_device(forebay_buffer buffer,
                                        uint64_t offset,
                                        uint64_t size,
                                        uint32_t access,
                                        forebay_stream stream,
                                        void **memory);

/// Replaces `size` bytes from `offset` on by those at `from`.
forebay_status forebay_buffer_copy_from(forebay_buffer buffer,
                                        uint64_t offset,
                                        const void *from,
                                        size_t size);

/// Copies `size` bytes from `offset` on to `to`, and waits.
forebay_status forebay_buffer_copy_to(forebay_buffer buffer, uint64_t offset, void *to, size_t size);

/// Replaces all bytes of a buffer by those of `from`, a buffer of the same size, which may be of another device.
/// On one device they are copied there, on `stream`, where that is where they are; else through the host.
forebay_status forebay_buffer_copy(forebay_buffer to,
                                   forebay_buffer from,
                                   forebay_stream stream);

/// Fills `size` bytes from `offset` on with the low `width` bytes of `pattern`, repeated. `width` is 1, 2,
/// 4 or 8; offset and size must be multiples of it. Zeros cost nothing until they are needed.
forebay_status forebay_buffer_fill(forebay_buffer buffer,
                                   uint64_t offset,
                                   uint64_t size,
                                   uint64_t pattern,
                                   uint32_t width);

/// Changes the size of a buffer. The first bytes stay, new ones are zero. The contents move to new host memory.
forebay_status forebay_buffer_resize(forebay_buffer buffer,
                                     uint64_t size);

/// Makes both replicas current: the device's in the order of `stream`.
forebay_status forebay_buffer_synchronize(forebay_buffer buffer, forebay_stream stream);

/// Frees the memory of a replica, a `forebay_side`, after copying to the other what it alone had: to the device
/// on `stream`, and waited for. `freed`, where it is not null, gets how many bytes that was.
forebay_status forebay_buffer_compact(forebay_buffer buffer,
                                      uint32_t side,
                                      forebay_stream stream,
                                      uint64_t *freed);

/// Forgets what a replica, a `forebay_side`, has: it is copied from the other when it is needed next. What the other
/// has not is zero from now on. Does nothing where the device's memory is the host's own.
forebay_status forebay_buffer_invalidate(forebay_buffer buffer,
                                         uint32_t side);

/// Creates a manager of buffers on a device, with a pool of its own.
FOREBAY_MUST_USE
forebay_status forebay_buffer_manager_create(forebay_device device,
                                             forebay_buffer_manager *memory);

/// Creates a manager of buffers whose device memory is from `pool`, which its buffers keep open.
FOREBAY_MUST_USE
forebay_status forebay_buffer_manager_over(forebay_pool pool,
                                           forebay_buffer_manager *memory);

/// Closes a manager. Its buffers stay.
forebay_status forebay_buffer_manager_close(forebay_buffer_manager memory);

/// Creates a buffer of `size` bytes, all zero. It has no memory until it is used, on either side.
FOREBAY_MUST_USE
forebay_status forebay_buffer_create(forebay_buffer_manager memory,
                                     uint64_t size,
                                     forebay_buffer *buffer);

/// What the buffers of a manager add up to.
forebay_status forebay_buffer_manager_totals(forebay_buffer_manager memory, forebay_buffer_totals *totals);

/// The live buffers of a manager, the oldest first; for a manager that is all zeros, those of the whole process: at
/// the end of a program, its leaks. `text` gets a JSON array of objects with `number`, `bytes`, `age_ms`, `host_bytes`
/// and `device_bytes`, to be freed by `forebay_string_free`.
forebay_status forebay_live_buffers(forebay_buffer_manager memory,
                                    char **text);

/// As `forebay_pool_create`, with functions that the pool calls: `on_shortage` before it refuses a request,
/// `on_pressure` when its memory pressure changes. Each may be null, and gets `context`. A shortage is told on the
/// thread that allocates, pressure on any thread whose call changed the bytes held, and with the setting
/// `upkeep:on` on the library's own thread too. No lock is held: a callback may allocate, free, and close the
/// pool. Several threads may call at once.
///
/// The caller promises:
///
/// * The functions can be called with `context` from any thread, until the pool was closed and every call of it
///   has returned; with `upkeep:on`, as long as the process runs, since closing does not wait for that thread.
/// * They return: they neither throw nor jump out.
FOREBAY_MUST_USE
forebay_status forebay_pool_create_with_callbacks(forebay_device device,
                                                  const char *settings,
                                                  forebay_on_shortage on_shortage,
                                                  forebay_on_pressure on_pressure,
                                                  void *context,
                                                  forebay_pool *pool);

/// Opens a device by name: "host", "cuda", "hip", "opencl", "metal", "sim", or with a number "cuda:1", "sim:1". A simulated one
/// has 8 GiB, or as much as the name says: "sim@1GiB"; "phantom" is one with addresses but no memory behind
/// them. Opening the same name again gives the same device, as long as it is open.
FOREBAY_MUST_USE
forebay_status forebay_device_open(const char *name,
                                   forebay_device *device);

/// Opens the best device of this machine: the one that FOREBAY_DEVICE names, else the first GPU, else the host.
FOREBAY_MUST_USE
forebay_status forebay_device_best(forebay_device *device);

/// The number of devices of this machine: those that drivers show, and the host. Simulated devices do not count.
forebay_status forebay_device_count(uint32_t *count);

/// Opens a device of this machine by its index, below `forebay_device_count`: those of drivers first, by
/// kind and ordinal, then the host. `forebay_device_describe` tells what it is. Opening a GPU takes some of its memory
/// for the driver.
FOREBAY_MUST_USE
forebay_status forebay_device_at(uint32_t index,
                                 forebay_device *device);

/// Describes a device and its memory. Calls the driver, so it is too slow for every step of a program.
forebay_status forebay_device_describe(forebay_device device, forebay_device_info *info);

/// Waits until all work of all streams of a device is done.
forebay_status forebay_device_synchronize(forebay_device device);

/// Closes a handle of a device. Pools, streams and arenas of the device keep it open.
forebay_status forebay_device_close(forebay_device device);

/// Copies `size` bytes from the host to the device by several threads, after the work that was enqueued on `stream`, and
/// waits. Meant for ordinary memory, which a driver copies with one thread; the device copies pinned memory itself,
/// whichever library pinned it. Refused with `FOREBAY_STATUS_UNSUPPORTED` if the device lacks `FOREBAY_CAN_PINNED`.
///
/// The caller promises:
///
/// * Until the call returns: `from` has `size` readable bytes, which nothing writes; `to` has `size` bytes of the device's
///   memory, which nothing else uses.
forebay_status forebay_upload(forebay_device device,
                              void *to,
                              const void *from,
                              uint64_t size,
                              forebay_stream stream,
                              const forebay_transfer_options *options);

/// Copies `size` bytes from the device to the host by several threads, after the work that was enqueued on `stream`, and
/// waits. See `forebay_upload`.
///
/// The caller promises:
///
/// * Until the call returns: `to` has `size` writable bytes, which nothing else uses; `from` has `size` bytes of the
///   device's memory, which nothing writes.
forebay_status forebay_download(forebay_device device,
                                void *to,
                                const void *from,
                                uint64_t size,
                                forebay_stream stream,
                                const forebay_transfer_options *options);

/// As `forebay_upload`, and does not wait. `transfer` gets a handle, which has to be closed. Work that is enqueued on
/// `stream` from now on does not wait for the transfer: `forebay_transfer_order` makes it.
///
/// The caller promises:
///
/// * As for `forebay_upload`, until `forebay_transfer_wait` or `forebay_transfer_close` of the handle has returned; for the
///   source, unless it is pinned memory, also until `forebay_transfer_order` has.
/// * After `forebay_transfer_order` and a close, `to` is used and freed in the order of `stream`.
FOREBAY_MUST_USE
forebay_status forebay_upload_async(forebay_device device,
                                    void *to,
                                    const void *from,
                                    uint64_t size,
                                    forebay_stream stream,
                                    const forebay_transfer_options *options,
                                    forebay_transfer *transfer);

/// As `forebay_download`, and does not wait. `transfer` gets a handle, which has to be closed.
///
/// The caller promises:
///
/// * As for `forebay_download`, until `forebay_transfer_wait` or `forebay_transfer_close` of the handle has returned.
FOREBAY_MUST_USE
forebay_status forebay_download_async(forebay_device device,
                                      void *to,
                                      const void *from,
                                      uint64_t size,
                                      forebay_stream stream,
                                      const forebay_transfer_options *options,
                                      forebay_transfer *transfer);

/// Copies many pieces of ordinary memory from the host to the device, after the work that was enqueued on `stream`, and
/// waits. Small ones share calls of the device. An item that fails leaves the others alone: `results`, where it is not null,
/// gets the status of each, and the call's own is that of the first that failed.
///
/// The caller promises:
///
/// * Each item is as for `forebay_upload`; no two write the same byte.
forebay_status forebay_upload_batch(forebay_device device,
                                    const forebay_transfer_item *items,
                                    size_t count,
                                    forebay_stream stream,
                                    forebay_status *results);

/// Copies many pieces of device memory to ordinary memory, after the work that was enqueued on `stream`, and waits. See
/// `forebay_upload_batch`.
///
/// The caller promises:
///
/// * Each item is as for `forebay_download`; no two write the same byte.
forebay_status forebay_download_batch(forebay_device device,
                                      const forebay_transfer_item *items,
                                      size_t count,
                                      forebay_stream stream,
                                      forebay_status *results);

/// Copies `size` bytes from one device to another, of any two kinds, through host memory, after the work that was enqueued
/// on the streams of both, and waits: one part goes up while the next comes down. Refused with
/// `FOREBAY_STATUS_UNSUPPORTED` where a device has no `FOREBAY_CAN_PINNED`. If it fails in the middle, a part of `to` is
/// written.
///
/// The caller promises:
///
/// * Until the call returns: `from` has `size` bytes of `from_device`, which nothing writes; `to` has `size` bytes of
///   `to_device`, which nothing else uses.
forebay_status forebay_copy_between(forebay_device to_device,
                                    void *to,
                                    forebay_stream to_stream,
                                    forebay_device from_device,
                                    const void *from,
                                    forebay_stream from_stream,
                                    uint64_t size);

/// Waits until a transfer is done. The thread helps to copy meanwhile. The status is that of the transfer, for each thread
/// that waits and each time; the memory is the caller's again, whatever it is.
forebay_status forebay_transfer_wait(forebay_transfer transfer);

/// Waits until all of a transfer was handed to the device, and makes later work on its stream wait for it there: so a
/// transfer overlaps with kernels. From then on the host memory is the caller's again, unless it is pinned.
forebay_status forebay_transfer_order(forebay_transfer transfer);

/// Whether a transfer is done, or has failed: 1 if so, else 0. Does not wait.
forebay_status forebay_transfer_is_done(forebay_transfer transfer, int32_t *done);

/// How many bytes of a transfer were copied on the host and handed over, and how many there are. Each may be null.
forebay_status forebay_transfer_progress(forebay_transfer transfer,
                                         uint64_t *moved,
                                         uint64_t *total);

/// Ends a transfer early: no further piece begins, and waiting for it gives `FOREBAY_STATUS_CANCELLED`. What was copied
/// stays. `cancelled`, where it is not null, gets 1, or 0 if all was handed over already.
forebay_status forebay_transfer_cancel(forebay_transfer transfer,
                                       int32_t *cancelled);

/// Closes a transfer. **Waits until it is done**, since its memory may be freed next; does not wait for the device where
/// `forebay_transfer_order` has returned and the host memory is not pinned. The handle is closed in any case; the status is
/// that of the transfer. Cancel it first to end it early.
forebay_status forebay_transfer_close(forebay_transfer transfer);

/// The message of this thread's last failed call: a string that is valid until the next call that fails
/// on this thread. Empty where none has failed; in a forked child, why every call is refused. Never null.
const char *forebay_last_error(void);

/// Creates an event of a device. It counts as reached until it is recorded.
FOREBAY_MUST_USE forebay_status forebay_event_create(forebay_device device, forebay_event *event);

/// Records an event after all work that was enqueued on `stream`, a stream of the event's device. Replaces an
/// earlier record of the event.
forebay_status forebay_event_record(forebay_event event, forebay_stream stream);

/// Whether an event was reached: 1 if so, or if it was never recorded, else 0. Does not wait.
forebay_status forebay_event_query(forebay_event event, int32_t *done);

/// Waits until an event was reached. Returns at once where it was never recorded.
forebay_status forebay_event_synchronize(forebay_event event);

/// Closes an event. Streams that were made to wait for it still do.
forebay_status forebay_event_close(forebay_event event);

/// Makes later work on a stream wait, on the device, for the latest record of an event. The host does not
/// wait. The event may be of another device of the same kind; the default stream is that of the event's
/// device.
forebay_status forebay_stream_wait_event(forebay_stream stream, forebay_event event);

/// Allocates `size` bytes of pinned host memory, aligned to a page of the system. `memory` gets the address,
/// which the host reads and writes and copies from and to the device name; null on failure, and where `size`
/// is 0. The contents are undefined. Refused with `FOREBAY_STATUS_UNSUPPORTED` where the device has no
/// `FOREBAY_CAN_PINNED`. The memory comes from a pool of the device, which pins at most half of the machine's
/// memory and keeps it for later calls: only the first calls are as slow as the driver's.
FOREBAY_MUST_USE forebay_status forebay_pinned_alloc(forebay_device device, uint64_t size, void **memory);

/// Frees memory of `forebay_pinned_alloc` of the same device, for later calls of that. Null is ignored; any other
/// address is refused.
///
/// The caller promises:
///
/// * All copies from and to the memory are done (synchronise their streams first), and nothing uses it afterwards.
forebay_status forebay_pinned_free(forebay_device device,
                                   void *memory);

/// The pool of a device that the whole process shares. The first call creates it with the settings of the
/// environment (`FOREBAY_CONF`). Closing the handle leaves the pool.
FOREBAY_MUST_USE forebay_status forebay_pool_of_process(forebay_device device, forebay_pool *pool);

/// Forgets the process's shared pool of a device; the next request for it creates a new one. Handles of the
/// old pool stay valid. `had`, where it is not null, gets 1 if there was one, else 0.
forebay_status forebay_pool_forget_process(forebay_device device, int32_t *had);

/// Creates a pool. `settings` is null, or "key:value,key:value" as in `FOREBAY_CONF`, and overrides the
/// environment.
FOREBAY_MUST_USE
forebay_status forebay_pool_create(forebay_device device,
                                   const char *settings,
                                   forebay_pool *pool);

/// Closes a pool. A pool of `forebay_pool_create` returns all its memory to the device, that of live blocks
/// included, which must not be used any more. `left`, where it is not null, gets how many blocks were live.
/// Arenas, managers of buffers and their buffers keep their pool open, and so does a call of another thread until it returns.
forebay_status forebay_pool_close(forebay_pool pool,
                                  uint64_t *left);

/// A handle to the device of a pool, to be closed separately.
FOREBAY_MUST_USE forebay_status forebay_pool_device(forebay_pool pool, forebay_device *device);

/// Changes a setting while the pool lives: its name and its value, as in `FOREBAY_CONF`.
forebay_status forebay_pool_set(forebay_pool pool, const char *key, const char *value);

/// The current value of a setting. `value` gets a string, to be freed by `forebay_string_free`.
forebay_status forebay_pool_get(forebay_pool pool, const char *key, char **value);

/// The most bytes that the pool may take from its device. The settings `max_bytes` and `max_fraction`
/// change it.
forebay_status forebay_pool_limit(forebay_pool pool, uint64_t *bytes);

/// The memory pressure of a pool. Does not block.
forebay_status forebay_pool_pressure(forebay_pool pool, forebay_pressure *level);

/// Creates a shared buffer of `size` bytes, all zero, that other processes of this user open by its name: 1 to 80
/// characters of `A-Z a-z 0-9 . _ -`. The name lives as long as any process has the buffer. Refused with
/// `FOREBAY_STATUS_NAME_TAKEN` where one has it already. Linux only.
///
/// `type_name` is compared when the buffer is opened: one of `u8 i8 u16 i16 u32 i32 f32 u64 i64 f64`, of which `size`
/// is a multiple and which Rust and Python know as their own types, or any other name for the bytes of the program's own
/// structures. Put a version in it. Null is `u8`.
FOREBAY_MUST_USE
forebay_status forebay_shared_create(forebay_buffer_manager memory,
                                     const char *name,
                                     const char *type_name,
                                     uint64_t size,
                                     forebay_shared *shared);

/// Opens a shared buffer that a process of this user has created. Refused with `FOREBAY_STATUS_NOT_FOUND` if no living
/// process has the name, `_WRONG_TYPE` if the elements are of another type, `_WRONG_DEVICE` if the memory is of another
/// kind of device, `_DENIED` if it belongs to another user, and `_TIMED_OUT` if no process that has it answers, for
/// instance because all of them are stopped.
FOREBAY_MUST_USE
forebay_status forebay_shared_open(forebay_buffer_manager memory,
                                   const char *name,
                                   const char *type_name,
                                   forebay_shared *shared);

/// Opens a shared buffer of exactly `size` bytes, or creates it where no process has the name. Refused with
/// `FOREBAY_STATUS_WRONG_SIZE` where it has another size, and as `forebay_shared_open` is.
FOREBAY_MUST_USE
forebay_status forebay_shared_create_or_open(forebay_buffer_manager memory,
                                             const char *name,
                                             const char *type_name,
                                             uint64_t size,
                                             forebay_shared *shared);

/// Leaves a shared buffer: its address is invalid from now on. Releases its lock, if a thread of this process holds it by
/// this handle. The buffer stays while another process has it.
forebay_status forebay_shared_close(forebay_shared shared);

/// Describes a shared buffer.
forebay_status forebay_shared_describe(forebay_shared shared, forebay_shared_info *info);

/// Copies `size` bytes from `offset` on to `to`. Other processes may write meanwhile: some bytes are old then and some new.
/// On the host, an aligned element of up to 8 bytes is always whole.
forebay_status forebay_shared_read(forebay_shared shared,
                                   uint64_t offset,
                                   void *to,
                                   size_t size);

/// Copies `size` bytes at `from` to the shared buffer, from `offset` on.
forebay_status forebay_shared_write(forebay_shared shared, uint64_t offset, const void *from, size_t size);

/// The address of the bytes on the device, valid until the handle is closed. It is this process's own: other processes have
/// the memory at other addresses, and may write to it at any moment. `memory` gets the address; null on failure.
forebay_status forebay_shared_address(forebay_shared shared,
                                      void **memory);

/// The address of the bytes in host memory, valid until the handle is closed: the same as that on the device. Refused with
/// `FOREBAY_STATUS_UNSUPPORTED` where the host cannot reach the device's memory. Other processes may write to it at any
/// moment: hold the lock as long as you use it, and see that all sides do. `memory` gets the address; null on failure.
forebay_status forebay_shared_host_address(forebay_shared shared,
                                           void **memory);

/// Waits until nobody else holds the lock of the buffer, in any process, and takes it, until `forebay_shared_unlock` on the
/// same thread. It keeps apart those who take it, and nobody else. When the process that holds it ends, by kill -9 too, the
/// lock is free, and what it was writing may be half written.
///
/// Refused with `FOREBAY_STATUS_TIMED_OUT` where it took longer than `timeout_ms` milliseconds: 0 does not wait, a negative
/// number waits as long as it takes. Refused with `FOREBAY_STATUS_BUSY` where this thread holds it already.
FOREBAY_MUST_USE
forebay_status forebay_shared_lock(forebay_shared shared,
                                   int64_t timeout_ms);

/// Releases the lock. Refused on a thread that does not hold it.
forebay_status forebay_shared_unlock(forebay_shared shared);

/// The statistics of a pool. Stops the threads that use the pool for a moment.
forebay_status forebay_pool_statistics(forebay_pool pool, forebay_statistics *statistics);

/// A snapshot of a pool as one line of JSON with the schema "forebay.pool.v1". `json` gets a string, to be
/// freed by `forebay_string_free`.
forebay_status forebay_pool_snapshot(forebay_pool pool, char **json);

/// A summary of a pool's statistics for people. `summary` gets a string, to be freed by
/// `forebay_string_free`.
forebay_status forebay_pool_summary(forebay_pool pool, char **summary);

/// The name of a status, as it is written in C: a text that is there for ever. "unknown status" for a
/// number that is none.
const char *forebay_status_name(int32_t status);

/// Creates a stream of a device. `priority` is above 0 for high, below 0 for low, and ignored where the
/// device has no priorities.
FOREBAY_MUST_USE
forebay_status forebay_stream_create(forebay_device device,
                                     int32_t priority,
                                     forebay_stream *stream);

/// Adopts a stream that another library made, such as a `cudaStream_t`. Closing the handle does not
/// destroy it.
///
/// The caller promises:
///
/// * `raw` is a live stream of that device, and stays so until the handle is closed: the driver follows
///   it.
FOREBAY_MUST_USE
forebay_status forebay_stream_adopt(forebay_device device,
                                    void *raw,
                                    forebay_stream *stream);

/// The driver's handle of a stream, for calls of other libraries: with CUDA, the `cudaStream_t`.
FOREBAY_MUST_USE forebay_status forebay_stream_raw(forebay_stream stream, void **raw);

/// Waits until all work of a stream is done. The default stream is that of `device`; for others
/// `device` may be all zeros.
forebay_status forebay_stream_synchronize(forebay_device device, forebay_stream stream);

/// Whether all work of a stream is done: 1 if so, else 0. Does not wait. The default stream is that of
/// `device`; for others `device` may be all zeros.
forebay_status forebay_stream_query(forebay_device device, forebay_stream stream, int32_t *done);

/// Closes a stream. A stream that was created here is destroyed once its work is done; an adopted one may be
/// destroyed by its maker from then on. All pools of the device forget it first, so that memory freed on it
/// serves other streams. Free a block of it that is still live by `forebay_free_synchronized`, or by
/// `forebay_free` on a stream that was made to wait for this one's work before. The stream is closed in any
/// case; where a pool could not forget it, the status is an error.
forebay_status forebay_stream_close(forebay_stream stream);

/// Allocates under the tag of that name, on this thread, until `forebay_tag_leave`. Tags nest. A
/// process has 254 names; any more count as "other".
forebay_status forebay_tag_enter(const char *name);

/// Leaves the tag that this thread entered last.
forebay_status forebay_tag_leave(void);

/// Frees a string that a function of this library returned. Null is ignored.
///
/// The caller promises:
///
/// * `text` is null, or a string of a function that says to free it here, which was not freed yet.
void forebay_string_free(char *text);

/// Allocates at least `size` bytes of GPU `device`, to be used in the order of `stream`, from the
/// process's pool. Null on failure, with the reason in `forebay_last_error`, and where `size` is 0.
///
/// The caller promises:
///
/// * `stream` is a stream of that GPU as CUDA names it, and is not destroyed while blocks allocated or
///   freed on it are in use.
void *forebay_torch_alloc(ptrdiff_t size, int device, void *stream);

/// Frees a block of `forebay_torch_alloc`, in the order of `stream`. Null is ignored, and so is the size. An
/// address that is no live block changes nothing; the reason is in `forebay_last_error`.
///
/// The caller promises:
///
/// * As for `forebay_torch_alloc`; only work that was enqueued on `stream` before uses the block.
void forebay_torch_free(void *block, ptrdiff_t _size, int device, void *stream);

/// Begins to record what a pool is asked: the last `events` of it, 16,777,216 at most. Until
/// the recording ends, allocating and freeing take up to twice as long. With the pool's setting "stacks" on, which
/// `forebay_pool_set` changes, each allocation has its call stack: it takes some microseconds then.
forebay_status forebay_trace_start(forebay_pool pool,
                                   uint64_t events);

/// Ends the recording and writes it to `path`, by its ending as `forebay convert` does: CSV (`.csv`), forebay's own
/// form (`.fbt`) and others. Transfers of the pool's device that began meanwhile, such as by `forebay_upload`, are in
/// it: the last 65,536 that did not fail. `events`, where it is not null, gets how many there were. Where it cannot be
/// written it goes on, and can be stopped with another path.
forebay_status forebay_trace_stop(forebay_pool pool,
                                  const char *path,
                                  uint64_t *events);

/// Enqueues a copy of `size` bytes from the host to the device.
///
/// The caller promises:
///
/// * `from` can be read until the copy is done, and is not written meanwhile: synchronise the stream
///   before it is changed or goes.
/// * `to` is memory of the device until then.
forebay_status forebay_copy_to_device(forebay_device device,
                                      void *to,
                                      const void *from,
                                      uint64_t size,
                                      forebay_stream stream);

/// Enqueues a copy of `size` bytes from the device to the host.
///
/// The caller promises:
///
/// * `to` can be written until the copy is done, and nobody else uses it meanwhile: synchronise the
///   stream before it is read or goes.
/// * `from` is memory of the device until then.
forebay_status forebay_copy_to_host(forebay_device device,
                                    void *to,
                                    const void *from,
                                    uint64_t size,
                                    forebay_stream stream);

/// Enqueues a copy of `size` bytes within the device. The two must not overlap.
///
/// The caller promises:
///
/// * Both are memory of the device until the copy is done.
forebay_status forebay_copy_on_device(forebay_device device,
                                      void *to,
                                      const void *from,
                                      uint64_t size,
                                      forebay_stream stream);

/// Enqueues a copy of any shape.
///
/// The caller promises:
///
/// * The rows on the host's side can be read, or written and are used by nobody else, until the copy is
///   done; those on the device's side are its memory until then; no row written shares a byte with one
///   read.
forebay_status forebay_copy(forebay_device device, const forebay_copy_shape *shape, forebay_stream stream);

/// Enqueues a fill of `size` bytes with the low `width` bytes of `pattern`, repeated. `width` is
/// 1, 2 or 4; address and size must be multiples of it.
///
/// The caller promises:
///
/// * `to` is memory of the device until the fill is done.
forebay_status forebay_fill(forebay_device device,
                            void *to,
                            uint64_t size,
                            uint32_t pattern,
                            uint32_t width,
                            forebay_stream stream);

/// Releases free memory to the device, down to `keep` bytes held. Waits for work that may still use it.
/// `released`, where it is not null, gets how many bytes were released.
forebay_status forebay_pool_trim(forebay_pool pool, uint64_t keep, uint64_t *released);

/// Releases all free memory to the device: `forebay_pool_trim` with `keep` 0.
forebay_status forebay_pool_empty_cache(forebay_pool pool, uint64_t *released);

/// Releases memory to the device that was not used in the last `age_ms` milliseconds, as far as its age is
/// known. Does not wait.
forebay_status forebay_pool_collect(forebay_pool pool, uint64_t age_ms, uint64_t *released);

/// Merges free memory into as few and as large pieces as possible without waiting.
forebay_status forebay_pool_defragment(forebay_pool pool);

/// Completes frees that were deferred for other streams, where those are done. Does not wait.
forebay_status forebay_pool_process_deferred(forebay_pool pool);

/// Allocates `counts[i]` blocks of `sizes[i]` bytes each, all at once, and frees them on `stream`: the pool
/// then holds memory for them. Where not all fit, allocates those that do, and the figures tell how many.
forebay_status forebay_pool_warm_up(forebay_pool pool,
                                    const uint64_t *sizes,
                                    const uint64_t *counts,
                                    size_t count,
                                    forebay_stream stream,
                                    forebay_warm_up_result *figures);

/// The version of the interface of the library that is loaded.
uint32_t forebay_abi_version(void);

/// Whether a program that was built with a header of this version can use the library that is loaded:
/// `forebay_check_abi(FOREBAY_ABI_VERSION)`.
FOREBAY_MUST_USE forebay_status forebay_check_abi(uint32_t header);

/// The version of the library, for people: "0.1.0".
const char *forebay_version(void);

#ifdef __cplusplus
}  // extern "C"
#endif  // __cplusplus

#endif  /* FOREBAY_H */
