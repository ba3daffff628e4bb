// 5. C++: buffers that are on the host and on a device. forebay copies when a use needs it, and nothing else.
//
//   c++ -std=c++17 05_unified_buffers.cpp $(pkg-config --cflags --libs forebay) -Wl,-rpath,"$(pkg-config --variable=libdir forebay)" -o unified && ./unified

#include <forebay.hpp>

#include <iostream>

int main() try {
    const forebay::device device = forebay::device::best();
    const forebay::buffer_manager memory{device};
    const forebay::stream stream{device};

    const forebay::unified_buffer<float> x{memory, 1 << 20}; // no memory yet; all zero
    {
        const forebay::host_view<float> view = x.host_mut();
        view[505] = 2.5F;
        try {
            x.on_device(stream); // the host still writes it
        } catch (const forebay::error &error) {
            std::cout << error.name() << ": " << error.what() << "\n";
        }
    }
    // Current on the device, in the order of the stream: for a kernel.
    std::cout << "a kernel may change " << x.on_device_mut(stream) << " now\n";
    // Copied back, after the kernel.
    std::cout << x.host()[505] << ", copied to the device: " << x.info().bytes_to_device << " bytes\n";
    return 0;
} catch (const std::exception &error) {
    std::cerr << error.what() << "\n";
    return 1;
}
