/* Decodes independent LZ4 blocks: one group of lanes for each block.
 *
 * One source for three languages. CUDA runs a warp for each block, OpenCL C a work group of any size, and plain C one
 * lane or several threads, which is how the tests run it under sanitizers. "cargo xtask kernels" builds lz4.ptx from it.
 *
 * All lanes read the same sequence at the same time, so their control flow is the same and none has to tell the others
 * what it found. They share the copying: of every group of consecutive bytes, each lane copies one.
 *
 * Whatever the input holds, a lane reads only bytes of its block's input and of the output that was written before, and
 * writes only bytes of its block's output. Each of them is written once, so one barrier before each match is enough. */

#if defined(__OPENCL_C_VERSION__) || defined(__OPENCL_VERSION__)
typedef uchar u8;
typedef uint u32;
typedef ulong u64;
#define GLOBAL __global
#define RESTRICT restrict
#define FUNCTION static
#define KERNEL __kernel
#define LANES ((u32)get_local_size(0))
#define LANE ((u32)get_local_id(0))
#define BLOCK ((u32)get_group_id(0))
#define SYNC() barrier(CLK_GLOBAL_MEM_FENCE)
#elif defined(__CUDA__) || defined(__CUDACC__)
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define GLOBAL
#define RESTRICT __restrict__
#define FUNCTION static __attribute__((device)) __attribute__((always_inline))
#define KERNEL extern "C" __attribute__((global))
#define LANES 32u
#define LANE (__nvvm_read_ptx_sreg_tid_x() % LANES)
#define BLOCK                                                                                                          \
    (__nvvm_read_ptx_sreg_ctaid_x() * (__nvvm_read_ptx_sreg_ntid_x() / LANES) + __nvvm_read_ptx_sreg_tid_x() / LANES)
#define SYNC() __nvvm_bar_warp_sync(0xffffffffu)
#else
/* Plain C: who includes this file defines LANES, LANE, BLOCK and SYNC. */
typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
#define GLOBAL
#define RESTRICT restrict
#define FUNCTION static
#define KERNEL static
#endif

/* Statuses; `forebay_core::transfer::BlockStatus` names them. */
#define DECODED 0u
#define BAD_TABLE 1u
#define TRUNCATED 2u
#define TOO_LONG 3u
#define BAD_OFFSET 4u
#define TOO_SHORT 5u

/* Above all lengths. */
#define NO_LENGTH 0xffffffffu

/* The longest block. A length is at most this and a byte more, so none overflows. */
#define MOST (4u << 20)

/* Copies bytes that do not overlap. Four loads before the stores that might alias them, so that they are under way at
 * the same time. */
FUNCTION void copy(GLOBAL u8 *to, const GLOBAL u8 *from, u32 length, u32 lane)
{
    u32 i = lane;
    for (; i + 3u * LANES < length; i += 4u * LANES) {
        u8 a = from[i], b = from[i + LANES], c = from[i + 2u * LANES], d = from[i + 3u * LANES];
        to[i] = a;
        to[i + LANES] = b;
        to[i + 2u * LANES] = c;
        to[i + 3u * LANES] = d;
    }
    for (; i < length; i += LANES)
        to[i] = from[i];
}

/* Copies `length` bytes from `offset` bytes before them. Where they overlap, the bytes before repeat: those are read,
 * and none that a lane writes meanwhile. */
FUNCTION void copy_match(GLOBAL u8 *to, u32 offset, u32 length, u32 lane)
{
    const GLOBAL u8 *from = to - offset;
    u32 i, at, step;
    if (length <= offset) {
        copy(to, from, length, lane);
        return;
    }
    at = lane < offset ? lane : lane % offset;
    step = LANES < offset ? LANES : LANES % offset;
    for (i = lane; i < length; i += LANES) {
        to[i] = from[at];
        at += step;
        if (at >= offset)
            at -= offset;
    }
}

/* The length that goes on in the bytes at `*at`: NO_LENGTH where they end first, and any above `most` where it is. */
FUNCTION u32 long_length(const GLOBAL u8 *RESTRICT in, u32 in_size, u32 *at, u32 length, u32 most)
{
    u32 byte;
    do {
        if (*at >= in_size)
            return NO_LENGTH;
        byte = in[*at];
        *at += 1u;
        length += byte;
    } while (byte == 255u && length <= most);
    return length;
}

/* Decodes one block of exactly `out_size` bytes. */
FUNCTION u32 decode(const GLOBAL u8 *RESTRICT in, u32 in_size, GLOBAL u8 *out, u32 out_size, u32 lane)
{
    u32 at = 0, made = 0, token = in_size > 0u ? in[0] : 0u;
    for (;;) {
        u32 literals, literals_at, match, offset;
        u32 room = out_size - made;
        if (at >= in_size)
            return TRUNCATED;
        at += 1u;
        literals = token >> 4;
        if (literals == 15u)
            literals = long_length(in, in_size, &at, literals, room);
        if (literals == NO_LENGTH)
            return TRUNCATED;
        if (literals > room)
            return TOO_LONG;
        if (literals > in_size - at)
            return TRUNCATED;
        literals_at = at;
        at += literals;
        room -= literals;
        /* The last sequence has no match. */
        if (at == in_size) {
            copy(out + made, in + literals_at, literals, lane);
            return room == 0u ? DECODED : TOO_SHORT;
        }
        if (in_size - at < 2u)
            return TRUNCATED;
        offset = (u32)in[at] | (u32)in[at + 1u] << 8;
        at += 2u;
        if (offset == 0u || offset > made + literals)
            return BAD_OFFSET;
        match = token & 15u;
        if (match == 15u)
            match = long_length(in, in_size, &at, match, room);
        if (match == NO_LENGTH)
            return TRUNCATED;
        match += 4u;
        if (match > room)
            return TOO_LONG;
        /* All of the sequence was read. The next token is on its way while the bytes are copied. */
        token = at < in_size ? in[at] : 0u;
        copy(out + made, in + literals_at, literals, lane);
        made += literals;
        SYNC();
        copy_match(out + made, offset, match, lane);
        made += match;
    }
}

/* Block i of the output is the `block_size` bytes from i * block_size, or what is left of `to_size`. Its input ends
 * before data[ends[i]] and begins where that of the block before ended. Input as long as its output is the output. */
KERNEL void forebay_lz4_decode(const GLOBAL u8 *RESTRICT data, u64 data_size, const GLOBAL u64 *RESTRICT ends,
                               GLOBAL u8 *to, u64 to_size, u32 block_size, u32 blocks, GLOBAL u32 *statuses)
{
    u32 block = BLOCK, lane = LANE, status = BAD_TABLE;
    u64 begin, end, start;
    if (block >= blocks)
        return;
    begin = block == 0u ? 0u : ends[block - 1u];
    end = ends[block];
    start = (u64)block * block_size;
    if (block_size <= MOST && start < to_size && begin <= end && end <= data_size) {
        u32 size = to_size - start < block_size ? (u32)(to_size - start) : block_size;
        if (end - begin == size) {
            copy(to + start, data + begin, size, lane);
            status = DECODED;
        } else if (end - begin < size) {
            status = decode(data + begin, (u32)(end - begin), to + start, size, lane);
        }
    }
    if (lane == 0u)
        statuses[block] = status;
}
