/* Copies many pieces of memory: one group of lanes for each piece, and the next one when it is done.
 *
 * One source for two languages. CUDA runs warps; plain C runs one lane after another, which is how the tests run it under
 * sanitizers. "cargo xtask kernels" builds copy.ptx from it.
 *
 * A lane reads only bytes of its piece's source and writes only bytes of its destination: what is wider than a byte is
 * moved only where it lies within both. No lane reads what another writes, so there is no barrier. */

#if defined(__CUDA__) || defined(__CUDACC__)
#define FUNCTION static __attribute__((device)) __attribute__((always_inline))
#define KERNEL extern "C" __attribute__((global))
#define LANES 32u
#define LANE (__nvvm_read_ptx_sreg_tid_x() % LANES)
#define WARPS (__nvvm_read_ptx_sreg_ntid_x() / LANES)
#define GROUP (__nvvm_read_ptx_sreg_ctaid_x() * WARPS + __nvvm_read_ptx_sreg_tid_x() / LANES)
#define GROUPS (__nvvm_read_ptx_sreg_nctaid_x() * WARPS)
#else
/* Plain C: who includes this file defines LANES, LANE, GROUP and GROUPS. */
#define FUNCTION static
#define KERNEL static
#endif

typedef unsigned char u8;
typedef unsigned int u32;
typedef unsigned long long u64;
/* Words of any type's memory, at multiples of their size. */
typedef u32 word __attribute__((may_alias));
typedef u32 wide __attribute__((vector_size(16), may_alias));

struct piece {
    u64 to, from, bytes;
};

/* Moves `count` values. Four loads before the stores that might alias them, so that they are under way at the same
 * time: from the host's memory each takes a microsecond. */
#define MOVE(name, type)                                                                                               \
    FUNCTION void name(type *to, const type *from, u64 count, u32 lane)                                                \
    {                                                                                                                  \
        u64 i = lane;                                                                                                  \
        for (; i + 3u * LANES < count; i += 4u * LANES) {                                                              \
            type a = from[i], b = from[i + LANES], c = from[i + 2u * LANES], d = from[i + 3u * LANES];                 \
            to[i] = a;                                                                                                 \
            to[i + LANES] = b;                                                                                         \
            to[i + 2u * LANES] = c;                                                                                    \
            to[i + 3u * LANES] = d;                                                                                    \
        }                                                                                                              \
        for (; i < count; i += LANES)                                                                                  \
            to[i] = from[i];                                                                                           \
    }

MOVE(move_bytes, u8)
MOVE(move_words, word)
MOVE(move_wides, wide)

/* Copies a piece by the widest moves that both addresses allow; what is before the first and after the last by bytes. */
FUNCTION void copy_piece(u8 *to, const u8 *from, u64 bytes, u32 lane)
{
    u64 apart = (u64)to ^ (u64)from;
    u64 unit = apart % sizeof(wide) == 0u ? sizeof(wide) : apart % sizeof(word) == 0u ? sizeof(word) : 1u;
    u64 head = (0u - (u64)to) % unit, count, tail;
    if (head > bytes)
        head = bytes;
    count = (bytes - head) / unit;
    tail = head + count * unit;
    if (unit == sizeof(wide))
        move_wides((wide *)(to + head), (const wide *)(from + head), count, lane);
    else if (unit == sizeof(word))
        move_words((word *)(to + head), (const word *)(from + head), count, lane);
    else
        move_bytes(to, from, count, lane);
    move_bytes(to, from, head, lane);
    move_bytes(to + tail, from + tail, bytes - tail, lane);
}

/* Copies every piece. They may be read and written in any order, so none may overlap what another writes. */
KERNEL void forebay_copy(const struct piece *pieces, u32 count)
{
    u32 i, lane = LANE;
    for (i = GROUP; i < count; i += GROUPS)
        copy_piece((u8 *)pieces[i].to, (const u8 *)pieces[i].from, pieces[i].bytes, lane);
}
