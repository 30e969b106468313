#include "arrays/matlab/inflate.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "trainkit/core/status.h"

namespace trainkit::detail {

Inflater::Inflater(std::span<const std::byte> compressed) : rest_(compressed) {
  if (inflateInit(&stream_) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(&stream_); }

absl::Status Inflater::failure(int code) const {
  if (code == Z_BUF_ERROR) return absl::DataLossError("the compressed data ends early");
  const std::string why = stream_.msg ? stream_.msg : "zlib error " + std::to_string(code);
  return absl::DataLossError("the compressed data is damaged: " + why);
}

absl::StatusOr<size_t> Inflater::read(void* out, size_t size) {
  constexpr size_t kMost = std::numeric_limits<uInt>::max() / 2;
  size_t done = 0;
  while (done < size && !ended_) {
    if (stream_.avail_in == 0) {
      const size_t given = std::min(rest_.size(), kMost);
      stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(rest_.data()));
      stream_.avail_in = static_cast<uInt>(given);
      rest_ = rest_.subspan(given);
    }
    stream_.next_out = static_cast<Bytef*>(out) + done;
    stream_.avail_out = static_cast<uInt>(std::min(size - done, kMost));
    const uInt wanted = stream_.avail_out;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    done += wanted - stream_.avail_out;
    ended_ = code == Z_STREAM_END;
    if (code != Z_OK && code != Z_STREAM_END) return failure(code);
  }
  return done;
}

absl::Status Inflater::finish() {
  // zlib verifies the checksum when it reaches the end of the stream, which may need a read beyond the last byte.
  char beyond;
  TRAINKIT_ASSIGN_OR_RETURN(const size_t more, read(&beyond, 1));
  if (more != 0) return absl::DataLossError("the compressed data continues after the variable");
  const size_t left = stream_.avail_in + rest_.size();
  if (left > 0) return absl::DataLossError(std::to_string(left) + " bytes follow the compressed data");
  return absl::OkStatus();
}

}  // namespace trainkit::detail
