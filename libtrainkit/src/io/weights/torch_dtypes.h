#pragma once
/// Maps PyTorch's names of dtypes and storages to LibTorch's types.

#include <c10/core/ScalarType.h>

#include <string_view>
#include <vector>

namespace trainkit::detail {

struct TorchDtype {
  std::string_view name;  ///< "float32"
  /// Name of the storage class, "FloatStorage". Empty for a type without one; torch.save writes it as UntypedStorage
  /// and a dtype.
  std::string_view storage;
  c10::ScalarType type;
};

/// All supported dtypes, without the quantised ones.
const std::vector<TorchDtype>& torch_dtypes();
/// Return the dtype, or nullptr if there is none.
const TorchDtype* find_torch_dtype(std::string_view name);
const TorchDtype* find_torch_dtype(c10::ScalarType type);
const TorchDtype* find_torch_storage(std::string_view storage);

}  // namespace trainkit::detail
