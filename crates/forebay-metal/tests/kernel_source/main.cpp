// The kernels of Metal's device on random shapes, against plain loops: every byte of the shape is written, and no other.

#include <cstddef>
#include <cstdio>
#include <random>
#include <vector>

#include KERNEL_SOURCE

static std::mt19937 random_numbers(1);

static ulong below(ulong end)
{
    return random_numbers() % end;
}

// As the device launches it: a thread for each 16 bytes of a row, which covers the width.
template <typename Kernel> static void launch(const Shape &shape, uint rows, uint slices, Kernel run)
{
    const uint columns = uint((shape.width + bytes_per_thread - 1) / bytes_per_thread);
    for (uint z = 0; z < slices; z++)
        for (uint y = 0; y < rows; y++)
            for (uint x = 0; x < columns; x++)
                run(uint3{x, y, z});
}

static bool try_one(int round)
{
    const uint rows = uint(1 + below(4)), slices = uint(1 + below(3));
    Shape shape = {};
    shape.width = 1 + below(70);
    const ulong room[2] = {shape.width + below(9), shape.width + below(9)};
    shape.to_start = below(300), shape.to_row = room[0], shape.to_slice = room[0] * rows + below(9);
    shape.from_start = below(300), shape.from_row = room[1], shape.from_slice = room[1] * rows + below(9);
    // Exactly as long as the shape reaches, so that a sanitizer sees every byte beyond.
    const auto reach = [&](ulong start, ulong row, ulong slice) {
        return start + (slices - 1) * slice + (rows - 1) * row + shape.width;
    };
    std::vector<uchar> to(reach(shape.to_start, shape.to_row, shape.to_slice));
    std::vector<uchar> from(reach(shape.from_start, shape.from_row, shape.from_slice));
    for (auto &byte : to)
        byte = uchar(below(256));
    for (auto &byte : from)
        byte = uchar(below(256));
    const uchar4 pattern = {{1, 2, 3, 4}};
    std::vector<uchar> copied = to, filled = to, copied_there = to, filled_there = to;
    for (uint z = 0; z < slices; z++)
        for (uint y = 0; y < rows; y++)
            for (ulong i = 0; i < shape.width; i++) {
                const ulong at = shape.to_start + z * shape.to_slice + y * shape.to_row + i;
                copied[at] = from[shape.from_start + z * shape.from_slice + y * shape.from_row + i];
                filled[at] = uchar(1 + i % 4);
            }
    launch(shape, rows, slices, [&](uint3 at) { forebay_copy(copied_there.data(), from.data(), shape, at); });
    launch(shape, rows, slices, [&](uint3 at) { forebay_fill(filled_there.data(), pattern, shape, at); });
    if (copied_there != copied || filled_there != filled)
        std::fprintf(stderr, "round %d: width %u, %u rows, %u slices: wrong bytes\n", round, uint(shape.width), rows,
                     slices);
    return copied_there == copied && filled_there == filled;
}

int main()
{
    // The layout that kernel.rs gives them.
    static_assert(sizeof(Shape) == 56 && offsetof(Shape, from_start) == 24 && offsetof(Shape, width) == 48);
    for (int round = 0; round < 2000; round++)
        if (!try_one(round))
            return 1;
    return 0;
}
