#pragma once
// The rows of a rollout while it is recorded.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "rl/episode_counter.h"
#include "trainkit/core/fs.h"
#include "trainkit/rl/rollout_buffer.h"

namespace trainkit::detail {

/// Memory of one rollout: (horizon, simulators, shape...) per field, on the device; what the steps have led to, on the
/// CPU; and the last observations of truncated episodes.
class RolloutRows {
 public:
  /// @param fields of the program
  RolloutRows(std::vector<FieldSpec> fields, RolloutOptions options);

  /// The program's fields, then "value", "advantage" and "return".
  const std::vector<FieldSpec>& fields() const { return fields_; }
  const std::vector<at::Tensor>& tensors() const { return tensors_; }
  const at::Tensor& tensor(std::string_view field) const { return tensors_[index_of(field)]; }
  EpisodeCounter& episodes() { return episodes_; }
  const EpisodeCounter& episodes() const { return episodes_; }
  bool is_full() const { return step_ == options_.horizon && !awaits_outcome_; }

  /// See RolloutBuffer.
  void add(const std::vector<at::Tensor>& rows, const at::Tensor& value);
  void add_outcome(const StepOutcome& outcome);
  /// Computes advantages and returns of a full rollout; the next add() begins a new one.
  void finish(const std::vector<at::Tensor>& next_observations, const RolloutBuffer::ValueFunction& value);

  /// The file of all rows, which stay as they are until it is written: a rollout recorded meanwhile gets new memory.
  PendingFile file() const;
  absl::Status load(const ReadableFile& file);

 private:
  void begin();
  void copy_step(const at::Tensor& from, size_t field, const char* what);
  void set_next_values(const std::vector<at::Tensor>& next_observations, const RolloutBuffer::ValueFunction& value);
  size_t index_of(std::string_view field) const;

  RolloutOptions options_;
  std::vector<FieldSpec> fields_;
  std::vector<at::Tensor> tensors_;
  std::vector<size_t> observations_;                                  // fields of the value function
  std::shared_ptr<const std::vector<FieldSpec>> observation_fields_;  // the same
  at::Tensor reward_, terminated_, truncated_;                        // (horizon, simulators) on the CPU
  at::Tensor next_value_;                                             // the same on the device
  std::vector<std::vector<at::Tensor>> finals_;                       // by observation field and step
  std::vector<int64_t> final_rows_;                                   // their step * simulators + simulator
  EpisodeCounter episodes_;
  int64_t step_ = 0;  // that is recorded next
  bool awaits_outcome_ = false;
};

}  // namespace trainkit::detail
