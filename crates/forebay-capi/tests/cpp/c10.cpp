#include "c10.h"

namespace c10 {

int Error::alive = 0;

Error::Error(SourceLocation location, std::string said) : said_(std::move(said)) {
  ++alive;
  whole_ = said_ + " (" + location.function + " at " + location.file + ":" +
           std::to_string(location.line) + ")";
}

Error::Error(const Error& other)
    : std::exception(other), said_(other.said_), whole_(other.whole_) {
  ++alive;
}

Error::~Error() { --alive; }

const char* Error::what() const noexcept { return whole_.c_str(); }

const char* Error::what_without_backtrace() const noexcept { return said_.c_str(); }

}  // namespace c10

// So that the class's tables are in this library, as they are in PyTorch's.
extern "C" void throw_one() {
  throw c10::OutOfMemoryError({"one", "here", 7}, "one that the compiler made");
}
