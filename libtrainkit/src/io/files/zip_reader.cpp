#include "io/files/zip_reader.h"

#include <fmt/format.h>
#include <zlib.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "core/base/utf8.h"
#include "io/files/zip_format.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

// Note [Zip archives without gaps]
//
// A zip file lists its entries twice: in the directory at the end and in a header before each entry. Readers that trust
// different copies can see different contents in the same file, which hides data from a scanner. Therefore:
//   Exactly one end record, at the very end of the file. Nothing follows it, and no comment.
//   The directory ends where the end record begins, and agrees with every local header.
//   Sorted by position, each entry begins where the one before it ends, except for a data descriptor of a known size.
// So every byte of the file belongs to exactly one entry or header. All numbers come from the file: each is compared
// with the remaining size before it is used, in 64 bits.

// Limits against hostile files, far above any model. Together below 100 MiB of memory.
constexpr uint64_t kMaxDirectoryBytes = 32 << 20;
constexpr uint64_t kMaxEntries = 1 << 18;
constexpr size_t kMaxEntryNameBytes = 255;
constexpr uint16_t kDeflate = 8;
constexpr uint64_t kMostInflation = 1032;  // bytes from one byte of a deflate stream

/// Reads consecutive little-endian numbers. The caller has checked the size.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : bytes_(bytes) {}
  template <class T>
  T next() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_.remove_prefix(sizeof(T));
    return value;
  }
  Fields& skip(size_t count) {
    bytes_.remove_prefix(count);
    return *this;
  }
  size_t left() const { return bytes_.size(); }
  std::string_view take(size_t count) {
    const auto part = bytes_.substr(0, count);
    bytes_.remove_prefix(count);
    return part;
  }

 private:
  std::string_view bytes_;
};

/// Location of the directory.
struct Extent {
  uint64_t entries = 0, bytes = 0, offset = 0;
};

/// An entry as stated in the directory.
struct Listed {
  ZipEntry entry;  // `offset` is not set
  uint64_t header = 0;
  uint16_t flags = 0;
};

class ZipReader {
 public:
  explicit ZipReader(const ZipFile& file) : file_(file), size_(file.size) {}

  absl::StatusOr<std::vector<ZipEntry>> read() {
    TRAINKIT_ASSIGN_OR_RETURN(const Extent extent, find_directory());
    TRAINKIT_ASSIGN_OR_RETURN(std::vector<Listed> listed, read_directory(extent));
    std::sort(listed.begin(), listed.end(), [](const Listed& a, const Listed& b) { return a.header < b.header; });
    uint64_t free_from = 0;
    bool descriptor = false;
    for (Listed& one : listed) {
      TRAINKIT_RETURN_IF_ERROR(check_start(one.entry.name, one.header, free_from, descriptor));
      TRAINKIT_ASSIGN_OR_RETURN(one.entry.offset, data_offset(one, extent.offset));
      free_from = one.entry.offset + one.entry.stored;
      descriptor = one.flags & zip::kDescriptorFlag;
    }
    TRAINKIT_RETURN_IF_ERROR(check_start("the directory", extent.offset, free_from, descriptor));
    std::vector<ZipEntry> entries;
    entries.reserve(listed.size());
    for (Listed& one : listed) entries.push_back(std::move(one.entry));
    return entries;
  }

 private:
  absl::Status refuse(uint64_t at, std::string field, std::string problem, std::string got = {},
                      std::string expected = {}) const {
    return to_status({.exit_code = file_.exit_code,
                      .id = file_.error_id,
                      .where = fmt::format("{}@0x{:x}", file_.path, at),
                      .field = std::move(field),
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .expected = std::move(expected)});
  }

  absl::StatusOr<std::string> bytes(uint64_t at, size_t count) const {
    std::string text(count, '\0');
    TRAINKIT_RETURN_IF_ERROR(file_.read(at, text.data(), count));
    return text;
  }

