// 4. C++: owners that clean up, errors that are thrown.
//
//   c++ -std=c++17 04_buffers_and_arenas.cpp $(pkg-config --cflags --libs forebay) -Wl,-rpath,"$(pkg-config --variable=libdir forebay)" -o buffers && ./buffers

#include <forebay.hpp>

#include <iostream>

int main() try {
    const forebay::device device = forebay::device::best();
    const forebay::pool pool{device, "max_bytes:256MiB"};
    const forebay::stream stream{device};

    // Values on the device, given back on their stream when the buffer goes.
    forebay::buffer<float> x{pool, 1024, stream};
    x.copy_from(std::vector<float>(1024, 2.5F));
    std::cout << device.name() << ": " << x.to_vector().back() << " in " << x.bytes() << " bytes\n";

    // One step of a program: memory taken one by one, and taken back at once.
    const forebay::arena arena{pool, 16 << 20, 0, stream};
    for (int step = 0; step < 3; step++) {
        const forebay::arena_scope scope{arena};
        const auto *hidden = arena.alloc_of<float>(1 << 20);
        const auto *scores = arena.alloc_of<float>(1 << 18);
        std::cout << "step " << step << ": " << scores - hidden << " floats apart\n";
    }
    std::cout << "at most " << (arena.usage().high_water_bytes >> 20) << " MiB of the arena\n";

    try {
        const forebay::buffer<double> huge{pool, std::size_t{1} << 40};
    } catch (const forebay::out_of_memory &error) {
        std::cout << error.name() << ": " << error.what() << "\n";
    }
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
