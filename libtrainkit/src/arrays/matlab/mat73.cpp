// Reads MAT files of version 7.3: HDF5 after a block of 512 bytes. Checks the structure before HDF5 reads data from it.
// Source: "HDF5 File Format Specification", version 3.0, The HDF Group.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <limits>

#include "arrays/matlab/hdf5_checks.h"
#include "arrays/matlab/hdf5_handle.h"
#include "arrays/matlab/hdf5_mapped.h"
#include "arrays/matlab/mat_source.h"
#include "arrays/matlab/matio_bridge.h"
#include "arrays/matlab/message.h"
#include "arrays/matlab/run_forked.h"
#include "core/files/array_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr size_t kUserBlock = 512;
constexpr int64_t kMostVariables73 = 10'000;

/// Checks HDF5's superblock, including the end of file stored in it.
absl::Status check_superblock(std::string_view text) {
  constexpr std::string_view kSignature = "\x89HDF\r\n\x1a\n";
  if (text.size() < kUserBlock + 64) {
    return damaged(fmt::format("{} bytes, too few for the HDF5 part (truncated?)", text.size()));
  }
  const std::string_view block = text.substr(kUserBlock);
  if (!block.starts_with(kSignature)) return refused("version 7.3, but no HDF5 at byte 512");
  const auto byte = [&](size_t at) { return static_cast<unsigned char>(block[at]); };
  const auto address = [&](size_t at) {
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i) value |= uint64_t{byte(at + i)} << (8 * i);
    return value;
  };
  const unsigned version = byte(8);
  if (version > 3) return refused(fmt::format("HDF5 superblock of version {}, 0 to 3 are known", version));
  const bool old = version < 2;
  if (byte(old ? 13 : 9) != 8 || byte(old ? 14 : 10) != 8) return refused("HDF5 addresses are not of 8 bytes");
  const size_t first = version == 0 ? 24 : version == 1 ? 28 : 12;
  const uint64_t base = address(first), end = address(first + 16);
  constexpr uint64_t kNone = std::numeric_limits<uint64_t>::max();
  if (base != kUserBlock) return refused(fmt::format("the superblock gives a base address of {}, not 512", base));
  if (old && address(first + 24) != kNone)
    return refused("the HDF5 part requires a driver, which may refer to other files");
  if (end == kNone || end > text.size()) {
    return damaged(
        fmt::format("the superblock gives an end at byte {}, the file has {} (truncated?)", end, text.size()));
  }
  return absl::OkStatus();
}

/// Returns a fixed-length string attribute of at most 64 bytes. Empty if there is none.
std::string attribute(hid_t object, const char* name) {
  if (H5Aexists(object, name) <= 0) return {};
  const Hdf5Handle found(H5Aopen(object, name, H5P_DEFAULT));
  const Hdf5Handle type(found ? H5Aget_type(found) : -1), space(found ? H5Aget_space(found) : -1);
  if (!type || !space || H5Tget_class(type) != H5T_STRING || H5Tis_variable_str(type) > 0) return {};
  const size_t size = H5Tget_size(type);
  if (size == 0 || size > 64 || H5Sget_simple_extent_npoints(space) != 1) return {};
  std::string text(size, '\0');
  if (H5Aread(found, type, text.data()) < 0) return {};
  return text.substr(0, text.find('\0'));
}

/// Returns the number of a MATLAB class name. 0 if unknown.
int class_number(const std::string& name) {
  for (int number = 1; number <= static_cast<int>(MatClass::kOpaque); ++number) {
    if (mat_class_name(number) == name) return number;
  }
  return 0;
}

/// Returns MATLAB's sizes, which are HDF5's reversed. Empty if there are none.
std::vector<int64_t> sizes_of(hid_t dataset) {
  const Hdf5Handle space(H5Dget_space(dataset));
  if (!space || H5Sget_simple_extent_type(space) != H5S_SIMPLE) return {};
  const int dimensions = H5Sget_simple_extent_ndims(space);
  if (dimensions < 1 || dimensions > kMostDimensions73) return {};
  std::vector<hsize_t> sizes(dimensions);
  if (H5Sget_simple_extent_dims(space, sizes.data(), nullptr) < 0) return {};
  std::vector<int64_t> result;
  for (auto size = sizes.rbegin(); size != sizes.rend(); ++size) {
    result.push_back(static_cast<int64_t>(std::min<hsize_t>(*size, std::numeric_limits<int64_t>::max())));
  }
  return result;
}

