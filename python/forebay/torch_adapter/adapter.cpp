// The functions that the Python package calls.

#include "adapter.h"
#include "pinned.h"

/// Makes forebay PyTorch's allocator, with the library at `path`, and of pinned memory too where asked. Null, or why not:
/// then nothing has changed.
extern "C" __attribute__((visibility("default"))) const char* forebay_adapter_install(const char* path, int pinned) {
  static std::string reason;
  try {
    if (pinned) forebay::PinnedAdapter::prepare();
    reason = forebay::Adapter::install(path);
    if (pinned && reason.empty()) forebay::PinnedAdapter::install();
  } catch (const std::exception& error) {
    reason = error.what();
  }
  return reason.empty() ? nullptr : reason.c_str();
}

/// Moves a storage to memory that other processes can map, unless it is there. Null, or why not.
extern "C" __attribute__((visibility("default"))) const char* forebay_adapter_make_shareable(void* storage) {
  thread_local std::string reason;
  try {
    forebay::Adapter::instance().make_shareable(*static_cast<c10::StorageImpl*>(storage));
    return nullptr;
  } catch (const std::exception& error) {
    reason = error.what();
    return reason.c_str();
  }
}
