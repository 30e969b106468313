#pragma once
/// Rows whose contents tell whether they are whole.

#include <torch/torch.h>

#include <memory>
#include <string>
#include <vector>

#include "test_util.h"
#include "trainkit/core/random.h"
#include "trainkit/rl/replay_buffer.h"

namespace trainkit::test {

/// A number, five that follow from it, and a float that does.
inline std::vector<FieldSpec> replay_fields() {
  return {{"key", at::kLong, {}}, {"numbers", at::kLong, {5}}, {"y", at::kFloat, {}}};
}

inline int64_t number_of(int64_t key, int64_t i) { return static_cast<int64_t>(hash_key(key, i)); }

inline void write_row(const ReplayRows& rows, int64_t row, int64_t key) {
  *rows.row<int64_t>(0, row) = key;
  for (int64_t i = 0; i < 5; ++i) rows.row<int64_t>(1, row)[i] = number_of(key, i);
  *rows.row<float>(2, row) = static_cast<float>(key);
}

/// Appends rows with the keys [begin, end), one at a time.
inline absl::Status append_keys(ReplayBuffer& buffer, int64_t begin, int64_t end) {
  for (int64_t key = begin; key < end; ++key) {
    auto rows = buffer.reserve(1);
    if (!rows.ok()) return rows.status();
    write_row(*rows, 0, key);
    rows->commit();
  }
  return absl::OkStatus();
}

inline std::vector<int64_t> keys_of(const Batch& batch) {
  const at::Tensor keys = batch["key"].contiguous();
  return {keys.const_data_ptr<int64_t>(), keys.const_data_ptr<int64_t>() + keys.numel()};
}

/// Number of rows of a batch whose fields do not belong together.
inline int64_t torn_rows(const Batch& batch) {
  int64_t torn = 0;
  const at::Tensor numbers = batch["numbers"], y = batch["y"];
  const std::vector<int64_t> keys = keys_of(batch);
  for (size_t row = 0; row < keys.size(); ++row) {
    const auto* own = numbers.const_data_ptr<int64_t>() + row * 5;
    bool is_whole = y.const_data_ptr<float>()[row] == static_cast<float>(keys[row]);
    for (int64_t i = 0; i < 5; ++i) is_whole = is_whole && own[i] == number_of(keys[row], i);
    torn += is_whole ? 0 : 1;
  }
  return torn;
}

}  // namespace trainkit::test
