/* Runs the kernel of kernels/copy.c as plain C with random pieces, and compares. Each side of a piece is an allocation of
 * its own that ends where the piece does, so that a sanitizer sees every access past it. Before the piece are up to 31
 * bytes more, for the alignment: those must stay, and a sanitizer sees accesses to all of them but the last seven.
 *
 * Ends with 1, and says why, where a byte is wrong. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if defined(__SANITIZE_ADDRESS__)
#include <sanitizer/asan_interface.h>
#define FORBID(start, size) __asan_poison_memory_region(start, (size) & ~7ull)
#define ALLOW(start, size) __asan_unpoison_memory_region(start, size)
#else
#define FORBID(start, size) (void)(size)
#define ALLOW(start, size) (void)(size)
#endif

#define ROUNDS 400u
#define MAX 64u
#define GROUPS 3u
static unsigned int lane_number, group_number;
#define LANE lane_number
#define GROUP group_number
#include "../../kernels/copy.c"

static u64 state = 0x9e3779b97f4a7c15ull;

static u64 below(u64 limit)
{
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state % limit;
}

/* One side of a piece. */
struct side {
    u8 *memory;
    u64 skip;
};

static struct side side(u64 skip, u64 size, int random)
{
    struct side made = {malloc(skip + size + (skip + size == 0)), skip};
    u64 i;
    if (made.memory == NULL)
        exit(3);
    memset(made.memory, 0xa5, skip);
    for (i = 0; i < size; i++)
        made.memory[skip + i] = random ? (u8)below(256) : 0x5a;
    FORBID(made.memory, skip);
    return made;
}

int main(void)
{
    static struct piece pieces[MAX];
    static struct side to[MAX], from[MAX];
    u32 round, i;
    u64 at;
    for (round = 0; round < ROUNDS; round++) {
        u32 count = (u32)below(MAX + 1u);
        for (i = 0; i < count; i++) {
            u64 size = round % 2u == 0u ? below(80) : below(9000), skip = below(32);
            /* Half of them as far from a multiple of 16 on both sides, a quarter of one of 4. */
            u64 kind = below(4), other = kind < 2u ? skip : kind == 2u ? (skip + 4u * below(4)) % 32u : below(32);
            to[i] = side(skip, size, 0);
            from[i] = side(other, size, 1);
            pieces[i] = (struct piece){(u64)(to[i].memory + skip), (u64)(from[i].memory + other), size};
        }
        for (group_number = 0; group_number < GROUPS; group_number++)
            for (lane_number = 0; lane_number < LANES; lane_number++)
                forebay_copy(pieces, count);
        for (i = 0; i < count; i++) {
            u64 size = pieces[i].bytes;
            ALLOW(to[i].memory, to[i].skip);
            ALLOW(from[i].memory, from[i].skip);
            for (at = 0; at < to[i].skip + size; at++) {
                u8 right = at < to[i].skip ? 0xa5 : from[i].memory[from[i].skip + at - to[i].skip];
                if (to[i].memory[at] != right) {
                    fprintf(stderr, "round %u, piece %u: byte %lld of %llu from %llu to %llu is wrong\n", round, i,
                            (long long)(at - to[i].skip), size, pieces[i].from % 16u, pieces[i].to % 16u);
                    return 1;
                }
            }
            free(to[i].memory);
            free(from[i].memory);
        }
    }
    return 0;
}
