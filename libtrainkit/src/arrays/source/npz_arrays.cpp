// NumPy arrays in a zip archive.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <numeric>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays/files/npy.h"
#include "arrays/files/npy_header.h"
#include "arrays/source/formats.h"
#include "io/files/inflate.h"
#include "io/files/zip_reader.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr char kNpzError[] = "data.npz";
constexpr size_t kMostHeader = 1 << 16, kPiece = 4 << 20;

/// An array of an archive.
struct Member {
  ZipEntry entry;
  /// Of an array that can be read; else why not.
  absl::StatusOr<NpyHeader> header = absl::UnknownError("");
};

std::string name_of(const ZipEntry& entry) {
  constexpr std::string_view kEnding = ".npy";
  return entry.name.ends_with(kEnding) ? entry.name.substr(0, entry.name.size() - kEnding.size()) : entry.name;
}

/// Unpacks or copies the data of an entry, and checks that it is as long as the directory says and not damaged.
class EntryReader {
 public:
  EntryReader(const MappedFile& file, const ZipEntry& entry)
      : file_(file),
        entry_(entry),
        stored_(file.bytes().subspan(entry.offset, entry.stored)),
        inflater_(stored_, Packing::kRaw) {}

  absl::Status read(void* out, size_t size) {
    size_t got = std::min<size_t>(size, entry_.size - done_);
    if (entry_.deflated) {
      TRAINKIT_ASSIGN_OR_RETURN(got, inflater_.read(out, size));
    } else {
      std::memcpy(out, stored_.data() + done_, got);
    }
    if (got < size) return absl::DataLossError("the data ends too early");
    crc_ = crc32(crc_, out, size);
    done_ += size;
    file_.release();
    return absl::OkStatus();
  }

  /// Reads the rest and compares the checksum.
  absl::Status finish() {
    std::vector<char> rest(std::min<size_t>(kPiece, entry_.size - done_));
    while (done_ < entry_.size) {
      TRAINKIT_RETURN_IF_ERROR(read(rest.data(), std::min<size_t>(rest.size(), entry_.size - done_)));
    }
    if (entry_.deflated) TRAINKIT_RETURN_IF_ERROR(inflater_.finish());
    return crc_ == entry_.crc ? absl::OkStatus() : absl::DataLossError("damaged: its CRC differs");
  }

 private:
  const MappedFile& file_;
  const ZipEntry& entry_;
  std::span<const std::byte> stored_;
  Inflater inflater_;
  uint64_t done_ = 0;
  uint32_t crc_ = 0;
};

absl::StatusOr<NpyHeader> header_of(const MappedFile& file, const ZipEntry& entry) {
  std::string begin(std::min<size_t>(kMostHeader, entry.size), '\0');
  EntryReader reader(file, entry);
  TRAINKIT_RETURN_IF_ERROR(reader.read(begin.data(), begin.size()));
  TRAINKIT_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header(begin));
  TRAINKIT_RETURN_IF_ERROR(npy_array_bytes(header, static_cast<int64_t>(entry.size) - header.data_offset).status());
  return header;
}

class NpzArrays final : public ArraySource {
 public:
  NpzArrays(std::shared_ptr<const MappedFile> file, std::map<std::string, Member> members)
      : ArraySource(file->path(), "a NumPy archive", arrays_of(members)),
        file_(std::move(file)),
        members_(std::move(members)) {}

  absl::StatusOr<at::Tensor> read(std::string_view name) const override {
    return of_member(name, [&](const Member& member) { return read_all(member); });
  }
  absl::StatusOr<at::Tensor> read_rows(std::string_view name, int64_t begin, int64_t count) const override {
    if (!reads_rows(name)) return ArraySource::read_rows(name, begin, count);
    return of_member(name, [&](const Member& member) -> absl::StatusOr<at::Tensor> {
      TRAINKIT_RETURN_IF_ERROR(check_once(member));
      TRAINKIT_ASSIGN_OR_RETURN(const StoredArray array, stored(member));
      return array.read_rows(begin, count);
    });
  }
  bool reads_rows(std::string_view name) const override {
    const auto found = members_.find(std::string(name));
    return found != members_.end() && !found->second.entry.deflated;
  }

