#pragma once
/// PyTorch files of more than a flat dict of tensors: checkpoints with numbers, lists and dicts in dicts.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "trainkit/core/fs.h"

namespace trainkit {

/// A value as Python has it: None, a truth value, a number, text, a tensor, or a list, tuple or dict of values.
///
///   TorchValue checkpoint = TorchValue::dict();
///   checkpoint.set("epoch", 3);
///   checkpoint.set("model", TorchValue::dict()).set("fc.weight", weight);
///   save_torch_value(Fs::posix(), "checkpoint.pt", checkpoint);
class TorchValue {
 public:
  enum class Kind { kNone, kBool, kInt, kFloat, kText, kTensor, kList, kTuple, kDict };

  TorchValue() = default;
  TorchValue(bool value) : kind_(Kind::kBool), plain_(value) {}
  TorchValue(int value) : TorchValue(int64_t{value}) {}
  TorchValue(int64_t value) : kind_(Kind::kInt), plain_(value) {}
  TorchValue(double value) : kind_(Kind::kFloat), plain_(value) {}
  TorchValue(std::string value) : kind_(Kind::kText), plain_(std::move(value)) {}
  TorchValue(const char* value) : TorchValue(std::string(value)) {}
  TorchValue(at::Tensor value) : kind_(Kind::kTensor), plain_(std::move(value)) {}
  static TorchValue list(std::vector<TorchValue> items = {}) { return {Kind::kList, std::move(items)}; }
  static TorchValue tuple(std::vector<TorchValue> items) { return {Kind::kTuple, std::move(items)}; }
  static TorchValue dict() { return {Kind::kDict, {}}; }

  /// Adds to a list. Returns the value where it now is, valid until the next is added. c10::Error for any other kind.
  TorchValue& add(TorchValue value);
  /// Adds to a dict, in the order given. As add().
  TorchValue& set(std::string key, TorchValue value);

  Kind kind() const { return kind_; }
  /// Of the kind that kind() says.
  const std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor>& plain() const { return plain_; }
  /// Of a list, a tuple or a dict.
  const std::vector<TorchValue>& items() const { return items_; }
  /// Of a dict, as many as items().
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  TorchValue(Kind kind, std::vector<TorchValue> items) : kind_(kind), items_(std::move(items)) {}
  Kind kind_ = Kind::kNone;
  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor> plain_;
  std::vector<TorchValue> items_;
  std::vector<std::string> keys_;
};

/// Writes `value` atomically (write_file_atomically) as torch.save does; Python reads it by torch.load(path,
/// weights_only=True). Of tensors, the rules of write_torch_file hold. kInvalidArgument names by its keys and positions
/// what cannot be written: those of write_torch_file, and nesting over 60 levels.
absl::Status save_torch_value(const Fs& fs, const std::string& path, const TorchValue& value);

}  // namespace trainkit
