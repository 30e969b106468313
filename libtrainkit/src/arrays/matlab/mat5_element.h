#pragma once
/// Reads the elements of a variable in a version 5 MAT file.

#include <absl/status/statusor.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <optional>
#include <span>
#include <string>
#include <utility>

#include "io/files/inflate.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {

inline constexpr int64_t kMatTagBytes = 8;
inline constexpr uint32_t kMatMatrix = 14, kMatCompressed = 15;

template <class Number>
Number swapped(Number value) {
  auto bytes = std::bit_cast<std::array<char, sizeof(Number)>>(value);
  std::reverse(bytes.begin(), bytes.end());
  return std::bit_cast<Number>(bytes);
}

/// A top-level element as described by its tag.
struct Element {
  int64_t offset = 0;  // offset of its tag in the file
  std::span<const std::byte> bytes;
  bool compressed = false;
};

/// Reads the sub-elements of one variable from its first to its last byte, decompressing if needed. Every read is
/// checked against the remaining size of the element.
class ElementReader {
 public:
  ElementReader(const Element& element, bool swap) : element_(element), swap_(swap) {
    if (element.compressed) inflater_.emplace(element.bytes);
  }

  /// Reads the tag at the start of a compressed variable. Call it first.
  absl::Status open(int64_t most_bytes) {
    remaining_ = element_.compressed ? kMatTagBytes : static_cast<int64_t>(element_.bytes.size());
    if (!element_.compressed) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(const auto tag, (read_numbers<uint32_t, 2>()));
    if (tag[0] != kMatMatrix)
      return absl::InvalidArgumentError(fmt::format("compressed data of type {} is not an array", tag[0]));
    remaining_ = tag[1];
    if (remaining_ > most_bytes) {
      return absl::InvalidArgumentError(
          fmt::format("inflates to {}, the limit is {}", describe_bytes(remaining_), describe_bytes(most_bytes)));
    }
    return absl::OkStatus();
  }

  absl::Status read(void* out, int64_t size) {
    TRAINKIT_RETURN_IF_ERROR(claim(size));
    remaining_ -= size;
    if (!inflater_) {
      std::memcpy(out, element_.bytes.data() + position_, static_cast<size_t>(size));
      position_ += size;
      return absl::OkStatus();
    }
    TRAINKIT_ASSIGN_OR_RETURN(const size_t got, inflater_->read(out, static_cast<size_t>(size)));
    if (static_cast<int64_t>(got) < size) return absl::DataLossError("the compressed data ends before the variable");
    return absl::OkStatus();
  }

  /// Returns kDataLoss if fewer than `size` bytes remain, or if compressed data is too short to contain them:
  /// deflate compresses 1032 to 1 at most (https://zlib.net/zlib_tech.html). Call it before allocating `size` bytes.
  absl::Status claim(int64_t size) const {
    constexpr int64_t kMaxRatio = 1032;
    if (inflater_ && size / kMaxRatio > static_cast<int64_t>(element_.bytes.size())) {
      return absl::DataLossError("the compressed data ends before the variable");
    }
    if (size <= remaining_) return absl::OkStatus();
    return absl::DataLossError(fmt::format("element claims {} bytes, {} remain (truncated?)", size, remaining_));
  }

  template <class Number, size_t count>
  absl::StatusOr<std::array<Number, count>> read_numbers() {
    std::array<Number, count> numbers;
    TRAINKIT_RETURN_IF_ERROR(read(numbers.data(), sizeof numbers));
    if (swap_) std::transform(numbers.begin(), numbers.end(), numbers.begin(), swapped<Number>);
    return numbers;
  }

  /// Type and size of the next sub-element. Data of up to 4 bytes is stored inside the tag ("small element").
  struct Tag {
    uint32_t type = 0;
    int64_t bytes = 0;
    int64_t padding = 0;
  };
  absl::StatusOr<Tag> read_tag() {
    TRAINKIT_ASSIGN_OR_RETURN(const auto first, (read_numbers<uint32_t, 1>()));
    const uint32_t small = first[0] >> 16;
    if (small > 4) return absl::InvalidArgumentError(fmt::format("a small element of {} bytes", small));
    if (small > 0) return Tag{first[0] & 0xffff, small, 4 - static_cast<int64_t>(small)};
    TRAINKIT_ASSIGN_OR_RETURN(const auto second, (read_numbers<uint32_t, 1>()));
    return Tag{first[0], second[0], (8 - static_cast<int64_t>(second[0] % 8)) % 8};
  }

  /// Reads a whole sub-element of at most `most` bytes, in the byte order of the file.
  absl::StatusOr<std::pair<uint32_t, std::string>> read_small(const std::string& what, size_t most) {
    TRAINKIT_ASSIGN_OR_RETURN(const Tag tag, read_tag());
    if (tag.bytes > static_cast<int64_t>(most)) {
      return absl::InvalidArgumentError(fmt::format("{} of {} bytes, at most {} are possible", what, tag.bytes, most));
    }
    std::string bytes(static_cast<size_t>(tag.bytes), '\0');
    TRAINKIT_RETURN_IF_ERROR(read(bytes.data(), tag.bytes));
    TRAINKIT_RETURN_IF_ERROR(skip_padding(tag));
    return std::pair(tag.type, std::move(bytes));
  }

  absl::Status skip_padding(const Tag& tag) {
    std::array<char, 8> zeros;
    return read(zeros.data(), std::min(tag.padding, remaining_));  // some writers omit the last padding
  }

  absl::Status finish() {
    if (remaining_ > 0) return absl::InvalidArgumentError(fmt::format("{} bytes follow the data", remaining_));
    return inflater_ ? inflater_->finish() : absl::OkStatus();
  }

  /// Current position in the file. For compressed variables, the position of the element.
  int64_t offset() const { return element_.offset + (inflater_ ? 0 : kMatTagBytes + position_); }

 private:
  Element element_;
  bool swap_;
  std::optional<Inflater> inflater_;
  int64_t position_ = 0;
  int64_t remaining_ = 0;
};

}  // namespace trainkit::detail
