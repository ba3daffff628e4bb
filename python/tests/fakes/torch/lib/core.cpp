// The part of the fake that has to be C++: it calls an allocator and catches what that throws.
#include "c10.h"

#include <cstring>
#include <functional>
#include <utility>

using Pool = std::pair<unsigned long long, unsigned long long>;

extern "C" int fake_allocate(void* (*way)(size_t, int, void*), size_t size, int device, void* stream,
                             void** block, char* said) {
  try {
    *block = way(size, device, stream);
    return 0;
  } catch (const c10::OutOfMemoryError& error) {
    std::strncpy(said, error.what_without_backtrace(), 4095);
    return 1;
  } catch (const c10::Error& error) {
    std::strncpy(said, error.what_without_backtrace(), 4095);
    return 2;
  }
}

extern "C" void fake_free(void (*way)(void*, size_t, int, void*), void* block, size_t size, int device,
                          void* stream) {
  way(block, size, device, stream);
}

extern "C" void fake_record_stream(void (*way)(void*, void*), void* block, void* stream) { way(block, stream); }

extern "C" void fake_reset(void (*way)()) { way(); }

extern "C" void fake_begin(void (*way)(int, Pool, std::function<bool(void*)>), int device, unsigned long long first,
                           unsigned long long second, void* captured) {
  way(device, {first, second}, [captured](void* stream) { return stream == captured; });
}

extern "C" void fake_end(void (*way)(int, Pool), int device, unsigned long long first, unsigned long long second) {
  way(device, {first, second});
}
