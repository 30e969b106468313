#include "media/media_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdint>
#include <string>
#include <string_view>

#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int kDeepestBox = 16;
constexpr uint64_t kUnknown = ~uint64_t{0};

/// Reads numbers and names at any offset. Bytes past the end of the file read as 0.
class Bytes {
 public:
  explicit Bytes(std::span<const std::byte> file) : text_(reinterpret_cast<const char*>(file.data()), file.size()) {}
  uint64_t size() const { return text_.size(); }
  std::string_view name(uint64_t at) const { return at < size() ? text_.substr(at, 4) : std::string_view(); }
  uint64_t byte(uint64_t at) const { return at < size() ? static_cast<unsigned char>(text_[at]) : 0; }
  uint64_t big(uint64_t at, int bytes) const {
    uint64_t value = 0;
    for (int i = 0; i < bytes; ++i) value = value << 8 | byte(at + i);
    return value;
  }
  uint64_t little(uint64_t at, int bytes) const {
    uint64_t value = 0;
    for (int i = bytes; i-- > 0;) value = value << 8 | byte(at + i);
    return value;
  }

 private:
  std::string_view text_;
};

absl::Status too_long(std::string_view what, uint64_t at, uint64_t claimed, uint64_t remain) {
  return absl::DataLossError(
      fmt::format("{} at 0x{:x} claims {} bytes, {} remain (truncated?)", what, at, claimed, remain));
}

// ---- mp4: boxes with a size, a name and a content ---------------------------------------------------------------

bool holds_boxes(std::string_view name) {
  constexpr std::string_view kContainers[] = {"moov", "trak", "mdia", "minf", "stbl", "edts", "udta", "moof", "traf"};
  return std::find(std::begin(kContainers), std::end(kContainers), name) != std::end(kContainers);
}

/// Checks that a table of `count` entries of `entry` bytes fits into its box.
absl::Status check_table(const Bytes& file, std::string_view name, uint64_t body, uint64_t end) {
  const auto overfull = [&](uint64_t count, std::string_view rule) {
    return absl::DataLossError(
        fmt::format("box '{}' at 0x{:x} claims {} entries, more than {}", name, body, count, rule));
  };
  const struct {
    std::string_view name;
    uint64_t entry;
  } tables[] = {{"stts", 8}, {"ctts", 8}, {"stsc", 12}, {"stco", 4}, {"co64", 8}, {"stss", 4}};
  for (const auto& table : tables) {
    if (name != table.name) continue;
    const uint64_t count = file.big(body + 4, 4);
    if (body + 8 > end || count > (end - body - 8) / table.entry) return overfull(count, "it has room for");
  }
  if (name == "cmov") return absl::DataLossError("a compressed 'moov' is not supported");
  if (name == "trun" && file.big(body + 4, 4) > file.size()) {
    return overfull(file.big(body + 4, 4), "the file has bytes for");
  }
  if (name == "stsz") {
    const uint64_t each = file.big(body + 4, 4), count = file.big(body + 8, 4);
    if (count > (each ? file.size() / each : (std::max(end, body + 12) - body - 12) / 4)) {
      return overfull(count, each ? "the file has bytes for" : "it has room for");
    }
  }
  return absl::OkStatus();
}

absl::Status check_boxes(const Bytes& file, uint64_t begin, uint64_t end, int depth) {
  if (depth > kDeepestBox) return absl::DataLossError(fmt::format("boxes nested over {} levels", kDeepestBox));
  for (uint64_t at = begin; at + 8 <= end;) {
    const std::string_view name = file.name(at + 4);
    uint64_t header = 8, size = file.big(at, 4);
    if (size == 1) {
      header = 16;
      size = file.big(at + 8, 8);
    } else if (size == 0) {
      if (depth > 0) break;  // end of a list in QuickTime
      size = end - at;       // to the end of the file
    }
    if (size < header) return absl::DataLossError(fmt::format("box at 0x{:x} has size {}", at, size));
    if (size > end - at) return too_long("box '" + std::string(name) + "'", at, size, end - at);
    TRAINKIT_RETURN_IF_ERROR(check_table(file, name, at + header, at + size));
    if (holds_boxes(name)) TRAINKIT_RETURN_IF_ERROR(check_boxes(file, at + header, at + size, depth + 1));
    at += size;
  }
  return absl::OkStatus();
}

// ---- RIFF: wav and avi ------------------------------------------------------------------------------------------

