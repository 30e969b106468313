#pragma once
// Arguments of the calls of an exported graph: constants, and values that earlier calls have computed.

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include <cstdint>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

namespace trainkit::detail {

/// The dtype with a name of PyTorch, such as "float32". Throws c10::ValueError for another name.
at::ScalarType dtype_named(const std::string& name);

/// An argument of a call.
class ExportedValue {
 public:
  ExportedValue() = default;
  explicit ExportedValue(c10::IValue constant) : constant_(std::move(constant)) {}
  /// Reads an argument of type `type`; nullptr: any number, tensor or None. Throws c10::ValueError if it cannot be of
  /// this type, or uses one of the values from `count` on.
  ExportedValue(const nlohmann::json& json, const c10::TypePtr& type, int64_t count);

  /// The value in a call; `values` are those computed so far. Throws c10::ValueError if one is of another type.
  c10::IValue in_call(const std::vector<c10::IValue>& values, at::Device device) const;
  /// The value if it is the same in each call, else nullptr.
  const c10::IValue* constant() const { return number_ < 0 && !is_device_ && !is_list_ ? &constant_ : nullptr; }
  /// The number of the value that it is, or -1.
  int64_t number() const { return number_; }
  /// The number that it is in each call.
  std::optional<double> constant_number() const;
  /// Appends the numbers of the values that it uses.
  void append_uses(std::vector<int64_t>& uses) const;

 private:
  c10::IValue constant_;
  int64_t number_ = -1;               // of a value, or
  bool is_device_ = false;            // the model's device, or
  bool is_list_ = false;              // a list with values of calls
  std::vector<ExportedValue> parts_;  // of the list
  c10::TypePtr type_;                 // of the value, or of the list
};

}  // namespace trainkit::detail
