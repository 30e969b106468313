#include "data/loader/batch_reader.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "core/base/user_exception.h"
#include "core/tensors/recorded.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr uint64_t kReplacementStream = 0x7265706c61636501;  // separates replacements from other repetitions

std::string name_of(const Dataset& dataset, int64_t index) noexcept {
  try {
    return dataset.describe(index);
  } catch (...) {
    return {};
  }
}

std::string position_name(const BatchPlan& plan) {
  return "batch at position " + std::to_string(plan.begin) + " of epoch " + std::to_string(plan.epoch);
}

}  // namespace

absl::Status row_error(const BadSample& row, const absl::Status& cause) {
  Error error = error_of(cause).value_or(Error{.exit_code = ExitCode::kData, .id = "data.row"});
  if (error.problem.empty()) error.problem = std::string(cause.message());
  if (error.where.empty()) error.where = row.name;
  const std::string field = "row " + std::to_string(row.index);
  error.field = error.field.empty() ? field : field + ": " + error.field;
  return to_status(error, absl::StatusCode::kDataLoss);
}

BatchReader::BatchReader(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const Sampler> sampler,
                         OnError on_error, int64_t max_bad_samples)
    : dataset_(std::move(dataset)),
      sampler_(std::move(sampler)),
      rows_(static_cast<uint64_t>(dataset_->size())),
      on_error_(on_error),
      max_bad_samples_(max_bad_samples) {}

std::string BatchReader::row_name(int64_t index) const noexcept {
  const std::string name = name_of(*dataset_, index);
  return "row " + std::to_string(index) + (name.empty() ? "" : " (" + name + ")");
}

// Returns an error if the sampler wrote an index that the dataset does not have. The first loop has no branch and is
// vectorised, so that it costs far less than the reads.
absl::Status BatchReader::check_indices(std::span<const int64_t> indices, const BatchPlan& plan) const {
  bool outside = false;
  for (const int64_t index : indices) outside |= static_cast<uint64_t>(index) >= rows_;
  if (!outside) return absl::OkStatus();
  const auto bad =
      std::find_if(indices.begin(), indices.end(), [&](int64_t i) { return static_cast<uint64_t>(i) >= rows_; });
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "data.index",
                    .where = position_name(plan),
                    .problem = "the sampler returned an index that is out of range for the dataset",
                    .got = std::to_string(*bad),
                    .expected = "0 <= index < " + std::to_string(rows_)},
                   absl::StatusCode::kOutOfRange);
}

void BatchReader::read(const BatchPlan& plan, Slot& slot, Scratch& scratch, TeamRead* team,
                       int64_t rows_per_part) const noexcept {
  const detail::ProfileStage stage("read a batch");
  try {
    auto& indices = slot.row_indices();
    TORCH_CHECK_VALUE(plan.rows <= slot.view().rows(), "size() has changed");
    indices.resize(plan.rows);
    sampler_->fill(plan.epoch, plan.begin, indices);
    slot.status = check_indices(indices, plan);
    if (!slot.status.ok()) return;
    const uint64_t seed = sampler_->seed();
    scratch.keys.resize(plan.rows);
    for (int64_t i = 0; i < plan.rows; ++i) {
      scratch.keys[i] = {.index = indices[i],
                         .epoch = plan.epoch,
                         .seed = seed,
                         .origin = indices[i],
                         .draw = sampler_->draw(plan.begin + i)};
    }
    slot.padding_rows = std::max<int64_t>(0, plan.begin + plan.rows - (sampler_->size() - sampler_->padding()));
    try {
      if (team) {
        team->lead(*dataset_, scratch.keys, slot.view(), rows_per_part);
      } else {
        if (!scratch.keys.empty()) note_reading(scratch.keys.front());
        dataset_->get_batch(scratch.keys, slot.view());
      }
      slot.rows_read = plan.rows;
    } catch (...) {
      read_row_by_row(plan, slot, scratch);
    }
  } catch (...) {
    const std::string where = position_name(plan);
    slot.status = annotate(status_from_user_exception(where, "the sampler"), where);
  }
}

// Reads the rows one by one to find the bad ones, and handles these by `on_error_`. The good rows are the same, bit for
// bit, as those of get_batch.
void BatchReader::read_row_by_row(const BatchPlan& plan, Slot& slot, Scratch& scratch) const {
  auto& indices = slot.row_indices();
  int64_t at = 0, padding = 0;
  for (int64_t i = 0; i < plan.rows; ++i) {
    const bool is_padding = i >= plan.rows - slot.padding_rows;
    indices[at] = scratch.keys[i].index;
    bool good = read_row(scratch.keys[i], slot, at);
    if (!good && on_error_ == OnError::kReplace) good = read_replacement(plan, plan.begin + i, slot, at);
    if (!slot.status.ok()) return;
    at += good;
    padding += good && is_padding;
    if (max_bad_samples_ >= 0 && static_cast<int64_t>(slot.bad_samples.size()) > max_bad_samples_) break;
  }
  indices.resize(at);
  slot.rows_read = at;
  slot.padding_rows = padding;
}

// Reads one row to position `at`. If that fails, records the row as bad and, with kFail, fails the batch.
bool BatchReader::read_row(const RowKey& key, Slot& slot, int64_t at) const {
  note_reading(key);
  try {
    dataset_->get(key, slot.view(), at);
    return true;
  } catch (...) {
    const absl::Status cause = status_from_current_exception();
    const auto listed = [&](const BadSample& bad) { return bad.index == key.index; };
    if (std::any_of(slot.bad_samples.begin(), slot.bad_samples.end(), listed)) return false;
    slot.bad_samples.push_back({.index = key.index,
                                .epoch = key.epoch,
                                .name = name_of(*dataset_, key.index),
                                .cause = std::string(cause.message())});
    if (on_error_ == OnError::kFail) slot.status = row_error(slot.bad_samples.back(), cause);
    return false;
  }
}

// Reads the first readable row after `position` in the order of the epoch, continuing at its start after its end. The
// result is a function of the position only, so it is the same for any batch size and number of workers.
bool BatchReader::read_replacement(const BatchPlan& plan, int64_t position, Slot& slot, int64_t at) const {
  const int64_t size = sampler_->size(), tries = std::min(size - 1, kMaxReplacements);
  for (int64_t i = 1; i <= tries; ++i) {
    const int64_t other = (position + i) % size;
    RowKey key{.epoch = plan.epoch, .seed = sampler_->seed(), .draw = sampler_->draw(other)};
    sampler_->fill(plan.epoch, other, {&key.index, 1});
    slot.status = check_indices({&key.index, 1}, {.epoch = plan.epoch, .begin = other, .rows = 1});
    if (!slot.status.ok()) return false;
    key.origin = slot.row_indices()[at] = key.index;
    // The row occurs at its own position too, with other random numbers.
    key.draw = static_cast<int64_t>(hash_key(kReplacementStream, key.draw, position));
    if (read_row(key, slot, at)) return true;
    if (max_bad_samples_ >= 0 && static_cast<int64_t>(slot.bad_samples.size()) > max_bad_samples_) return false;
  }
  slot.status =
      to_status({.exit_code = ExitCode::kData,
                 .id = "data.rows",
                 .problem = "none of " + std::to_string(tries + 1) + " rows could be read, starting at position " +
                            std::to_string(position) + " of the epoch",
                 .hint = "last error: " + slot.bad_samples.back().cause},
                absl::StatusCode::kDataLoss);
  return false;
}

}  // namespace trainkit::detail
