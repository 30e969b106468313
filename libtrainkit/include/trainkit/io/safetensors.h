#pragma once
/// Reads and writes weights as safetensors, the format of Python's `safetensors`: a JSON header, then the bytes of the
/// tensors, little-endian and row-major. Nothing in a file can run code.
///
/// Source: https://github.com/huggingface/safetensors (format and checks of version 0.8).

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit {

namespace detail {
class StoredTensors;
}

/// Named tensors. The order only affects listings.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// An absl::StatusOr<NamedTensors> that gives its tensors away by value, so that a loop over a temporary is safe:
///
///   for (const auto& [name, tensor] : WeightFile::open(path).value().tensors().value()) ...
///
/// A temporary absl::StatusOr would be destroyed before the first round of the loop.
class NamedTensorsOr : public absl::StatusOr<NamedTensors> {
 public:
  using Base = absl::StatusOr<NamedTensors>;
  // NOLINTBEGIN(google-explicit-constructor): as absl::StatusOr
  NamedTensorsOr(NamedTensors tensors) : Base(std::move(tensors)) {}
  NamedTensorsOr(absl::Status status) : Base(std::move(status)) {}
  NamedTensorsOr(Base other) : Base(std::move(other)) {}
  // NOLINTEND(google-explicit-constructor)
  const NamedTensors& value() const& { return Base::value(); }
  NamedTensors& value() & { return Base::value(); }
  NamedTensors value() && { return std::move(*this).Base::value(); }
  const NamedTensors& operator*() const& { return Base::operator*(); }
  NamedTensors& operator*() & { return Base::operator*(); }
  NamedTensors operator*() && { return std::move(*this).Base::value(); }
};

/// Text entries about a file: the header's "__metadata__".
using SafetensorsMetadata = std::map<std::string, std::string>;

/// A tensor of a file.
struct SafetensorsEntry {
  std::string name;
  /// Dtype as in the file: "F32", "BF16", "I64", "BOOL", ...
  std::string dtype;
  std::vector<int64_t> shape;
  /// Byte range [begin, end) within the data, which starts after the header.
  int64_t begin = 0;
  int64_t end = 0;
};

/// A safetensors file opened for reading.
///
///   auto file = SafetensorsFile::open("model.safetensors").value();
///   at::Tensor weight = file.tensor("fc.weight").value();   // (10, 64) float32, on the CPU
///
/// open() checks the whole header against the file size before it allocates any tensor, so every accepted file can be
/// read. It accepts and rejects the same files as the reference, but also rejects:
///   duplicate names; white space before the header; nesting deeper than 16
///   more than 64 dimensions; dimensions over 2^63 - 1
///   names with control characters or more than 65,535 bytes; strings over 16 MiB
///   more than 262,144 tensors or metadata entries
///
/// Data is read with pread directly into the tensor's memory, not mapped. So a file that becomes shorter is an error
/// instead of a SIGBUS, and tensors are aligned for any offset. Thread-safe for concurrent reads.
class SafetensorsFile {
 public:
  /// Opens and checks a file. Errors have exit code 5 (kNotFound if the file does not exist) and name the faulty tensor
  /// and its offsets.
  static absl::StatusOr<SafetensorsFile> open(const std::string& path, const Fs& fs = Fs::posix());
  static absl::StatusOr<SafetensorsFile> open(ReadableFile file);

  /// Entries in the order of their data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::string& path() const { return file_->path(); }

  /// Reads a tensor into new contiguous CPU memory. kNotFound with the nearest name; kUnimplemented for F4, F6_E2M3 and
  /// F6_E3M2, which LibTorch lacks; kResourceExhausted if out of memory; kDataLoss if the file was truncated.
  absl::StatusOr<at::Tensor> tensor(std::string_view name) const;
  /// Reads all tensors.
  NamedTensorsOr tensors() const;

 private:
  friend class detail::StoredTensors;
  SafetensorsFile() = default;
  const SafetensorsEntry* find(std::string_view name) const;
  absl::StatusOr<at::Tensor> read(const SafetensorsEntry& entry) const;
  absl::Status read_bytes(const SafetensorsEntry& entry, int64_t offset, void* data, size_t bytes) const;

  std::shared_ptr<const ReadableFile> file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint32_t> by_name_;  // positions in entries_
  SafetensorsMetadata metadata_;
};

/// Returns the number of bytes that write_safetensors will append, to check the free space first.
absl::StatusOr<int64_t> safetensors_bytes(const NamedTensors& tensors, const SafetensorsMetadata& metadata = {});

/// Appends tensors to a new file. The bytes depend only on names, values and metadata, not on the order, and equal
/// those of Python's `safetensors.torch.save_file`. A tensor on a device or not contiguous is copied first, one at a
/// time; no other memory is used. Synchronises with the device of each such tensor.
///
/// kInvalidArgument names a tensor without data in memory (undefined, meta, sparse, quantised), with a dtype that the
/// format lacks, or with a name that is a duplicate or not UTF-8. It also refuses names, metadata and counts that
/// SafetensorsFile::open rejects: control characters in a name, a name over 65,535 bytes, more than 64 dimensions.
absl::Status write_safetensors(WritableFile& file, const NamedTensors& tensors,
                               const SafetensorsMetadata& metadata = {});

/// Writes a file atomically (write_file_atomically): an existing file is replaced completely or stays unchanged.
absl::Status save_safetensors(const Fs& fs, const std::string& path, const NamedTensors& tensors,
                              const SafetensorsMetadata& metadata = {});

/// Copies every tensor of `source` into the tensor of the same name in `target`, in place and without autograd.
///
/// Everything is checked first. If a name is missing or unexpected or a shape differs, nothing is copied; the error
/// (exit code 5) gives the count and up to five names. Converts between floating-point types; a conversion between
/// integers and floats is an error. `where` is the file named in errors.
absl::Status copy_named_tensors(const NamedTensors& source, const NamedTensors& target, const std::string& where);

}  // namespace trainkit