MatVariable describe(hid_t root, const std::string& name) {
  MatVariable variable{.name = name, .type = "unreadable object", .dtype = {}, .sizes = {}};
  H5L_info_t link;
  if (H5Lget_info(root, name.c_str(), &link, H5P_DEFAULT) < 0) return variable;
  if (link.type != H5L_TYPE_HARD) {
    variable.type = "link";  // possibly to another file
    return variable;
  }
  const Hdf5Handle object(H5Oopen(root, name.c_str(), H5P_DEFAULT));
  if (!object) return variable;
  const std::string class_name = attribute(object, "MATLAB_class");
  variable.type = class_name.empty() ? "HDF5 object without a class of MATLAB" : class_name;
  if (H5Iget_type(object) != H5I_DATASET) {
    if (H5Aexists(object, "MATLAB_sparse") > 0) variable.type = "sparse";
    if (class_name.empty()) variable.type = "struct";
    return variable;
  }
  variable.sizes = sizes_of(object);
  const Hdf5Handle type(H5Dget_type(object));
  if (type && H5Tget_class(type) == H5T_COMPOUND) {
    variable.type = "complex " + variable.type;
  } else if (H5Aexists(object, "MATLAB_empty") > 0) {
    variable.type = "empty " + variable.type;
  } else {
    variable.dtype = class_name == "logical" ? std::optional(at::kBool) : mat_class_dtype(class_number(class_name));
  }
  return variable;
}

absl::StatusOr<std::vector<MatVariable>> list_variables(hid_t file) {
  const Hdf5Handle root(H5Gopen2(file, "/", H5P_DEFAULT));
  H5G_info_t info;
  if (!root || H5Gget_info(root, &info) < 0) return damaged("HDF5 cannot read the list of variables");
  if (info.nlinks > static_cast<hsize_t>(kMostVariables73))
    return refused(fmt::format("more than {} variables", kMostVariables73));
  std::vector<MatVariable> variables;
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    const auto copy = [&](char* to, size_t size) {
      return H5Lget_name_by_idx(root, ".", H5_INDEX_NAME, H5_ITER_INC, i, to, size, H5P_DEFAULT);
    };
    const ssize_t length = copy(nullptr, 0);
    if (length <= 0 || length > 4096) return damaged("HDF5 cannot read the name of a variable");
    std::string name(static_cast<size_t>(length), '\0');
    if (copy(name.data(), name.size() + 1) < 0) return damaged("HDF5 cannot read the name of a variable");
    if (name[0] != '#') variables.push_back(describe(root, name));  // names such as '#refs#' are internal to MATLAB
  }
  return variables;
}

void put(Message& message, const MatVariable& variable) {
  message.put(variable.name);
  message.put(variable.type);
  message.put(variable.dtype ? static_cast<int64_t>(*variable.dtype) : -1);
  message.put(static_cast<int64_t>(variable.sizes.size()));
  for (const int64_t size : variable.sizes) message.put(size);
}

MatVariable next_variable(Message& message) {
  MatVariable variable{.name = message.text(), .type = message.text(), .dtype = {}, .sizes = {}};
  if (const int64_t dtype = message.number(); dtype >= 0) variable.dtype = static_cast<at::ScalarType>(dtype);
  variable.sizes.resize(static_cast<size_t>(message.number()));
  for (int64_t& size : variable.sizes) size = message.number();
  return variable;
}

