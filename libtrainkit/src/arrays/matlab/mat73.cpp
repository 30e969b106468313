// Reads MAT files of version 7.3: HDF5 after a block of 512 bytes.
// Source: "HDF5 File Format Specification", version 3.0, The HDF Group.
#include <fmt/format.h>

#include <algorithm>
#include <optional>

#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/hdf5/hdf5_layout.h"
#include "arrays/hdf5/hdf5_mapped.h"
#include "arrays/hdf5/message.h"
#include "arrays/hdf5/run_forked.h"
#include "arrays/matlab/mat_source.h"
#include "core/files/array_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr size_t kUserBlock = 512;
constexpr int64_t kMostVariables73 = 10'000;

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
  const Hdf5Handle type(H5Dget_type(object)), space(H5Dget_space(object));
  variable.sizes = (space ? hdf5_sizes(space) : std::nullopt).value_or(std::vector<int64_t>{});
  std::reverse(variable.sizes.begin(), variable.sizes.end());
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

/// Lists the variables in a forked copy. See Note [HDF5 finds, we read].
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
                              for (const MatVariable& v : *variables) message.put(v.name, v.type, v.dtype, v.sizes);
                              return message.take();
                            }));
  Message message(std::move(reply));
  TRAINKIT_RETURN_IF_ERROR(message.status());
  std::vector<MatVariable> variables(message.size(kMostVariables73));
  for (MatVariable& v : variables) message.take(v.name, v.type, v.dtype, v.sizes);
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
    TRAINKIT_RETURN_IF_ERROR(check_sizes(variable));
    const std::vector<int64_t> sizes(variable.sizes.rbegin(), variable.sizes.rend());
    TRAINKIT_ASSIGN_OR_RETURN(
        const Hdf5Layout layout,
        find_hdf5_layout(*file_,
                         {.path = variable.name, .type = variable.type, .dtype = *variable.dtype, .sizes = sizes}));
    return layout.read(file_, /*is_reversed=*/true, 0, variable.sizes[0]);
  }

  absl::Status check_sizes(const MatVariable& variable) const {
    if (variable.sizes.size() < 2)
      return refused(fmt::format("has {} dimensions, 2 to {} are possible", variable.sizes.size(), kMostDimensions));
    const int64_t bytes = array_bytes(variable.sizes, static_cast<int64_t>(c10::elementSize(*variable.dtype)));
    const std::string sizes = describe_sizes(variable.sizes);
    if (bytes < 0) return refused(fmt::format("a size of {} overflows", sizes));
    if (bytes == 0) return refused(fmt::format("an array of {} is empty", sizes));
    if (bytes <= options_.max_variable_bytes) return absl::OkStatus();
    return refused(fmt::format("an array of {} takes {}, the limit is {}", sizes, describe_bytes(bytes),
                               describe_bytes(options_.max_variable_bytes)));
  }

  std::shared_ptr<const MappedFile> file_;
  MatOptions options_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const MatSource>> open_mat73(std::shared_ptr<const MappedFile> file,
                                                            const MatOptions& options) {
  TRAINKIT_RETURN_IF_ERROR(hdf5.load());
  const auto list = [&]() -> absl::StatusOr<std::vector<MatVariable>> {
    TRAINKIT_RETURN_IF_ERROR(check_superblock(file->text(), kUserBlock));
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