/// Checks the fields that FFmpeg would otherwise guess.
absl::Status check_wave_format(const Bytes& file, uint64_t at) {
  constexpr uint64_t kPcm = 1, kFloat = 3, kMostHertz = 768'000;
  const uint64_t tag = file.little(at, 2), channels = file.little(at + 2, 2), rate = file.little(at + 4, 4);
  const uint64_t block = file.little(at + 12, 2), bits = file.little(at + 14, 2);
  const bool plain = tag == kPcm || tag == kFloat;
  if (channels == 0 || rate == 0 || rate > kMostHertz ||
      (plain && (bits == 0 || bits % 8 != 0 || block != channels * bits / 8))) {
    return absl::DataLossError(fmt::format(
        "the 'fmt ' chunk is invalid: {} channels, {} Hz, {} bits, blocks of {} bytes", channels, rate, bits, block));
  }
  return absl::OkStatus();
}

/// Checks the chunks of RIFF and RF64. A stream written to a pipe has sizes of 0xffffffff, so truncation cannot be
/// detected.
absl::Status check_riff(const Bytes& file) {
  const bool wave = file.name(8) == "WAVE", rf64 = file.name(0) == "RF64";
  const uint64_t size = file.little(4, 4);
  if (!rf64 && 8 + size > file.size()) return too_long("the file", 0, 8 + size, file.size());
  if (!wave) return absl::OkStatus();
  uint64_t data_of_rf64 = 0;
  bool format = false;
  for (uint64_t at = 12; at + 8 <= file.size();) {
    const std::string_view name = file.name(at);
    uint64_t bytes = file.little(at + 4, 4);
    if (name == "ds64") data_of_rf64 = file.little(at + 16, 8);
    if (name == "data") {
      if (rf64 && bytes == 0xffffffff) bytes = data_of_rf64;
      if (!format) return absl::DataLossError("no 'fmt ' before the samples");
    }
    if (bytes > file.size() - at - 8)
      return too_long("chunk '" + std::string(name) + "'", at, bytes, file.size() - at - 8);
    if (name == "data") return absl::OkStatus();
    if (name == "fmt ") {
      TRAINKIT_RETURN_IF_ERROR(check_wave_format(file, at + 8));
      format = true;
    }
    at += 8 + bytes + bytes % 2;
  }
  return absl::DataLossError("has no samples");
}

// ---- EBML: matroska and webm ------------------------------------------------------------------------------------

/// Reads an EBML size of 1 to 8 bytes. The leading zero bits give its length; all ones mean unknown.
uint64_t ebml_size(const Bytes& file, uint64_t& at) {
  const uint64_t first = file.byte(at);
  int length = 1;
  while (length <= 8 && !(first & (0x80 >> (length - 1)))) ++length;
  if (length > 8) return kUnknown;
  const uint64_t mask = (uint64_t{1} << (7 * length)) - 1, value = file.big(at, length) & mask;
  at += length;
  return value == mask ? kUnknown : value;
}

absl::Status check_ebml(const Bytes& file) {
  uint64_t at = 4;
  const uint64_t header = ebml_size(file, at);
  if (header == kUnknown || header > file.size() - std::min(at, file.size())) {
    return absl::DataLossError("the EBML header is cut");
  }
  at += header;
  constexpr uint64_t kSegment = 0x18538067;
  if (file.big(at, 4) != kSegment) return absl::OkStatus();  // FFmpeg reports the error
  const uint64_t begin = at;
  at += 4;
  const uint64_t size = ebml_size(file, at);  // unknown in live recordings
  if (size == kUnknown || (at <= file.size() && size <= file.size() - at)) return absl::OkStatus();
  return too_long("the segment", begin, size, file.size() - std::min(at, file.size()));
}

}  // namespace

absl::Status check_media_layout(std::span<const std::byte> bytes) {
  const Bytes file(bytes);
  if (file.name(4) == "ftyp" || file.name(4) == "moov" || file.name(4) == "mdat" || file.name(4) == "free" ||
      file.name(4) == "wide" || file.name(4) == "skip") {
    return check_boxes(file, 0, file.size(), 0);
  }
  if (file.name(0) == "RIFF" || file.name(0) == "RF64") return check_riff(file);
  if (file.big(0, 4) == 0x1a45dfa3) return check_ebml(file);
  return absl::OkStatus();
}

}  // namespace trainkit::detail
