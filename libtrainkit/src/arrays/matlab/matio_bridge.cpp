#include "arrays/matlab/matio_bridge.h"

#include <ATen/Functions.h>

#include <array>
#include <memory>
#include <numeric>

#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/matlab/mat_source.h"
#include "arrays/matlab/matio_functions.h"
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

// Silences libmatio, which prints to stderr; our errors name the file.
void be_silent() {
  static const int done = [] {
    const Hdf5Session session;  // Mat_LogInitFunc calls HDF5, whose first use must be in an Hdf5Session
    return Mat_LogInitFunc("trainkit", [](int, auto*) {});
  }();
  (void)done;
}

// The stored type of each numeric class, from MAT_C_DOUBLE on.
constexpr std::array kStoredTypes = {MAT_T_DOUBLE, MAT_T_SINGLE, MAT_T_INT8,   MAT_T_UINT8, MAT_T_INT16,
                                     MAT_T_UINT16, MAT_T_INT32,  MAT_T_UINT32, MAT_T_INT64, MAT_T_UINT64};

}  // namespace

constinit LateLibrary matio{TRAINKIT_MATIO_LIBRARY, "libmatio", "libmatio11", TRAINKIT_CARRIED("hdf5")};

at::Tensor reverse_dims(const at::Tensor& tensor) {
  std::vector<int64_t> order(tensor.dim());
  std::iota(order.rbegin(), order.rend(), 0);
  return tensor.permute(order);
}

at::Tensor row_major(const at::Tensor& columns, const MatVariable& variable) {
  const at::Tensor rows = reverse_dims(columns);
  return (*variable.dtype == at::kBool ? rows.ne(0) : rows).contiguous();
}

absl::Status load_matio() {
  for (LateLibrary* library : {&hdf5, &matio}) TRAINKIT_RETURN_IF_ERROR(library->load());
  return absl::OkStatus();
}

absl::Status write_with_matio(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables) {
  be_silent();
  Mat mat(Mat_CreateVer(path.c_str(), "MATLAB MAT-file, written by trainkit", MAT_FT_MAT5));
  if (!mat) return absl::InternalError("libmatio cannot create a file");
  for (const auto& [name, tensor] : variables) {
    at::Tensor columns = reverse_dims(tensor.dim() < 2 ? tensor.reshape({1, -1}) : tensor).cpu();
    columns = columns.resolve_neg().contiguous();
    const bool logical = columns.scalar_type() == at::kBool;
    if (logical) columns = columns.to(at::kByte);
    const auto class_type = static_cast<matio_classes>(mat_class_of(columns.scalar_type()));
    std::vector<size_t> sizes(columns.sizes().rbegin(), columns.sizes().rend());
    const Variable variable(Mat_VarCreate(name.c_str(), class_type, kStoredTypes.at(class_type - MAT_C_DOUBLE),
                                          static_cast<int>(sizes.size()), sizes.data(), columns.data_ptr(),
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
