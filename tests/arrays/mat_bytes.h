#pragma once
/// Builds valid and invalid `.mat` files of version 5 byte by byte, without the library's own writer.

#include <zlib.h>

#include <algorithm>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>
#include <vector>

#include "io/bytes.h"

namespace trainkit::test {

/// Writes numbers in the byte order of a file.
class MatBytes {
 public:
  explicit MatBytes(bool big_endian = false) : big_endian_(big_endian) {}

  template <class Number>
  std::string number(Number value) const {
    std::string bytes(reinterpret_cast<const char*>(&value), sizeof value);
    return big_endian_ ? std::string(bytes.rbegin(), bytes.rend()) : bytes;
  }

  template <class Number>
  std::string numbers(const std::vector<Number>& values) const {
    std::string bytes;
    for (const Number value : values) bytes += number(value);
    return bytes;
  }

  std::string header(uint16_t version = 0x0100) const {
    std::string text = "MATLAB 5.0 MAT-file, made by a test";
    text.resize(124, ' ');
    return text + number(version) + number<uint16_t>(('M' << 8) | 'I');
  }

  /// A tag that claims `claimed` bytes before `data`, with padding.
  std::string element(uint32_t type, const std::string& data, int64_t claimed = -1) const {
    const auto size = static_cast<uint32_t>(claimed < 0 ? static_cast<int64_t>(data.size()) : claimed);
    return number(type) + number(size) + data + std::string((8 - data.size() % 8) % 8, '\0');
  }

  struct Array {
    uint32_t class_number = 9;  // uint8
    uint32_t flags = 0;
    std::vector<int32_t> sizes = {2, 3};
    std::string name = "x";
    uint32_t data_type = 2;  // miUINT8
    std::string data = std::string("\1\2\3\4\5\6", 6);
    int64_t claimed = -1;  // from the data's tag
    std::string after = {};
  };

  /// The contents of a matrix element.
  std::string inside(const Array& a) const {
    return element(6, number(a.class_number | a.flags) + number(uint32_t{0})) + element(5, numbers(a.sizes)) +
           element(1, a.name) + element(a.data_type, a.data, a.claimed) + a.after;
  }
  std::string array(const Array& a) const { return element(14, inside(a)); }
  std::string array() const { return array(Array{}); }

  /// `bytes` as a compressed element.
  std::string compressed(const std::string& bytes) const { return compressed_element(deflated(bytes)); }
  std::string compressed_element(const std::string& small) const {
    return number(uint32_t{15}) + number(static_cast<uint32_t>(small.size())) + small;
  }

  /// `bytes` followed by `zeros` zeros as a zlib stream; the zeros take no memory.
  static std::string deflated(const std::string& bytes, size_t zeros = 0) {
    z_stream stream = {};
    if (deflateInit(&stream, 6) != Z_OK) throw std::runtime_error("zlib failed");
    std::string small, piece(1 << 16, '\0');
    const auto put = [&](const char* data, size_t size, int flush) {
      stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(data));
      stream.avail_in = static_cast<uInt>(size);
      do {
        stream.next_out = reinterpret_cast<Bytef*>(piece.data());
        stream.avail_out = static_cast<uInt>(piece.size());
        deflate(&stream, flush);
        small.append(piece, 0, piece.size() - stream.avail_out);
      } while (stream.avail_out == 0);
    };
    put(bytes.data(), bytes.size(), Z_NO_FLUSH);
    const std::string nothing(1 << 20, '\0');
    for (size_t left = zeros; left > 0; left -= std::min(left, nothing.size())) {
      put(nothing.data(), std::min(left, nothing.size()), Z_NO_FLUSH);
    }
    put(nullptr, 0, Z_FINISH);
    deflateEnd(&stream);
    return small;
  }

 private:
  bool big_endian_;
};

}  // namespace trainkit::test
