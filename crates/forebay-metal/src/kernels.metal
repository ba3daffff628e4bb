// Copies and fills of any alignment, in rows and slices: blits take multiples of 4 bytes only.
//
// A thread moves up to 16 bytes of one row, so it touches no byte of another thread's.

#include <metal_stdlib>

using namespace metal;

struct Shape {
    ulong to_start, to_row, to_slice;
    ulong from_start, from_row, from_slice;
    ulong width;
};

constant constexpr ulong bytes_per_thread = 16;

kernel void forebay_copy(device uchar *to [[buffer(0)]],
                         device const uchar *from [[buffer(1)]],
                         constant Shape &shape [[buffer(2)]],
                         uint3 at [[thread_position_in_grid]])
{
    device uchar *write = to + shape.to_start + at.z * shape.to_slice + at.y * shape.to_row;
    device const uchar *read = from + shape.from_start + at.z * shape.from_slice + at.y * shape.from_row;
    const ulong first = at.x * bytes_per_thread;
    const ulong end = first + bytes_per_thread < shape.width ? first + bytes_per_thread : shape.width;
    for (ulong i = first; i < end; i++) {
        write[i] = read[i];
    }
}

kernel void forebay_fill(device uchar *to [[buffer(0)]],
                         constant uchar4 &pattern [[buffer(1)]],
                         constant Shape &shape [[buffer(2)]],
                         uint3 at [[thread_position_in_grid]])
{
    device uchar *write = to + shape.to_start + at.z * shape.to_slice + at.y * shape.to_row;
    const ulong first = at.x * bytes_per_thread;
    const ulong end = first + bytes_per_thread < shape.width ? first + bytes_per_thread : shape.width;
    for (ulong i = first; i < end; i++) {
        write[i] = pattern[i % 4];
    }
}
