#include "nn/exported/exported_values.h"

#include <ATen/ScalarOps.h>

#include <map>
#include <optional>
#include <string>
#include <utility>

#include "core/base/strict_json.h"

namespace trainkit::detail {
namespace {

using Json = nlohmann::json;
using Kind = c10::TypeKind;

constexpr std::pair<const char*, at::ScalarType> kDtypes[] = {{"bool", at::kBool},
                                                              {"uint8", at::kByte},
                                                              {"int8", at::kChar},
                                                              {"int16", at::kShort},
                                                              {"int32", at::kInt},
                                                              {"int64", at::kLong},
                                                              {"float16", at::kHalf},
                                                              {"bfloat16", at::kBFloat16},
                                                              {"float32", at::kFloat},
                                                              {"float64", at::kDouble},
                                                              {"complex64", at::kComplexFloat},
                                                              {"complex128", at::kComplexDouble}};

constexpr std::pair<const char*, at::MemoryFormat> kMemoryFormats[] = {
    {"contiguous_format", at::MemoryFormat::Contiguous},
    {"preserve_format", at::MemoryFormat::Preserve},
    {"channels_last", at::MemoryFormat::ChannelsLast},
    {"channels_last_3d", at::MemoryFormat::ChannelsLast3d}};

template <class Table>
int64_t code_of(const Table& table, const std::string& name) {
  for (const auto& [text, code] : table) {
    if (name == text) return static_cast<int64_t>(code);
  }
  TORCH_CHECK_VALUE(false, "has an unknown value '", name, "'");
}

/// A constant without regard to the type that its call expects.
c10::IValue constant_of(const Json& json) {
  if (json.is_null()) return {};
  if (json.is_boolean()) return json.get<bool>();
  if (json.is_string()) return json.get<std::string>();
  if (json.is_number_float()) return json.get<double>();
  if (const auto integer = json_integer(json)) return *integer;
  TORCH_CHECK_VALUE(json.is_object() && json.size() == 1, "has an argument of no known form");
  const std::string& kind = json.begin().key();
  const auto text = json.begin()->get<std::string>();
  if (kind == "dtype") return static_cast<int64_t>(dtype_named(text));
  if (kind == "memory_format") return code_of(kMemoryFormats, text);
  if (kind == "layout" && text == "strided") return static_cast<int64_t>(at::kStrided);
  if (kind == "float" && text == "inf") return std::numeric_limits<double>::infinity();
  if (kind == "float" && text == "-inf") return -std::numeric_limits<double>::infinity();
  if (kind == "float" && text == "nan") return std::numeric_limits<double>::quiet_NaN();
  TORCH_CHECK_VALUE(false, "has an argument of no known form: ", kind);
}

/// Makes a constant one of the type, as Python's arguments are: an integer for a float, a number for a tensor.
c10::IValue converted(c10::IValue value, const c10::Type& type) {
  if (type.kind() == Kind::FloatType && value.isInt()) return static_cast<double>(value.toInt());
  if (type.kind() == Kind::TensorType && value.isScalar()) {
    const at::Tensor number = c10::scalar_to_tensor(value.toScalar());
    number.unsafeGetTensorImpl()->set_wrapped_number(true);
    return number;
  }
  return value;
}

bool fits(const c10::IValue& value, const c10::Type& type) {
  switch (type.kind()) {
    case Kind::TensorType:
      return value.isTensor();
    case Kind::NumberType:
      return value.isScalar();
    case Kind::IntType:
    case Kind::SymIntType:
    case Kind::ScalarTypeType:
    case Kind::LayoutType:
    case Kind::MemoryFormatType:
      return value.isInt();
    case Kind::FloatType:
    case Kind::SymFloatType:
      return value.isDouble();
    case Kind::BoolType:
    case Kind::SymBoolType:
      return value.isBool();
    case Kind::StringType:
      return value.isString();
    case Kind::DeviceObjType:
      return value.isDevice();
    default:
      return false;
  }
}

/// The list that an operator expects of values of the element type.
c10::IValue list_of(std::vector<c10::IValue> values, const c10::Type& element) {
  switch (element.kind()) {
    case Kind::IntType:
    case Kind::SymIntType: {
      std::vector<int64_t> numbers;
      for (const c10::IValue& value : values) numbers.push_back(value.toInt());
      return numbers;
    }
    case Kind::FloatType: {
      std::vector<double> numbers;
      for (const c10::IValue& value : values) numbers.push_back(value.toDouble());
      return numbers;
    }
    case Kind::BoolType: {
      c10::List<bool> flags;
      for (const c10::IValue& value : values) flags.push_back(value.toBool());
      return flags;
    }
    case Kind::NumberType: {
      c10::List<at::Scalar> numbers;
      for (const c10::IValue& value : values) numbers.push_back(value.toScalar());
      return numbers;
    }
    case Kind::TensorType: {
      std::vector<at::Tensor> tensors;
      for (c10::IValue& value : values) tensors.push_back(std::move(value).toTensor());
      return tensors;
    }
    case Kind::OptionalType: {
      c10::List<std::optional<at::Tensor>> tensors;
      for (c10::IValue& value : values) {
        tensors.push_back(value.isNone() ? std::nullopt : std::optional(std::move(value).toTensor()));
      }
      return tensors;
    }
    default:
      TORCH_CHECK_VALUE(false, "has a list of ", element.str(), ", which exported models do not use");
  }
}

}  // namespace

at::ScalarType dtype_named(const std::string& name) { return static_cast<at::ScalarType>(code_of(kDtypes, name)); }

ExportedValue::ExportedValue(const Json& json, const c10::TypePtr& type, int64_t count) : type_(type) {
  if (type && type->kind() == Kind::OptionalType) {
    if (json.is_null()) return;
    *this = ExportedValue(json, type->castRaw<c10::OptionalType>()->getElementType(), count);
    return;
  }
  if (json.is_object() && json.size() == 1 && json.begin().key() == "v") {
    const auto number = json_integer(*json.begin());
    TORCH_CHECK_VALUE(number && *number >= 0 && *number < count, "uses a value that no earlier call has computed");
    number_ = *number;
    return;
  }
  if (json.is_object() && json.size() == 1 && json.begin().key() == "device") {
    is_device_ = true;
    return;
  }
  if (!json.is_array()) {
    constant_ = type ? converted(constant_of(json), *type) : constant_of(json);
    const bool is_right = type ? fits(constant_, *type) : !constant_.isString();
    TORCH_CHECK_VALUE(is_right, "has a constant that is no ", type ? type->str() : "number");
    return;
  }
  TORCH_CHECK_VALUE(type && type->kind() == Kind::ListType, "has a list where ", type ? type->str() : "a number",
                    " is expected");
  is_list_ = true;
  const c10::TypePtr element = type->castRaw<c10::ListType>()->getElementType();
  for (const Json& part : json) parts_.emplace_back(part, element, count);
  std::vector<int64_t> uses;
  append_uses(uses);
  if (!uses.empty()) return;
  constant_ = in_call({}, at::kCPU);  // the same in each call
  is_list_ = false;
  parts_.clear();
}

c10::IValue ExportedValue::in_call(const std::vector<c10::IValue>& values, at::Device device) const {
  if (is_device_) return device;
  if (is_list_) {
    std::vector<c10::IValue> parts;
    parts.reserve(parts_.size());
    for (const ExportedValue& part : parts_) parts.push_back(part.in_call(values, device));
    return list_of(std::move(parts), *type_->castRaw<c10::ListType>()->getElementType());
  }
  if (number_ < 0) return constant_;
  const c10::IValue& value = values[static_cast<size_t>(number_)];
  if (!type_) return value;
  if (fits(value, *type_)) return value;
  c10::IValue other = converted(value, *type_);  // sizes as numbers, numbers as tensors
  TORCH_CHECK_VALUE(fits(other, *type_) || type_->kind() == Kind::ListType, "expects ", type_->str(), ", got ",
                    value.tagKind());
  return other;
}

std::optional<double> ExportedValue::constant_number() const {
  if (!constant()) return std::nullopt;
  if (constant_.isScalar()) return constant_.toScalar().toDouble();
  const bool is_number = constant_.isTensor() && constant_.toTensor().defined() && constant_.toTensor().numel() == 1;
  return is_number ? std::optional(constant_.toTensor().item<double>()) : std::nullopt;
}

void ExportedValue::append_uses(std::vector<int64_t>& uses) const {
  if (number_ >= 0) uses.push_back(number_);
  for (const ExportedValue& part : parts_) part.append_uses(uses);
}

}  // namespace trainkit::detail