 private:
  static std::vector<ArrayInfo> arrays_of(const std::map<std::string, Member>& members) {
    std::vector<ArrayInfo> arrays;
    for (const auto& [name, member] : members) {
      arrays.push_back({.name = name, .type = "other"});
      if (!member.header.ok()) continue;
      arrays.back() = {name, std::string(npy_dtype_name(member.header->dtype)), member.header->dtype,
                       member.header->shape};
    }
    return arrays;
  }

  template <class Read>
  absl::StatusOr<at::Tensor> of_member(std::string_view name, const Read& read) const {
    TRAINKIT_RETURN_IF_ERROR(find_array(name, kNpzError).status());
    const Member& member = members_.at(std::string(name));
    absl::StatusOr<at::Tensor> tensor;
    if (member.header.ok()) {
      tensor = read(member);
    } else {
      tensor = member.header.status();
    }
    TRAINKIT_RETURN_IF_ERROR(file_->check());
    if (tensor.ok()) return tensor;
    return data_error(kNpzError, {.file = path(), .field = std::string(name)}, std::string(tensor.status().message()));
  }

  absl::StatusOr<StoredArray> stored(const Member& member) const {
    return find_npy(file_, static_cast<int64_t>(member.entry.offset), static_cast<int64_t>(member.entry.size));
  }

  absl::StatusOr<at::Tensor> read_all(const Member& member) const {
    if (!member.entry.deflated) {
      TRAINKIT_RETURN_IF_ERROR(check_once(member));
      TRAINKIT_ASSIGN_OR_RETURN(const StoredArray array, stored(member));
      return array.read();
    }
    const NpyHeader& header = *member.header;
    EntryReader reader(*file_, member.entry);
    std::string begin(static_cast<size_t>(header.data_offset), '\0');
    TRAINKIT_RETURN_IF_ERROR(reader.read(begin.data(), begin.size()));
    const std::vector<int64_t> order = npy_order(header);
    std::vector<int64_t> sizes;
    sizes.reserve(order.size());
    for (const int64_t dimension : order) sizes.push_back(header.shape[static_cast<size_t>(dimension)]);
    const at::Tensor raw = at::empty(sizes, raw_dtype(header.dtype));
    for (size_t at = 0; at < raw.nbytes(); at += kPiece) {
      TRAINKIT_RETURN_IF_ERROR(
          reader.read(static_cast<char*>(raw.data_ptr()) + at, std::min(kPiece, raw.nbytes() - at)));
    }
    TRAINKIT_RETURN_IF_ERROR(reader.finish());
    return values_of_raw(raw, header.dtype, /*is_swapped=*/false).permute(order).contiguous();
  }

  /// Compares the checksum of an entry, at the first read.
  absl::Status check_once(const Member& member) const {
    const std::lock_guard lock(mutex_);
    if (checked_.count(member.entry.name)) return absl::OkStatus();
    TRAINKIT_RETURN_IF_ERROR(EntryReader(*file_, member.entry).finish());
    checked_.insert(member.entry.name);
    return absl::OkStatus();
  }

  std::shared_ptr<const MappedFile> file_;
  std::map<std::string, Member> members_;
  mutable std::mutex mutex_;
  mutable std::set<std::string> checked_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ArraySource>> open_npz(std::shared_ptr<const MappedFile> file) {
  const auto read = [&](uint64_t at, void* out, size_t count) {
    std::memcpy(out, file->bytes().data() + at, count);
    return absl::OkStatus();
  };
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<ZipEntry> entries, read_zip_directory({.path = file->path(),
                                                                                     .size = file->bytes().size(),
                                                                                     .read = read,
                                                                                     .exit_code = ExitCode::kData,
                                                                                     .error_id = kNpzError,
                                                                                     .writer = "numpy.savez",
                                                                                     .may_deflate = true}));
  std::map<std::string, Member> members;
  for (const ZipEntry& entry : entries) {
    Member member{.entry = entry};
    member.header = entry.name.ends_with(".npy")
                        ? header_of(*file, entry)
                        : absl::StatusOr<NpyHeader>(absl::InvalidArgumentError("not an array"));
    if (!members.emplace(name_of(entry), std::move(member)).second) {
      return data_error(kNpzError, {.file = file->path(), .field = entry.name}, "two members with this name");
    }
  }
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return std::make_shared<NpzArrays>(std::move(file), std::move(members));
}

}  // namespace trainkit::detail
