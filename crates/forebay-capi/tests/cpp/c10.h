// Stand-ins for PyTorch's classes of errors: the same names, the same kinds of fields and functions.
#pragma once

#include <cstdint>
#include <exception>
#include <memory>
#include <string>
#include <vector>

namespace c10 {

struct SourceLocation {
  const char* function;
  const char* file;
  uint32_t line;
};

class Error : public std::exception {
  std::string said_;
  std::vector<std::string> context_;
  std::shared_ptr<const std::string> backtrace_;
  void* lazy_ = nullptr;
  std::string whole_;
  const void* caller_ = nullptr;

 public:
  static int alive;
  Error(SourceLocation location, std::string said);
  Error(const Error& other);
  ~Error() override;
  const char* what() const noexcept override;
  virtual const char* what_without_backtrace() const noexcept;
};

class OutOfMemoryError : public Error {
  using Error::Error;
};

}  // namespace c10
