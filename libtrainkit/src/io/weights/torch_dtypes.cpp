#include "io/weights/torch_dtypes.h"

#include <algorithm>

namespace trainkit::detail {
namespace {

template <class Predicate>
const TorchDtype* find(Predicate matches) {
  const auto& all = torch_dtypes();
  const auto found = std::find_if(all.begin(), all.end(), matches);
  return found == all.end() ? nullptr : &*found;
}

}  // namespace

const std::vector<TorchDtype>& torch_dtypes() {
  using enum c10::ScalarType;
  static const std::vector<TorchDtype> dtypes = {
      {"float32", "FloatStorage", Float},
      {"float64", "DoubleStorage", Double},
      {"float16", "HalfStorage", Half},
      {"bfloat16", "BFloat16Storage", BFloat16},
      {"int64", "LongStorage", Long},
      {"int32", "IntStorage", Int},
      {"int16", "ShortStorage", Short},
      {"int8", "CharStorage", Char},
      {"uint8", "ByteStorage", Byte},
      {"bool", "BoolStorage", Bool},
      {"complex64", "ComplexFloatStorage", ComplexFloat},
      {"complex128", "ComplexDoubleStorage", ComplexDouble},
      {"complex32", "", ComplexHalf},
      {"uint16", "", UInt16},
      {"uint32", "", UInt32},
      {"uint64", "", UInt64},
      {"float8_e4m3fn", "", Float8_e4m3fn},
      {"float8_e4m3fnuz", "", Float8_e4m3fnuz},
      {"float8_e5m2", "", Float8_e5m2},
      {"float8_e5m2fnuz", "", Float8_e5m2fnuz},
      {"float8_e8m0fnu", "", Float8_e8m0fnu},
  };
  return dtypes;
}

const TorchDtype* find_torch_dtype(std::string_view name) {
  return find([&](const TorchDtype& dtype) { return dtype.name == name; });
}

const TorchDtype* find_torch_dtype(c10::ScalarType type) {
  return find([&](const TorchDtype& dtype) { return dtype.type == type; });
}

const TorchDtype* find_torch_storage(std::string_view storage) {
  if (storage.empty()) return nullptr;
  return find([&](const TorchDtype& dtype) { return dtype.storage == storage; });
}

}  // namespace trainkit::detail
