#include "io/matio_bridge.h"

#include <ATen/Functions.h>
#include <matio.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <numeric>
#include <optional>

#include "io/hdf5_handle.h"
#include "io/mat_source.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

struct CloseMat {
  void operator()(mat_t* mat) const { Mat_Close(mat); }
};
struct FreeVariable {
  void operator()(matvar_t* variable) const { Mat_VarFree(variable); }
};
using Mat = std::unique_ptr<mat_t, CloseMat>;
using Variable = std::unique_ptr<matvar_t, FreeVariable>;

absl::Status no_memory_file(const std::string& what) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.memory_file",
                    .where = "memory",
                    .problem = what + ": " + std::strerror(errno)},
                   absl::StatusCode::kResourceExhausted);
}

// Silences libmatio, which prints to stderr; our errors name the file.
void be_silent() {
  static const int done = [] {
    const Hdf5Session session;  // Mat_LogInitFunc calls HDF5, whose first use must be in an Hdf5Session
    return Mat_LogInitFunc("trainkit", [](int, char*) {});
  }();
  (void)done;
}

bool agrees(const matvar_t& found, const MatVariable& expected) {
  if (found.isComplex || !found.dims || found.rank != static_cast<int>(expected.sizes.size())) return false;
  for (int d = 0; d < found.rank; ++d) {
    if (static_cast<int64_t>(found.dims[d]) != expected.sizes[d]) return false;
  }
  return mat_class_dtype(found.class_type) == (*expected.dtype == at::kBool ? at::kByte : *expected.dtype);
}

matio_types type_of(matio_classes class_type) {
  switch (class_type) {
    case MAT_C_DOUBLE:
      return MAT_T_DOUBLE;
    case MAT_C_SINGLE:
      return MAT_T_SINGLE;
    case MAT_C_INT8:
      return MAT_T_INT8;
    case MAT_C_UINT8:
      return MAT_T_UINT8;
    case MAT_C_INT16:
      return MAT_T_INT16;
    case MAT_C_UINT16:
      return MAT_T_UINT16;
    case MAT_C_INT32:
      return MAT_T_INT32;
    case MAT_C_UINT32:
      return MAT_T_UINT32;
    case MAT_C_INT64:
      return MAT_T_INT64;
    default:
      return MAT_T_UINT64;
  }
}

}  // namespace

at::Tensor reverse_dims(const at::Tensor& tensor) {
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.rbegin(), order.rend(), 0);
  return tensor.permute(order);
}

at::Tensor column_major(const MatVariable& variable, void* data) {
  const std::vector<int64_t> sizes(variable.sizes.rbegin(), variable.sizes.rend());
  const auto options = at::TensorOptions().dtype(*variable.dtype == at::kBool ? at::kByte : *variable.dtype);
  return data ? at::from_blob(data, sizes, options) : at::zeros(sizes, options);
}
at::Tensor column_major(const MatVariable& variable) { return column_major(variable, nullptr); }

at::Tensor row_major(const at::Tensor& columns, const MatVariable& variable) {
  const at::Tensor rows = reverse_dims(columns);
  return (*variable.dtype == at::kBool ? rows.ne(0) : rows).contiguous();
}

absl::StatusOr<MemoryFile> MemoryFile::create() {
  UniqueDescriptor descriptor(::memfd_create("trainkit", MFD_CLOEXEC));
  if (descriptor.get() < 0) return no_memory_file("cannot create a file in memory");
  return MemoryFile(std::move(descriptor));
}

absl::Status MemoryFile::append(const void* data, size_t size) {
  for (const char* at = static_cast<const char*>(data); size > 0;) {
    const ssize_t written = ::write(descriptor(), at, size);
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) return no_memory_file("not enough memory for a file in memory");
    at += written;
    size -= static_cast<size_t>(written);
  }
  return absl::OkStatus();
}

std::string MemoryFile::path() const { return "/proc/self/fd/" + std::to_string(descriptor()); }

absl::StatusOr<at::Tensor> read_with_matio(const std::string& path, const MatVariable& variable) try {
  be_silent();
  const Mat mat(Mat_Open(path.c_str(), MAT_ACC_RDONLY));
  if (!mat) return absl::DataLossError("libmatio cannot open the file");
  const Variable found(Mat_VarReadInfo(mat.get(), variable.name.c_str()));
  if (!found) return absl::DataLossError("libmatio does not find the variable");
  if (!agrees(*found, variable)) {
    return absl::DataLossError("libmatio reads other sizes or another type than the file states");
  }
  // The buffer is ours and zeroed, so bytes that libmatio does not write are 0, not old memory. libmatio counts with
  // int; an array of version 5 has fewer bytes than that.
  const at::Tensor columns = column_major(variable);
  const int all = static_cast<int>(columns.numel());
  if (Mat_VarReadDataLinear(mat.get(), found.get(), columns.data_ptr(), 0, 1, all) != 0) {
    return absl::DataLossError("libmatio cannot read the data");
  }
  return row_major(columns, variable);
} catch (...) {
  return status_from_current_exception();
}

absl::Status write_with_matio(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables,
                              MatVersion version) {
  be_silent();
  std::optional<Hdf5Session> session;
  if (version == MatVersion::k73) session.emplace();
  Mat mat(Mat_CreateVer(path.c_str(), "MATLAB MAT-file, written by trainkit",
                        version == MatVersion::k5 ? MAT_FT_MAT5 : MAT_FT_MAT73));
  if (!mat) return absl::InternalError("libmatio cannot create a file");
  for (const auto& [name, tensor] : variables) {
    at::Tensor columns = reverse_dims(tensor.dim() < 2 ? tensor.reshape({1, -1}) : tensor).cpu().contiguous();
    const bool logical = columns.scalar_type() == at::kBool;
    if (logical) columns = columns.to(at::kByte);
    const auto class_type = static_cast<matio_classes>(mat_class_of(columns.scalar_type()));
    std::vector<size_t> sizes(columns.sizes().rbegin(), columns.sizes().rend());
    const Variable variable(Mat_VarCreate(name.c_str(), class_type, type_of(class_type), static_cast<int>(sizes.size()),
                                          sizes.data(), columns.data_ptr(),
                                          MAT_F_DONT_COPY_DATA | (logical ? MAT_F_LOGICAL : 0)));
    if (!variable) return absl::ResourceExhaustedError("libmatio cannot create variable '" + name + "'");
    if (Mat_VarWrite(mat.get(), variable.get(), MAT_COMPRESSION_ZLIB) != 0) {
      return absl::InternalError("libmatio cannot write variable '" + name + "'");
    }
  }
  if (Mat_Close(mat.release()) != 0) return absl::InternalError("libmatio cannot close the file");
  return absl::OkStatus();
}

}  // namespace trainkit::detail
