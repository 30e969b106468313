#pragma once
/// Serialises values for transfer between a process and its forked copy.

#include <absl/status/status.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <string>
#include <utility>

namespace trainkit::detail {

/// A sequence of numbers, texts and statuses in the byte order of this machine. Values are read in the order of
/// writing. Values missing from a truncated message are read as 0 or empty.
class Message {
 public:
  Message() = default;
  explicit Message(std::string bytes) : bytes_(std::move(bytes)) {}
  void put(int64_t value) { bytes_.append(reinterpret_cast<const char*>(&value), sizeof value); }
  void put(const std::string& text) {
    put(static_cast<int64_t>(text.size()));
    bytes_ += text;
  }
  void put(const absl::Status& status) {
    put(static_cast<int64_t>(status.code()));
    put(std::string(status.message()));
  }
  int64_t number() {
    int64_t value = 0;
    if (bytes_.size() - at_ >= sizeof value) std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ = std::min(bytes_.size(), at_ + sizeof value);
    return value;
  }
  std::string text() {
    const auto size = std::min(static_cast<size_t>(number()), bytes_.size() - at_);
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  absl::Status status() {
    const auto code = static_cast<absl::StatusCode>(number());
    return absl::Status(code, text());
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_ = {};
  size_t at_ = 0;
};

}  // namespace trainkit::detail
