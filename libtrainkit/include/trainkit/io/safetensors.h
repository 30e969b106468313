#pragma once
/// Weights in and out as safetensors, the format that Python's `safetensors` reads and writes: a JSON header, then the
/// bytes of the tensors, little-endian and row-major. Nothing in a file can run code.
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

/// Tensors by name, in an order that matters only to the reader of a listing.
using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;

/// Free text about a file; the header's "__metadata__".
using SafetensorsMetadata = std::map<std::string, std::string>;

/// One tensor of a file.
struct SafetensorsEntry {
  std::string name;
  /// As in the file: "F32", "BF16", "I64", "BOOL", ...
  std::string dtype;
  std::vector<int64_t> shape;
  /// Bytes [begin, end) of the data, which starts after the header.
  int64_t begin = 0;
  int64_t end = 0;
};

/// A safetensors file that was opened for reading.
///
///   auto file = SafetensorsFile::open("model.safetensors").value();
///   at::Tensor weight = file.tensor("fc.weight").value();   // (10, 64) float32, on the CPU
///
/// open() checks the whole header against the file's size before anything is allocated for a tensor: what it accepts
/// can be read. It gives the reference's verdict on every file, and also refuses duplicate names, white space before
/// the header, nesting deeper than 16, more than 64 dimensions, dimensions over 2^63 - 1, names that hold control
/// characters or more than 65,535 bytes, more than 262,144 tensors or entries of metadata, and texts of over 16 MiB.
///
/// Data is read by pread straight into the tensor's memory and not mapped: a file that shrinks meanwhile is an error
/// and no SIGBUS, and tensors are aligned whatever the offsets are. Any number of threads may read.
class SafetensorsFile {
 public:
  /// Opens and checks a file. Errors are of exit code 5 (kNotFound if there is no such file) and name the tensor and
  /// its offsets where one is at fault.
  static absl::StatusOr<SafetensorsFile> open(const std::string& path, const Fs& fs = Fs::posix());
  static absl::StatusOr<SafetensorsFile> open(ReadableFile file);

  /// In the order of the data.
  const std::vector<SafetensorsEntry>& entries() const { return entries_; }
  std::vector<std::string> names() const;
  bool contains(std::string_view name) const { return find(name) != nullptr; }
  const SafetensorsMetadata& metadata() const { return metadata_; }
  const std::string& path() const { return file_->path(); }

  /// A new contiguous tensor on the CPU. kNotFound with the nearest name; kUnimplemented for F4, F6_E2M3 and F6_E3M2,
  /// which LibTorch cannot hold one by one; kResourceExhausted if there is no memory; kDataLoss if the file was cut.
  absl::StatusOr<at::Tensor> tensor(std::string_view name) const;
  /// All of them.
  absl::StatusOr<NamedTensors> tensors() const;

 private:
  SafetensorsFile() = default;
  const SafetensorsEntry* find(std::string_view name) const;
  absl::StatusOr<at::Tensor> read(const SafetensorsEntry& entry) const;

  std::shared_ptr<const ReadableFile> file_;
  int64_t data_begin_ = 0;
  std::vector<SafetensorsEntry> entries_;
  std::vector<uint32_t> by_name_;  // positions in entries_
  SafetensorsMetadata metadata_;
};

/// Bytes that write_safetensors will append: for asking whether they fit before the first is written.
absl::StatusOr<int64_t> safetensors_bytes(const NamedTensors& tensors, const SafetensorsMetadata& metadata = {});

/// Appends tensors to a new file. The bytes depend on names, values and metadata alone, not on the order given, and are
/// those that Python's `safetensors.torch.save_file` writes. A tensor that is on a device or not contiguous is copied,
/// one at a time; no other memory is used. Synchronises with the device of each such tensor.
///
/// kInvalidArgument names a tensor with no data in memory (undefined, meta, sparse, quantised), of a dtype that the
/// format lacks, a name that stands twice or is no UTF-8.
absl::Status write_safetensors(WritableFile& file, const NamedTensors& tensors,
                               const SafetensorsMetadata& metadata = {});

/// Writes a file atomically (write_file_atomically): a file of that name is replaced as a whole or left as it was.
absl::Status save_safetensors(const Fs& fs, const std::string& path, const NamedTensors& tensors,
                              const SafetensorsMetadata& metadata = {});

/// Copies every tensor of `source` into the tensor of the same name in `target`, in place and without autograd. All is
/// checked first: nothing is copied if a name is missing or left over or a shape differs, and the error (exit code 5)
/// counts them and names up to 20. Values are converted between floating-point types; between integers and floats is an
/// error. `where` is the file to blame.
absl::Status copy_named_tensors(const NamedTensors& source, const NamedTensors& target, const std::string& where);

}  // namespace trainkit