/// Lists the variables in a forked copy. See Note [Checking HDF5 chunks before reading].
absl::StatusOr<std::vector<MatVariable>> list_in_copy(const MappedFile& file) {
  const Hdf5Session session;
  TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] {
                              Message message;
                              const auto list = [&]() -> absl::StatusOr<std::vector<MatVariable>> {
                                const Hdf5Handle hdf5 = open_mapped(file);
                                if (!hdf5) return damaged("HDF5 cannot open it: damaged or not HDF5");
                                auto variables = list_variables(hdf5);
                                if (file.damaged()) return damaged("was truncated while it was read");
                                return variables;
                              };
                              const auto variables = list();
                              message.put(variables.status());
                              if (!variables.ok()) return message.take();
                              message.put(static_cast<int64_t>(variables->size()));
                              for (const MatVariable& variable : *variables) put(message, variable);
                              return message.take();
                            }));
  Message message(std::move(reply));
  TRAINKIT_RETURN_IF_ERROR(message.status());
  std::vector<MatVariable> variables(static_cast<size_t>(message.number()));
  for (MatVariable& variable : variables) variable = next_variable(message);
  return variables;
}

class Mat73 final : public MatSource {
 public:
  Mat73(std::shared_ptr<const MappedFile> file, std::vector<MatVariable> variables, const MatOptions& options)
      : MatSource(file->path(), std::move(variables)), file_(std::move(file)), options_(options) {}

  absl::StatusOr<at::Tensor> read(size_t index) const override {
    const MatVariable& variable = variables()[index];
    auto tensor = read(variable);
    TRAINKIT_RETURN_IF_ERROR(file_->check());
    if (tensor.ok() || error_of(tensor.status())) return tensor;
    return mat_error({.path = path(), .variable = variable.name, .problem = std::string(tensor.status().message())},
                     tensor.status().code());
  }

 private:
  absl::StatusOr<at::Tensor> read(const MatVariable& variable) const {
    const int64_t bytes = array_bytes(variable.sizes, static_cast<int64_t>(c10::elementSize(*variable.dtype)));
    const bool readable = bytes > 0 && bytes <= options_.max_variable_bytes;  // otherwise the copy reports the error
    const SharedPages pages(readable ? static_cast<size_t>(bytes) : 1);
    if (!pages.data()) return absl::ResourceExhaustedError("no memory for " + describe_bytes(bytes));
    const Hdf5Session session;
    TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] {
                                Message message;
                                absl::Status status = read_columns(variable, pages.data());
                                if (file_->damaged()) status = damaged("was truncated while it was read");
                                message.put(status);
                                return message.take();
                              }));
    TRAINKIT_RETURN_IF_ERROR(Message(std::move(reply)).status());
    const at::Tensor rows = row_major(column_major(variable, pages.data()), variable);
    return rows.const_data_ptr() == pages.data() ? rows.clone() : rows;
  }

  /// Reads a variable; runs in the forked copy. Does not use libmatio, which reads every preceding variable, checked or
  /// not.
  absl::Status read_columns(const MatVariable& variable, void* to) const {
    const Hdf5Handle file = open_mapped(*file_);
    const Hdf5Handle dataset(file ? H5Dopen2(file, variable.name.c_str(), H5P_DEFAULT) : -1);
    if (!dataset) return damaged("HDF5 can no longer open it");
    if (sizes_of(dataset) != variable.sizes) return damaged("changed while it was read");
    TRAINKIT_RETURN_IF_ERROR(check_dataset(dataset, variable, static_cast<int64_t>(file_->bytes().size()), options_));
    const hid_t type = hdf5_types(*variable.dtype).memory;
    if (H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, to) < 0) return damaged("HDF5 cannot read its data");
    return absl::OkStatus();
  }

  std::shared_ptr<const MappedFile> file_;
  MatOptions options_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const MatSource>> open_mat73(std::shared_ptr<const MappedFile> file,
                                                            const MatOptions& options) {
  const auto list = [&]() -> absl::StatusOr<std::vector<MatVariable>> {
    TRAINKIT_RETURN_IF_ERROR(check_superblock(file->text()));
    return list_in_copy(*file);
  };
  auto variables = list();
  TRAINKIT_RETURN_IF_ERROR(file->check());
  if (!variables.ok()) {
    return mat_error({.path = file->path(), .offset = kUserBlock, .problem = std::string(variables.status().message())},
                     variables.status().code());
  }
  return std::make_shared<const Mat73>(std::move(file), *std::move(variables), options);
}

}  // namespace trainkit::detail
