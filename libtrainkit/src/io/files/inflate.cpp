#include "io/files/inflate.h"

#include <algorithm>
#include <limits>
#include <new>
#include <string>

#include "trainkit/core/status.h"

namespace trainkit::detail {

Inflater::Inflater(std::span<const std::byte> compressed, Packing packing) : left_(compressed), packing_(packing) {
  constexpr int kGzipHeader = 16;
  const int window = packing == Packing::kRaw ? -MAX_WBITS : MAX_WBITS + (packing == Packing::kGzip ? kGzipHeader : 0);
  if (inflateInit2(&stream_, window) != Z_OK) throw std::bad_alloc();
}

Inflater::~Inflater() { inflateEnd(&stream_); }

absl::Status Inflater::failure(int code) const {
  const std::string why = code == Z_BUF_ERROR ? "the file may be truncated"
                          : stream_.msg       ? stream_.msg
                                              : "zlib error " + std::to_string(code);
  return absl::DataLossError((packing_ == Packing::kGzip ? "damaged gzip data: " : "the compressed data is damaged: ") +
                             why);
}

absl::StatusOr<size_t> Inflater::read(void* out, size_t size) {
  constexpr size_t kMost = std::numeric_limits<uInt>::max() / 2;  // zlib's counts have 32 bits
  size_t done = 0;
  while (done < size && !ended_) {
    const auto given = static_cast<uInt>(std::min(left_.size(), kMost));
    const auto wanted = static_cast<uInt>(std::min(size - done, kMost));
    stream_.next_in = const_cast<Bytef*>(reinterpret_cast<const Bytef*>(left_.data()));  // zlib does not write there
    stream_.avail_in = given;
    stream_.next_out = static_cast<Bytef*>(out) + done;
    stream_.avail_out = wanted;
    const int code = inflate(&stream_, Z_NO_FLUSH);
    left_ = left_.subspan(given - stream_.avail_in);
    done += wanted - stream_.avail_out;
    if (code == Z_STREAM_END) {
      const auto is_zero = [](std::byte byte) { return byte == std::byte{0}; };
      ended_ = packing_ != Packing::kGzip || std::all_of(left_.begin(), left_.end(), is_zero);
      if (!ended_) inflateReset(&stream_);  // another member
    } else if (code != Z_OK) {
      return failure(code);
    }
  }
  return done;
}

absl::Status Inflater::finish() {
  // zlib verifies the checksum when it reaches the end of the stream, which may need a read beyond the last byte.
  char beyond;
  TRAINKIT_ASSIGN_OR_RETURN(const size_t more, read(&beyond, 1));
  if (more != 0) return absl::DataLossError("the compressed data continues after the variable");
  if (!left_.empty()) return absl::DataLossError(std::to_string(left_.size()) + " bytes follow the compressed data");
  return absl::OkStatus();
}

}  // namespace trainkit::detail
