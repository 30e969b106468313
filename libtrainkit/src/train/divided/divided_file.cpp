#include "train/divided/divided_file.h"

#include <c10/util/Exception.h>
#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "io/weights/safetensors_header.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// Reads the header of a file that this job has just written. `data_begin` is where the tensors begin.
absl::StatusOr<std::vector<SafetensorsEntry>> read_entries(ReadableFile file, int64_t& data_begin) {
  const int64_t bytes = file.size_bytes();
  const auto opened = SafetensorsFile::open(std::move(file));
  if (!opened.ok()) return reclassify(opened.status(), ExitCode::kStorage, "storage.io");
  const SafetensorsFile& tensors = *opened;
  data_begin = bytes - (tensors.entries().empty() ? 0 : tensors.entries().back().end);
  return tensors.entries();
}

/// The cuts of `name`, or nullptr if rank 0 writes the whole tensor.
const std::vector<int64_t>* cuts_of(const std::string& name, const DividedTensors& divided) {
  const auto found = divided.find(name);
  return found == divided.end() || found->second.cuts.empty() ? nullptr : &found->second.cuts;
}

/// Bytes [begin, end) of a file, which `rank` has written; -1 is the header.
struct Range {
  int64_t begin, end, rank;
};

std::vector<Range> ranges_of(const std::vector<SafetensorsEntry>& entries, int64_t data_begin,
                             const DividedTensors& divided) {
  std::vector<Range> ranges{{0, data_begin, -1}};
  for (const SafetensorsEntry& entry : entries) {
    const int64_t begin = data_begin + entry.begin, bytes = entry.end - entry.begin;
    const std::vector<int64_t>* cuts = cuts_of(entry.name, divided);
    if (!cuts) {
      ranges.push_back({begin, begin + bytes, 0});
      continue;
    }
    const int64_t element = bytes / std::max<int64_t>(1, cuts->back());
    for (size_t rank = 0; rank + 1 < cuts->size(); ++rank) {
      ranges.push_back(
          {begin + (*cuts)[rank] * element, begin + (*cuts)[rank + 1] * element, static_cast<int64_t>(rank)});
    }
  }
  return ranges;
}

}  // namespace

absl::StatusOr<DividedFile> DividedFile::open(const Directory& folder, const std::string& name) {
  TRAINKIT_ASSIGN_OR_RETURN(ReadableFile header, folder.open_file(name));
  int64_t data_begin = 0;
  TRAINKIT_ASSIGN_OR_RETURN(auto entries, read_entries(std::move(header), data_begin));
  TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, folder.open_for_writing(name));
  return DividedFile(std::move(file), std::move(entries), data_begin);
}

void DividedFile::assign(const NamedTensors& own, const DividedTensors& divided, int64_t rank) {
  std::map<std::string, at::Tensor> by_name(own.begin(), own.end());
  std::vector<at::Tensor> tensors;
  size_t found_names = 0;
  for (const SafetensorsEntry& entry : entries_) {
    const auto found = by_name.find(entry.name);
    if (found == by_name.end()) continue;
    ++found_names;
    const std::vector<int64_t>* cuts = cuts_of(entry.name, divided);
    if (!cuts && rank > 0) continue;
    const at::Tensor& tensor = found->second;
    const auto r = static_cast<size_t>(rank);
    const int64_t first = cuts ? (*cuts)[r] : 0;
    const auto bytes = static_cast<int64_t>(tensor.nbytes()), element = static_cast<int64_t>(tensor.element_size());
    const int64_t expected = cuts ? ((*cuts)[r + 1] - first) * element : entry.end - entry.begin;
    TORCH_CHECK(bytes == expected && find_dtype(tensor.scalar_type())->name == entry.dtype, "the part of ", entry.name,
                " does not fit the checkpoint: it has ", bytes, " bytes, expected ", expected);
    if (bytes == 0) continue;
    offsets_.push_back(data_begin_ + entry.begin + first * element);
    tensors.push_back(tensor);
  }
  TORCH_CHECK(found_names == own.size(), "a tensor of this rank is not in the checkpoint");
  tensors_.emplace(std::move(tensors));
}

absl::Status DividedFile::write(int64_t bytes) {
  if (is_written()) return absl::OkStatus();
  for (; bytes > 0 && !is_written(); ++written_) {
    const at::Tensor tensor = tensors_->next();
    TRAINKIT_RETURN_IF_ERROR(file_.write_at(offsets_[written_], tensor.const_data_ptr(), tensor.nbytes()));
    digest_.update(tensor.const_data_ptr(), tensor.nbytes());
    bytes -= static_cast<int64_t>(tensor.nbytes());
  }
  return file_.sync();
}

absl::StatusOr<FileRecord> read_back(const Directory& folder, const std::string& name, const DividedTensors& divided,
                                     const std::vector<std::string>& digests) {
  constexpr int64_t kPiece = 1 << 20;
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, folder.open_file(name));
  TRAINKIT_ASSIGN_OR_RETURN(ReadableFile header, folder.open_file(name));
  int64_t data_begin = 0;
  TRAINKIT_ASSIGN_OR_RETURN(const auto entries, read_entries(std::move(header), data_begin));
  std::string piece(kPiece, '\0');
  Digest whole;
  std::vector<Digest> by_rank(digests.size());
  for (const Range& range : ranges_of(entries, data_begin, divided)) {
    for (int64_t at = range.begin; at < range.end; at += kPiece) {
      const auto size = static_cast<size_t>(std::min(kPiece, range.end - at));
      TRAINKIT_RETURN_IF_ERROR(file.read_at(at, piece.data(), size));
      whole.update(piece.data(), size);
      if (range.rank >= 0) by_rank[static_cast<size_t>(range.rank)].update(piece.data(), size);
    }
  }
  for (size_t rank = 0; rank < digests.size(); ++rank) {
    if (by_rank[rank].hex() == digests[rank]) continue;
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "storage.io",
                      .where = file.path(),
                      .problem = fmt::format("does not have the bytes that rank {} has written", rank),
                      .got = by_rank[rank].hex(),
                      .expected = digests[rank]});
  }
  return FileRecord{file.size_bytes(), whole.hex()};
}

}  // namespace trainkit::detail
