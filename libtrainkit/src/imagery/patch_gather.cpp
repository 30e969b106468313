#include "imagery/patch_gather.h"

#include <algorithm>
#include <cstring>

#include "core/device/streaming_copy.h"

namespace trainkit::detail {
namespace {

// Large batches bypass the caches, see Note [Streaming stores] in core/device/streaming_copy.cpp. StreamingWriter
// collects the pieces of a patch into lines. The first and the last line of the output may also belong to another
// thread's patches: they are written with memcpy, and only in the bytes that belong to this writer.

/// Collects pieces into cache lines and writes these with streaming stores. See Note [Streaming stores].
class StreamingWriter {
 public:
  explicit StreamingWriter(float* out)
      : to_(reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(out) & ~uintptr_t{kStreamedLine - 1})),
        filled_(static_cast<int64_t>(reinterpret_cast<uintptr_t>(out) % kStreamedLine)),
        foreign_(filled_) {}
  ~StreamingWriter() {
    if (filled_ > foreign_) std::memcpy(to_ + foreign_, line_ + foreign_, filled_ - foreign_);
    end_streaming();
  }
  StreamingWriter(const StreamingWriter&) = delete;
  StreamingWriter& operator=(const StreamingWriter&) = delete;

  void append(const float* piece, int64_t floats) {
    const auto* from = reinterpret_cast<const std::byte*>(piece);
    int64_t bytes = floats * static_cast<int64_t>(sizeof(float));
    if (filled_ > 0) {
      const int64_t fit = std::min(kStreamedLine - filled_, bytes);
      std::memcpy(line_ + filled_, from, fit);
      filled_ += fit;
      if (filled_ < kStreamedLine) return;
      flush_line();
      from += fit;
      bytes -= fit;
    }
    const int64_t lines = bytes / kStreamedLine;
    stream_lines(to_, from, lines);
    to_ += lines * kStreamedLine;
    filled_ = bytes % kStreamedLine;
    std::memcpy(line_, from + lines * kStreamedLine, filled_);
  }

 private:
  void flush_line() {
    if (foreign_ > 0) {
      std::memcpy(to_ + foreign_, line_ + foreign_, kStreamedLine - foreign_);
    } else {
      stream_lines(to_, line_, 1);
    }
    to_ += kStreamedLine;
    filled_ = foreign_ = 0;
  }

  std::byte* to_;        // the line being filled
  int64_t filled_ = 0;   // bytes filled in it
  int64_t foreign_ = 0;  // bytes at its start that belong to another writer
  alignas(kStreamedLine) std::byte line_[kStreamedLine];
};

class CachedWriter {
 public:
  explicit CachedWriter(float* out) : to_(out) {}
  void append(const float* piece, int64_t floats) {
    std::memcpy(to_, piece, floats * sizeof(float));
    to_ += floats;
  }

 private:
  float* to_;
};

/// Appends one patch in runs: whole rows if the columns keep their order, else single pixels.
template <class Writer>
void append_patch(const PatchSource& source, int64_t pixel, unsigned orientation, Writer& writer) {
  const int64_t size = source.patch_size, bands = source.bands, stride = source.row_stride();
  const float* corner = source.image + pixel / source.width * stride + pixel % source.width * bands;
  const bool bottom_up = orientation & 1, right_to_left = orientation & 2, swapped = orientation & 4;
  const int64_t down = bottom_up ? -stride : stride, right = right_to_left ? -bands : bands;
  const float* first = corner + (bottom_up ? (size - 1) * stride : 0) + (right_to_left ? (size - 1) * bands : 0);
  if (!right_to_left && !swapped) {
    for (int64_t i = 0; i < size; ++i) writer.append(first + i * down, size * bands);
    return;
  }
  const int64_t row_step = swapped ? right : down, column_step = swapped ? down : right;
  for (int64_t i = 0; i < size; ++i) {
    for (int64_t j = 0; j < size; ++j) writer.append(first + i * row_step + j * column_step, bands);
  }
}

template <class Writer>
void append_patches(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                    Writer writer) {
  for (int64_t n = 0; n < count; ++n) append_patch(source, pixels[n], orientations ? orientations[n] : 0, writer);
}

}  // namespace

void copy_patches(const PatchSource& source, const int64_t* pixels, const uint8_t* orientations, int64_t count,
                  float* out, bool streaming) {
  if (streaming) {
    append_patches<StreamingWriter>(source, pixels, orientations, count, StreamingWriter(out));
  } else {
    append_patches<CachedWriter>(source, pixels, orientations, count, CachedWriter(out));
  }
}

}  // namespace trainkit::detail
