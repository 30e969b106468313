#pragma once
/// Declares limits and helpers shared by both source files of the unpickler.

#include <fmt/format.h>

#include "io/torch/unpickler.h"

namespace trainkit::detail {

// Limits against hostile pickles, in which one byte creates a value, a list or a memo entry. Together below 200 MiB,
// and with the values that tensors add below 400 MiB.
inline constexpr uint64_t kMaxValues = 2'000'000;
/// Values that each tensor adds to kMaxValues. torch.save writes 20 for a tensor, its storage, sizes and strides.
inline constexpr uint64_t kValuesPerTensor = 32;
inline constexpr uint64_t kMaxLists = 1'000'000;
inline constexpr uint64_t kMaxMemo = 4'000'000;
inline constexpr uint64_t kMaxTensors = 1 << 18;
inline constexpr uint64_t kMaxDims = 4'000'000;
inline constexpr uint64_t kMaxRank = 64;

inline constexpr char kSaveAgain[] = "in Python, save the weights alone: torch.save(model.state_dict(), path)";

inline uint64_t max_values(size_t tensors) { return kMaxValues + kValuesPerTensor * tensors; }
inline std::string describe_max_values() {
  return fmt::format("at most {}, and {} per tensor", kMaxValues, kValuesPerTensor);
}

inline PickleValue integer_value(PickleValue::Kind kind, int64_t integer) {
  PickleValue value;
  value.kind = kind;
  value.integer = integer;
  return value;
}

inline PickleValue reference(PickleValue::Kind kind, uint64_t offset, uint64_t size = 0) {
  PickleValue value;
  value.kind = kind;
  value.size = static_cast<uint32_t>(size);
  value.offset = offset;
  return value;
}

}  // namespace trainkit::detail
