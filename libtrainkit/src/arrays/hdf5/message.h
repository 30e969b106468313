#pragma once
/// Serialises values for transfer between a process and its forked copy.

#include <absl/status/status.h>
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

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
  void put(const std::string& name, const std::string& type, std::optional<at::ScalarType> dtype,
           const std::vector<int64_t>& sizes) {
    put(name);
    put(type);
    put(dtype ? static_cast<int64_t>(*dtype) : -1);
    put(std::ssize(sizes));
    for (const int64_t size : sizes) put(size);
  }
  int64_t number() {
    int64_t value = 0;
    if (bytes_.size() - at_ >= sizeof value) std::memcpy(&value, bytes_.data() + at_, sizeof value);
    at_ = std::min(bytes_.size(), at_ + sizeof value);
    return value;
  }
  /// A number of values, at most `most`: the copy may have been damaged.
  size_t size(int64_t most) { return static_cast<size_t>(std::clamp<int64_t>(number(), 0, most)); }
  std::string text() {
    const auto size = std::min(static_cast<size_t>(number()), bytes_.size() - at_);
    at_ += size;
    return bytes_.substr(at_ - size, size);
  }
  absl::Status status() {
    const auto code = static_cast<absl::StatusCode>(number());
    return absl::Status(code, text());
  }
  /// The description of an array, as it was put.
  void take(std::string& name, std::string& type, std::optional<at::ScalarType>& dtype, std::vector<int64_t>& sizes) {
    constexpr int64_t kMostSizes = 64;
    name = text();
    type = text();
    const int64_t code = number();
    if (code >= 0 && code < static_cast<int64_t>(at::ScalarType::NumOptions)) dtype = static_cast<at::ScalarType>(code);
    sizes.resize(size(kMostSizes));
    for (int64_t& size : sizes) size = number();
  }
  std::string take() { return std::move(bytes_); }

 private:
  std::string bytes_ = {};
  size_t at_ = 0;
};

}  // namespace trainkit::detail
