#pragma once
/// Owns a file descriptor.

#include <unistd.h>

#include <utility>

namespace trainkit::detail {

/// Closes its descriptor, if it is not negative, on destruction. The file layer has its own class (fs.h), whose calls
/// tests replace.
class UniqueDescriptor {
 public:
  explicit UniqueDescriptor(int number = -1) : number_(number) {}
  UniqueDescriptor(UniqueDescriptor&& other) noexcept : number_(other.release()) {}
  UniqueDescriptor& operator=(UniqueDescriptor&& other) noexcept {
    reset(other.release());
    return *this;
  }
  ~UniqueDescriptor() { reset(); }

  int get() const { return number_; }
  /// Gives up the descriptor without closing it.
  int release() { return std::exchange(number_, -1); }
  void reset(int number = -1) {
    if (number_ >= 0) ::close(number_);
    number_ = number;
  }

 private:
  int number_;
};

}  // namespace trainkit::detail
