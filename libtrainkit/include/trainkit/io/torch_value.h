#pragma once
/// Writes PyTorch files with nested values: checkpoints of numbers, lists and dicts, not only flat dicts of tensors.

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

/// A Python value: None, bool, int, float, str, a tensor, or a list, tuple or dict of values.
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

  /// Appends to a list. Returns a reference to the added value, valid until the next one is added. Throws c10::Error
  /// for any other kind.
  TorchValue& add(TorchValue value);
  /// Adds an entry to a dict. Entries keep their order of insertion. Returns and throws as add().
  TorchValue& set(std::string key, TorchValue value);

  Kind kind() const { return kind_; }
  /// Value of a kind other than list, tuple and dict; the alternative follows kind().
  const std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor>& plain() const { return plain_; }
  /// Items of a list, a tuple or a dict.
  const std::vector<TorchValue>& items() const { return items_; }
  /// Keys of a dict, one for each of items().
  const std::vector<std::string>& keys() const { return keys_; }

 private:
  TorchValue(Kind kind, std::vector<TorchValue> items) : kind_(kind), items_(std::move(items)) {}
  Kind kind_ = Kind::kNone;
  std::variant<std::monostate, bool, int64_t, double, std::string, at::Tensor> plain_;
  std::vector<TorchValue> items_;
  std::vector<std::string> keys_;
};

/// Writes `value` atomically (write_file_atomically) in the format of torch.save. Python loads it with torch.load(path,
/// weights_only=True). Tensors follow the rules of write_torch_file.
///
/// kInvalidArgument names the keys and positions of a value that cannot be written: see write_torch_file; also nesting
/// over 60 levels.
absl::Status save_torch_value(const Fs& fs, const std::string& path, const TorchValue& value);

}  // namespace trainkit
