#include "train/run/training_source.h"

#include <ATen/ops/tensor.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <chrono>
#include <utility>

#include "core/tensors/recorded.h"
#include "train/agreement/steps_in_flight.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

std::string describe_fields(const std::vector<FieldSpec>& fields) {
  std::string text;
  for (const FieldSpec& field : fields) {
    text += fmt::format("{}{} ({}) {}", text.empty() ? "" : ", ", field.name, fmt::join(field.shape, ", "),
                        c10::toString(field.dtype));
  }
  return text;
}

}  // namespace

TrainingSource::TrainingSource(BatchSource* source, ProcessGroup* group)
    : source_(source), loader_(dynamic_cast<Prefetcher*>(source)), group_(group) {}

absl::StatusOr<std::optional<Batch>> TrainingSource::next() {
  const detail::ProfileStage stage("wait for a batch");
  if (loader_) return loader_->next();
  const Clock::time_point start = Clock::now();
  absl::StatusOr<std::optional<Batch>> batch = source_->next();
  wait_nanoseconds_ += std::chrono::nanoseconds(Clock::now() - start).count();
  if (!has_epochs()) {
    if (group_) batch = agree(std::move(batch));
    has_ended_ = batch.ok() && !*batch;
  }
  if (batch.ok() && *batch) note(**batch);
  return batch;
}

void TrainingSource::note(const Batch& batch) {
  last_rows_ = batch.size();
  ++batches_;
  rows_ += batch.size();
}

/// Compares the ranks: if one of them has no batch, none has; if one has an error, all have.
absl::StatusOr<std::optional<Batch>> TrainingSource::agree(absl::StatusOr<std::optional<Batch>> batch) {
  const double rank = static_cast<double>(group_->rank()) + 1;
  const at::Tensor votes = at::tensor({batch.ok() ? 0.0 : rank, batch.ok() && !*batch ? rank : 0.0}, at::kDouble);
  const absl::Status agreed = group_->all_reduce_max(votes, "a batch on every rank");
  if (!batch.ok()) return batch;
  TRAINKIT_RETURN_IF_ERROR(agreed);
  const auto failed = static_cast<int64_t>(votes[0].item<double>()) - 1;
  if (failed >= 0) {
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "dist.peer",
                      .problem = fmt::format("rank {} has no batch; see its error", failed)});
  }
  if (votes[1].item<double>() > 0) return std::nullopt;
  return batch;
}

double TrainingSource::epochs() const {
  if (!has_epochs()) return 0;
  return static_cast<double>(source_->epoch()) +
         static_cast<double>(source_->position()) / static_cast<double>(batches_per_epoch());
}

void TrainingSource::use_devices(const DeviceReplicator& replicas) { trainkit::use_devices(replicas, loader_); }

absl::Status check_has_batch(const Prefetcher& loader) {
  if (loader.batches_per_epoch() > 0) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.empty",
                    .problem = "no batch to train on",
                    .got = std::to_string(loader.dataset().size()) + " rows",
                    .expected = "at least one batch of " + std::to_string(loader.options().batch_size),
                    .hint = "use a smaller batch size, or keep the last batch (drop_last = false)"});
}

absl::Status TrainingSource::check_has_batch() const {
  if (!has_epochs() || batches_per_epoch() > 0) return absl::OkStatus();
  if (loader_) return trainkit::check_has_batch(*loader_);
  return to_status(
      {.exit_code = ExitCode::kData, .id = "data.empty", .problem = "an epoch of the source has no batch"});
}

void TrainingSource::append_fields(std::vector<DigestField>& fields) const {
  fields.push_back({"batch_size", std::to_string(fixed_batch_size())});
  fields.push_back({"batches per epoch", std::to_string(batches_per_epoch())});
  fields.push_back({"seed of the order", std::to_string(seed())});
  if (loader_) {
    append_data_fields("training", loader_->dataset(), fields);
  } else if (source_) {
    fields.push_back({"training fields", describe_fields(source_->fields())});
  }
}

PrefetcherStats TrainingSource::stats() const {
  if (loader_) return loader_->stats();
  PrefetcherStats stats;
  stats.batches = batches_;
  stats.rows = rows_;
  stats.wait_seconds = 1e-9 * static_cast<double>(wait_nanoseconds_);
  stats.consumer_seconds = std::chrono::duration<double>(Clock::now() - start_).count() - stats.wait_seconds;
  return stats;
}

void append_data_fields(const std::string& name, const Dataset& dataset, std::vector<DigestField>& fields) {
  fields.push_back({name + " rows", std::to_string(dataset.size())});
  fields.push_back({name + " fields", describe_fields(dataset.fields())});
}

void use_devices(const DeviceReplicator& replicas, Prefetcher* loader) {
  if (!loader || !replicas.device().is_cuda() || !loader->options().device.is_cpu()) return;
  loader->use_devices(detail::devices_of(replicas));
}

}  // namespace trainkit
