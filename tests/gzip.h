#pragma once
/// Packs texts for tests. Programs that include it link zlib.

#include <zlib.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace trainkit::test {

/// Returns `text` packed with gzip.
inline std::string gzip(std::string_view text) {
  std::string bytes(text.size() + 64, '\0');
  z_stream stream = {};
  constexpr int kGzipHeader = 16;
  if (deflateInit2(&stream, 9, Z_DEFLATED, MAX_WBITS + kGzipHeader, 8, Z_DEFAULT_STRATEGY) != Z_OK)
    throw std::bad_alloc();
  stream.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(text.data()));
  stream.avail_in = static_cast<uInt>(text.size());
  stream.next_out = reinterpret_cast<Bytef*>(bytes.data());
  stream.avail_out = static_cast<uInt>(bytes.size());
  const int result = deflate(&stream, Z_FINISH);
  bytes.resize(stream.total_out);
  deflateEnd(&stream);
  if (result != Z_STREAM_END) throw std::runtime_error("zlib cannot pack the text");
  return bytes;
}

}  // namespace trainkit::test
