#pragma once
/// Writes `.mat` files of version 7.3 through libmatio. The library reads this version, but does not write it.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>
#include <matio.h>

#include <array>
#include <filesystem>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/matlab/mat_source.h"
#include "arrays/matlab/matio_bridge.h"

namespace trainkit::test {

/// As write_mat, with its signature. The caller has checked that the variables can be stored.
inline absl::Status write_mat73(const std::string& path,
                                std::span<const std::pair<std::string, at::Tensor>> variables) {
  constexpr std::array kTypes = {MAT_T_DOUBLE, MAT_T_SINGLE, MAT_T_INT8,   MAT_T_UINT8, MAT_T_INT16,
                                 MAT_T_UINT16, MAT_T_INT32,  MAT_T_UINT32, MAT_T_INT64, MAT_T_UINT64};
  const detail::Hdf5Session session;
  const std::string temporary = path + ".new";  // a reader of the old file keeps it
  mat_t* const mat = Mat_CreateVer(temporary.c_str(), "MATLAB MAT-file, written by trainkit", MAT_FT_MAT73);
  if (mat == nullptr) return absl::InternalError("libmatio cannot create a file");
  bool is_written = true;
  for (const auto& [name, tensor] : variables) {
    at::Tensor columns = detail::reverse_dims(tensor.dim() < 2 ? tensor.reshape({1, -1}) : tensor);
    columns = columns.resolve_neg().contiguous();
    const int flags = MAT_F_DONT_COPY_DATA | (columns.scalar_type() == at::kBool ? MAT_F_LOGICAL : 0);
    if (columns.scalar_type() == at::kBool) columns = columns.to(at::kByte);
    const auto class_type = static_cast<matio_classes>(detail::mat_class_of(columns.scalar_type()));
    std::vector<size_t> sizes(columns.sizes().rbegin(), columns.sizes().rend());
    matvar_t* const variable = Mat_VarCreate(name.c_str(), class_type, kTypes.at(class_type - MAT_C_DOUBLE),
                                             static_cast<int>(sizes.size()), sizes.data(), columns.data_ptr(), flags);
    is_written = is_written && Mat_VarWrite(mat, variable, MAT_COMPRESSION_ZLIB) == 0;
    Mat_VarFree(variable);
  }
  if (Mat_Close(mat) != 0 || !is_written) return absl::InternalError("libmatio cannot write the file");
  std::filesystem::rename(temporary, path);
  return absl::OkStatus();
}

}  // namespace trainkit::test
