#pragma once
/// PyTorch's names of dtypes and of the storages that hold them.

#include <c10/core/ScalarType.h>

#include <string_view>
#include <vector>

namespace trainkit::detail {

struct TorchDtype {
  std::string_view name;  ///< "float32"
  /// "FloatStorage"; empty for a type that has none: torch.save writes it as UntypedStorage and a dtype.
  std::string_view storage;
  c10::ScalarType type;
};

/// All that can be read and written; the quantised types are not among them.
const std::vector<TorchDtype>& torch_dtypes();
/// nullptr if there is none.
const TorchDtype* find_torch_dtype(std::string_view name);
const TorchDtype* find_torch_dtype(c10::ScalarType type);
const TorchDtype* find_torch_storage(std::string_view storage);

}  // namespace trainkit::detail
