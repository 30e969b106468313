#pragma once
/// Batches of rows that a program makes while it trains: a ReplayBuffer or a RolloutBuffer.

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "spec.h"
#include "trainkit/data/batch_source.h"
#include "trainkit/train/session.h"

namespace trainkit::differential {

/// Returns the weight of the model's head, on which the policy of a rollout depends.
using HeadWeight = std::function<at::Tensor()>;

/// The buffer of one rank with what fills it. Each batch is compared with what the buffer's rule says.
class Maker {
 public:
  virtual ~Maker() = default;
  virtual BatchSource& buffer() = 0;
  /// Begins to append from another thread, if the program does; after a checkpoint was restored.
  virtual void start() {}
  /// Appends or collects what the next `batches` batches need, if the program does so between steps.
  virtual void prepare(int64_t batches) = 0;
  /// Objects of the program whose state a run saves.
  virtual std::vector<NamedState> states() { return {}; }
  /// Compares a batch of the buffer with the rule.
  virtual void check(const Batch& batch) = 0;
  /// What differed so far.
  std::vector<std::string> faults;
};

/// The buffers of one rank, or of all ranks that a run on one device stands for: a batch has the rows of all of them.
class MadeSource final : public BatchSource {
 public:
  /// Of rank `rank` of `ranks`, or if `joins` of all of them.
  MadeSource(const Spec& spec, const HeadWeight& head, int64_t rank, int64_t ranks, bool joins = false);
  ~MadeSource() override;

  void start();
  void prepare(int64_t batches);
  std::vector<NamedState> states();
  /// What differed in the batches so far.
  std::vector<std::string> faults() const;

  absl::StatusOr<std::optional<Batch>> next() override;
  const std::vector<FieldSpec>& fields() const override { return first().fields(); }
  std::optional<int64_t> epoch_length() const override { return first().epoch_length(); }
  int64_t epoch() const override { return first().epoch(); }
  int64_t position() const override { return first().position(); }
  void stop(absl::Status reason) override;
  StateDict state_dict() const override { return first().state_dict(); }
  absl::Status load_state_dict(const StateDict& state) override { return first().load_state_dict(state); }
  std::vector<PendingFile> files() override { return first().files(); }
  absl::Status load_files(const std::map<std::string, ReadableFile>& files) override {
    return first().load_files(files);
  }
  std::map<std::string, double> metrics() const override { return first().metrics(); }

 private:
  BatchSource& first() const { return makers_.front()->buffer(); }

  std::vector<std::unique_ptr<Maker>> makers_;
};

/// Whether the batches of a program come from such a source.
bool has_buffer(const Spec& spec);
/// Numbers of the rows of batch `k` that a ReplayBuffer draws, by the rule in its documentation.
std::vector<int64_t> replay_draw(const Spec& spec, int64_t k, int64_t rank = 0, int64_t ranks = 1);
/// Batch `k` of a ReplayBuffer, from the rows of the program's data.
Batch replay_batch(const Spec& spec, int64_t k);
/// For PyTorch: of a ReplayBuffer the numbers of the rows of each batch, (batches, batch size), of a RolloutBuffer the
/// order of each rollout's rows, (rollouts, rows of all passes).
at::Tensor made_order(const Spec& spec);

}  // namespace trainkit::differential
