#pragma once
/// Batches that another part of the program makes: a simulator, a camera, a server.

#include <absl/status/status.h>
#include <absl/status/statusor.h>

#include <chrono>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trainkit/data/batch_source.h"

namespace trainkit {

struct QueueSourceOptions {
  /// Batches that wait at most. At least 1.
  int64_t capacity = 4;
  /// Longest wait of next() for a batch; zero means unlimited.
  std::chrono::milliseconds timeout{0};
};

/// A bounded queue of batches, in the order in which they were pushed. It has no epochs: train with max_steps, or call
/// close() after the last batch.
///
///   auto queue = QueueSource::create({{"x", at::kFloat, {4}}, {"y", at::kLong, {}}}).value();
///   std::thread host([&] { while (simulate()) queue->push({x, y}).IgnoreError(); queue->close(); });
///   auto result = trainer.fit(*queue, loss).value();
///
/// A checkpoint contains the batches that were pushed and not yet trained, of every rank, so a resumed run trains them
/// first. Every method may be called from any thread, next() and load_state_dict() from one at a time.
class QueueSource final : public BatchSource {
 public:
  /// Returns an error of exit code 2 if options are out of range, or there are no fields.
  static absl::StatusOr<std::unique_ptr<QueueSource>> create(std::vector<FieldSpec> fields,
                                                             const QueueSourceOptions& options = {});
  ~QueueSource() override;

  /// Appends a batch: one tensor per field, in the order of fields(), each (N, shape...) of the field's dtype, on one
  /// device. push() waits while the queue is full; try_push() returns false then. Keeps the tensors: do not change them
  /// afterwards. Errors: exit code 4 names a field that does not fit; kFailedPrecondition after close(); the reason of
  /// stop().
  absl::Status push(std::vector<at::Tensor> tensors);
  absl::StatusOr<bool> try_push(std::vector<at::Tensor> tensors);
  /// Ends the source: next() returns the batches that wait, then nullopt.
  void close();
  /// Number of batches that wait.
  int64_t size() const;

  /// Waits for a batch. Error of exit code 10 (kDeadlineExceeded): none came within `timeout`.
  absl::StatusOr<std::optional<Batch>> next() override;
  const std::vector<FieldSpec>& fields() const override;
  void stop(absl::Status reason) override;

  /// State: "taken" (batches that next() has returned), "waiting" (number of batches) and their tensors,
  /// "batch.<i>.<field>". load_state_dict() puts these before the batches that were pushed since; it ignores the
  /// capacity. It rejects tensors that are not of the fields (exit code 5).
  StateDict state_dict() const override;
  absl::Status load_state_dict(const StateDict& state) override;

 private:
  class Impl;
  explicit QueueSource(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace trainkit