  absl::StatusOr<Extent> find_directory() const {
    const auto no_end = [&] {
      return refuse(size_, {}, "is cut short, or something follows the archive: its end record is not at its end");
    };
    if (size_ < zip::kEndBytes) return no_end();
    const uint64_t end_at = size_ - zip::kEndBytes;
    TRAINKIT_ASSIGN_OR_RETURN(const std::string end, bytes(end_at, zip::kEndBytes));
    Fields fields(end);
    if (fields.next<uint32_t>() != zip::kEndSignature) return no_end();
    const auto disk = fields.next<uint16_t>(), first_disk = fields.next<uint16_t>();
    const auto here = fields.next<uint16_t>(), all = fields.next<uint16_t>();
    const auto length = fields.next<uint32_t>(), offset = fields.next<uint32_t>();
    if (fields.next<uint16_t>() != 0) return no_end();
    if (disk != 0 || first_disk != 0 || here != all) return refuse(end_at, {}, "is one of several parts of an archive");
    Extent extent{.entries = all, .bytes = length, .offset = offset};
    uint64_t directory_end = end_at;
    TRAINKIT_ASSIGN_OR_RETURN(const bool has_64, read_end_64(end_at, extent));
    if (has_64) {
      directory_end -= zip::kLocator64Bytes + zip::kEnd64Bytes;
      const bool agree = (all == zip::kSee64In16 || all == extent.entries) &&
                         (length == zip::kSee64In32 || length == extent.bytes) &&
                         (offset == zip::kSee64In32 || offset == extent.offset);
      if (!agree) return refuse(end_at, {}, "has two end records that contradict each other");
    }
    if (extent.offset > directory_end || extent.bytes != directory_end - extent.offset) {
      return refuse(end_at, {}, "has a directory that does not end at the end record",
                    fmt::format("{} bytes from {}", extent.bytes, extent.offset),
                    fmt::format("an end at {}", directory_end));
    }
    if (extent.bytes > kMaxDirectoryBytes || extent.entries > kMaxEntries) {
      return refuse(end_at, {}, "has too large a directory",
                    fmt::format("{} entries in {} bytes", extent.entries, extent.bytes),
                    fmt::format("at most {} in {}", kMaxEntries, kMaxDirectoryBytes));
    }
    return extent;
  }

