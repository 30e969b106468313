#include "io/torch/zip_writer.h"

#include "io/files/zip_format.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr uint64_t kAlignment = 64;
constexpr uint16_t kVersion = 45;  // the first version with 64-bit fields
constexpr uint16_t kDate = 0x21;   // 1 January 1980, so that the bytes do not depend on the date
/// Id of the padding extra field, "FB" as in PyTorch's writer.
constexpr uint16_t kPaddingId = 0x4246;

template <class T>
void put(std::string& text, T value) {
  text.append(reinterpret_cast<const char*>(&value), sizeof(T));
}

uint32_t or_see_64(uint64_t value, uint64_t zip64_from) {
  return value < zip64_from ? static_cast<uint32_t>(value) : zip::kSee64In32;
}

/// Returns the fields shared by local headers and directory entries, from the version needed to the size.
std::string common_fields(uint32_t crc, uint64_t size, uint64_t zip64_from) {
  std::string text;
  put<uint16_t>(text, kVersion);
  put<uint16_t>(text, zip::kUtf8Flag);
  put<uint16_t>(text, 0);  // stored
  put<uint16_t>(text, 0);  // midnight
  put<uint16_t>(text, kDate);
  put<uint32_t>(text, crc);
  put<uint32_t>(text, or_see_64(size, zip64_from));
  put<uint32_t>(text, or_see_64(size, zip64_from));
  return text;
}

}  // namespace

absl::Status ZipWriter::add(std::string_view name, const void* data, size_t size) {
  const ZipEntry entry{.name = std::string(name), .offset = 0, .size = size, .crc = crc32(0, data, size)};
  std::string extra;
  if (size >= zip64_from_) {
    put<uint16_t>(extra, zip::kZip64Id);
    put<uint16_t>(extra, 16);
    put<uint64_t>(extra, size);
    put<uint64_t>(extra, size);
  }
  const uint64_t unpadded = position_ + zip::kLocalBytes + name.size() + extra.size() + 4;
  const auto padding = static_cast<uint16_t>((kAlignment - unpadded % kAlignment) % kAlignment);
  put<uint16_t>(extra, kPaddingId);
  put<uint16_t>(extra, padding);
  extra.append(padding, 'Z');

  std::string header;
  put<uint32_t>(header, zip::kLocalSignature);
  header += common_fields(entry.crc, size, zip64_from_);
  put<uint16_t>(header, static_cast<uint16_t>(name.size()));
  put<uint16_t>(header, static_cast<uint16_t>(extra.size()));
  header += name;
  header += extra;
  TRAINKIT_RETURN_IF_ERROR(file_.append(header));
  if (size > 0) TRAINKIT_RETURN_IF_ERROR(file_.append(data, size));
  written_.push_back({entry, position_});
  position_ += header.size() + size;
  return absl::OkStatus();
}

absl::Status ZipWriter::finish() {
  std::string text;
  for (const auto& [entry, header] : written_) {
    std::string extra;
    if (entry.size >= zip64_from_ || header >= zip64_from_) {
      std::string numbers;
      if (entry.size >= zip64_from_) {
        put<uint64_t>(numbers, entry.size);
        put<uint64_t>(numbers, entry.size);
      }
      if (header >= zip64_from_) put<uint64_t>(numbers, header);
      put<uint16_t>(extra, zip::kZip64Id);
      put<uint16_t>(extra, static_cast<uint16_t>(numbers.size()));
      extra += numbers;
    }
    put<uint32_t>(text, zip::kCentralSignature);
    put<uint16_t>(text, kVersion);
    text += common_fields(entry.crc, entry.size, zip64_from_);
    put<uint16_t>(text, static_cast<uint16_t>(entry.name.size()));
    put<uint16_t>(text, static_cast<uint16_t>(extra.size()));
    text.append(10, '\0');  // comment, disk, attributes
    put<uint32_t>(text, or_see_64(header, zip64_from_));
    text += entry.name;
    text += extra;
  }
  const uint64_t count = written_.size(), directory_bytes = text.size();
  put<uint32_t>(text, zip::kEnd64Signature);
  put<uint64_t>(text, zip::kEnd64Bytes - 12);
  put<uint16_t>(text, kVersion);
  put<uint16_t>(text, kVersion);
  put<uint64_t>(text, 0);  // disks
  put<uint64_t>(text, count);
  put<uint64_t>(text, count);
  put<uint64_t>(text, directory_bytes);
  put<uint64_t>(text, position_);
  put<uint32_t>(text, zip::kLocator64Signature);
  put<uint32_t>(text, 0);
  put<uint64_t>(text, position_ + directory_bytes);
  put<uint32_t>(text, 1);
  put<uint32_t>(text, zip::kEndSignature);
  put<uint32_t>(text, 0);  // disks
  const auto count_16 = static_cast<uint16_t>(count < zip::kSee64In16 ? count : zip::kSee64In16);
  put<uint16_t>(text, count_16);
  put<uint16_t>(text, count_16);
  put<uint32_t>(text, or_see_64(directory_bytes, zip64_from_));
  put<uint32_t>(text, or_see_64(position_, zip64_from_));
  put<uint16_t>(text, 0);  // comment
  return file_.append(text);
}

}  // namespace trainkit::detail