  /// Replaces `extent` with the values of the 64-bit end record and returns true, if there is one.
  absl::StatusOr<bool> read_end_64(uint64_t end_at, Extent& extent) const {
    if (end_at < zip::kLocator64Bytes + zip::kEnd64Bytes) return false;
    const uint64_t record_at = end_at - zip::kLocator64Bytes - zip::kEnd64Bytes;
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, bytes(record_at, zip::kEnd64Bytes + zip::kLocator64Bytes));
    Fields locator(std::string_view(text).substr(zip::kEnd64Bytes));
    if (locator.next<uint32_t>() != zip::kLocator64Signature) return false;
    const auto disk = locator.next<uint32_t>();
    const auto offset = locator.next<uint64_t>();
    const auto disks = locator.next<uint32_t>();
    Fields record(text);
    const bool found = disk == 0 && disks <= 1 && offset == record_at &&
                       record.next<uint32_t>() == zip::kEnd64Signature &&
                       record.next<uint64_t>() == zip::kEnd64Bytes - 12;
    if (!found) return refuse(record_at, {}, "has a 64-bit end record that is not where its locator says");
    record.skip(4);  // versions
    if (record.next<uint32_t>() != 0 || record.next<uint32_t>() != 0)
      return refuse(record_at, {}, "is one of several parts of an archive");
    const auto here = record.next<uint64_t>();
    extent.entries = record.next<uint64_t>();
    extent.bytes = record.next<uint64_t>();
    extent.offset = record.next<uint64_t>();
    if (here != extent.entries) return refuse(record_at, {}, "is one of several parts of an archive");
    return true;
  }

  absl::StatusOr<std::vector<Listed>> read_directory(const Extent& extent) const {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, bytes(extent.offset, extent.bytes));
    Fields fields(text);
    std::vector<Listed> listed;
    std::unordered_set<std::string_view> names;
    for (uint64_t i = 0; i < extent.entries; ++i) {
      const uint64_t at = extent.offset + text.size() - fields.left();
      TRAINKIT_ASSIGN_OR_RETURN(Listed one, read_listed(at, fields, names));
      listed.push_back(std::move(one));
    }
    if (fields.left() != 0) return refuse(extent.offset, {}, "has a directory longer than its entries");
    return listed;
  }

  absl::StatusOr<Listed> read_listed(uint64_t at, Fields& fields, std::unordered_set<std::string_view>& names) const {
    if (fields.left() < zip::kCentralBytes || fields.next<uint32_t>() != zip::kCentralSignature)
      return refuse(at, {}, "has a damaged directory: no entry begins here");
    fields.skip(4);  // versions
    Listed one;
    one.flags = fields.next<uint16_t>();
    const auto method = fields.next<uint16_t>();
    fields.skip(4);  // time and date
    one.entry.crc = fields.next<uint32_t>();
    one.entry.stored = fields.next<uint32_t>();
    one.entry.size = fields.next<uint32_t>();
    const auto name_bytes = fields.next<uint16_t>(), extra_bytes = fields.next<uint16_t>();
    const auto comment_bytes = fields.next<uint16_t>(), disk = fields.next<uint16_t>();
    fields.skip(6);  // attributes
    one.header = fields.next<uint32_t>();
    if (fields.left() < size_t{name_bytes} + extra_bytes + comment_bytes)
      return refuse(at, {}, "has a directory that is shorter than its entries");
    const std::string_view name = fields.take(name_bytes);
    TRAINKIT_RETURN_IF_ERROR(check_name(at, name));
    one.entry.name = name;
    if (!names.insert(name).second) return refuse(at, one.entry.name, "is a duplicate name in the archive");
    if (!read_extra_64(fields.take(extra_bytes), one.entry.size, one.entry.stored, one.header))
      return refuse(at, one.entry.name, "has a damaged extra field");
    fields.skip(comment_bytes);
    if (one.flags & ~(zip::kDescriptorFlag | zip::kUtf8Flag))
      return refuse(at, one.entry.name,
                    "is encrypted, patched or packed in a way that " + file_.writer + " never does");
    one.entry.deflated = file_.may_deflate && method == kDeflate;
    if (method != 0 && !one.entry.deflated) {
      return refuse(at, one.entry.name, "is compressed, which " + file_.writer + " never does",
                    fmt::format("method {}", method),
                    file_.may_deflate ? "method 0, stored, or 8, deflated" : "method 0, stored");
    }
    const bool fits =
        one.entry.deflated ? one.entry.size / kMostInflation <= one.entry.stored : one.entry.stored == one.entry.size;
    if (!fits || disk != 0) return refuse(at, one.entry.name, "has sizes that contradict each other");
    return one;
  }

  /// Replaces placeholders with the numbers of the 64-bit extra field. Returns false if the field is damaged or
  /// missing.
  static bool read_extra_64(std::string_view extra, uint64_t& size, uint64_t& stored, uint64_t& header) {
    bool seen = false;
    Fields fields(extra);
    while (fields.left() >= 4) {
      const auto id = fields.next<uint16_t>(), length = fields.next<uint16_t>();
      if (length > fields.left()) return false;
      Fields body(fields.take(length));
      if (id != zip::kZip64Id) continue;
      if (std::exchange(seen, true)) return false;
      for (uint64_t* number : {&size, &stored, &header}) {
        if (*number != zip::kSee64In32) continue;
        if (body.left() < 8) return false;
        *number = body.next<uint64_t>();
      }
    }
    const bool missing = size == zip::kSee64In32 || stored == zip::kSee64In32 || header == zip::kSee64In32;
    return fields.left() == 0 && (seen || !missing);
  }

  absl::Status check_name(uint64_t at, std::string_view name) const {
    const char* problem = nullptr;
    const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
    if (name.empty() || name.size() > kMaxEntryNameBytes) {
      problem = "is empty or too long for an entry's name";
    } else if (find_invalid_utf8(name) != name.size() || std::any_of(name.begin(), name.end(), is_control)) {
      problem = "has control characters or is not UTF-8";
    } else if (name.front() == '/' || name.back() == '/' || name.find('\\') != name.npos ||
               fmt::format("/{}/", name).find("/../") != std::string::npos) {
      problem = "leaves the archive's folder";
    }
    return problem ? refuse(at, std::string(name.substr(0, kMaxEntryNameBytes)), problem) : absl::OkStatus();
  }

  /// Checks that `header` begins at `free_from`, or after a data descriptor there. See Note [Zip archives without
  /// gaps].
  absl::Status check_start(const std::string& name, uint64_t header, uint64_t free_from, bool descriptor) const {
    if (header < free_from) return refuse(header, name, "overlaps the entry before");
    const uint64_t gap = header - free_from;
    // A descriptor with or without signature, with sizes of 32 or 64 bits.
    if (gap == 0 || (descriptor && (gap == 12 || gap == 16 || gap == 20 || gap == 24))) return absl::OkStatus();
    return refuse(free_from, name, "has bytes before it that belong to no entry", fmt::format("{} bytes", gap));
  }

  absl::StatusOr<uint64_t> data_offset(const Listed& one, uint64_t limit) const {
    const std::string& name = one.entry.name;
    const uint64_t fixed = zip::kLocalBytes + name.size();
    if (one.header > limit || limit - one.header < fixed) return refuse(one.header, name, "begins past the entries");
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, bytes(one.header, fixed));
    Fields fields(text);
    const bool is_header = fields.next<uint32_t>() == zip::kLocalSignature;
    fields.skip(2);
    const auto flags = fields.next<uint16_t>(), method = fields.next<uint16_t>();
    fields.skip(16);  // already known from the directory
    const auto name_bytes = fields.next<uint16_t>(), extra_bytes = fields.next<uint16_t>();
    if (!is_header || flags != one.flags || method != (one.entry.deflated ? kDeflate : 0) ||
        name_bytes != name.size() || fields.take(name_bytes) != name)
      return refuse(one.header, name, "has a header that contradicts the directory");
    const uint64_t offset = one.header + fixed + extra_bytes;
    if (offset > limit || one.entry.stored > limit - offset) {
      return refuse(one.header, name, "is longer than the archive", fmt::format("{} bytes", one.entry.stored),
                    offset > limit ? "none" : fmt::format("at most {}", limit - offset));
    }
    return offset;
  }

  const ZipFile& file_;
  uint64_t size_;
};

}  // namespace

absl::StatusOr<std::vector<ZipEntry>> read_zip_directory(const ZipFile& file) { return ZipReader(file).read(); }

uint32_t crc32(uint32_t crc, const void* data, size_t size) {
  return static_cast<uint32_t>(::crc32_z(crc, static_cast<const Bytef*>(data), size));
}

}  // namespace trainkit::detail
