#include "train/checkpoint/background_saves.h"

#include <ATen/ops/full.h>

#include <chrono>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/attempt.h"
#include "core/tensors/recorded.h"
#include "train/checkpoint/checkpoint_state.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

std::future<absl::Status> ready_future(absl::Status status) {
  std::promise<absl::Status> promise;
  promise.set_value(std::move(status));
  return promise.get_future();
}

/// Does what snapshot() does, using the memory of `buffer`; the copy keeps that memory alive. Adds the copies of the
/// optimizer's state on the CPU to `pending` and leaves them to the caller, unless it is null.
CheckpointContents snapshot_into(const CheckpointContents& contents, detail::HostBuffer& buffer,
                                 detail::LaterCopies* pending) {
  CheckpointContents copy = contents;
  std::vector<at::Tensor*> places, optimizer_places;
  for (auto& [name, tensor] : copy.model) places.push_back(&tensor);
  for (auto& [name, value] : copy.state) {
    if (auto* tensor = std::get_if<at::Tensor>(&value)) places.push_back(tensor);
  }
  for (auto& [name, tensor] : copy.optimizer) {
    (name.starts_with(detail::kLivePrefix) ? places : optimizer_places).push_back(&tensor);
  }
  if (pending) pending->first = places.size();
  places.insert(places.end(), optimizer_places.begin(), optimizer_places.end());
  std::vector<at::Tensor> tensors;
  tensors.reserve(places.size());
  for (const at::Tensor* place : places) tensors.push_back(*place);
  std::vector<at::Tensor> on_host = detail::copy_to_host(tensors, buffer, /*copies_cpu=*/true, pending);
  for (size_t i = 0; i < places.size(); ++i) *places[i] = std::move(on_host[i]);
  return copy;
}

double seconds_since(BackgroundSaves::TimePoint start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

CheckpointContents snapshot(const CheckpointContents& contents) {
  detail::HostBuffer buffer;
  return snapshot_into(contents, buffer, /*pending=*/nullptr);
}

// Note [Background saves]
// ~~~~~~~~~~~~~~~~~~~~~~~
// A save blocks training only while the model is copied to host memory. Four things make that correct:
// - The copy shares no storage with live tensors (snapshot_into), so the next step may change them at once.
// - On the CPU the background thread copies the optimizer's state, two thirds of the bytes with Adam, while the next
//   step computes gradients. Only the optimizer's step changes it, and Trainer calls wait_for_copy() before that. The
//   weights are copied at once, because the user's code may change them at any time.
// - At most one save runs at a time: the caller calls finish() before begin(). The background thread is the only user
//   of the writer meanwhile, and buffer_ is not written again before the file is on the disk.
// - The destructor of the std::async future waits for the thread, so `this` outlives the lambda. The copy is moved into
//   a local of the lambda and freed there, not when the future is destroyed.
// With sharding every rank copies only its parts, and the background threads of all ranks write them, see Note [Ranks
// save together] in save_together.cpp.
// finish() all-reduces the number of failures, so that every rank ends or continues together.

bool BackgroundSaves::keeps_buffer(std::optional<TimePoint> before, TimePoint now) {
  return before && now - *before <= std::chrono::minutes(1);
}

void BackgroundSaves::release_unused_buffer() {
  if (!keeps_buffer(begun_, std::chrono::steady_clock::now())) buffer_.release();
}

void BackgroundSaves::begin(int64_t step, CheckpointContents contents, const absl::Status& logged,
                            CheckpointWriter& writer) {
  step_ = step;
  writer.prepare(contents);
  written_ = !writer.has_work(logged.ok())
                 ? ready_future(logged)
                 : write_in_background(contents, [step, logged, &writer](CheckpointContents copy) {
                     return writer.write(step, std::move(copy), logged);
                   });
}

std::future<absl::Status> BackgroundSaves::write_in_background(const CheckpointContents& contents, const Write& write) {
  begun_ = std::chrono::steady_clock::now();
  std::optional<CheckpointContents> copy;
  detail::LaterCopies pending;
  try {
    copy = snapshot_into(contents, buffer_, &pending);
  } catch (const std::exception&) {
    if (!absl::IsResourceExhausted(status_from_current_exception())) throw;
    return ready_future(write(contents));  // no memory for a copy: training waits for the save
  }
  is_writing_ = true;
  is_copying_ = !pending.copies.empty();
  auto run = [this, write, copy = *std::move(copy), pending, live = contents.optimizer]() mutable {
    absl::Status status = detail::attempt([&] {
      if (pending.copies.empty()) return absl::OkStatus();
      const detail::ProfileStage stage("copy the optimizer's state");
      for (const detail::ByteCopy& one : pending.copies) detail::streaming_copy(one.target, one.source, one.bytes);
      return absl::OkStatus();
    });
    is_copying_ = false;  // also after a failure: training waits for it
    is_copying_.notify_all();
    live.clear();
    if (status.ok()) {
      status = detail::attempt([&] {
        const detail::ProfileStage stage("write a checkpoint");
        return write(std::move(copy));  // frees the copy here, not with the future
      });
    }
    is_writing_ = false;
    written_seconds_ = written_seconds_ + seconds_since(*begun_);
    return status;
  };
  return std::async(std::launch::async, std::move(run));
}

double BackgroundSaves::background_seconds() const {
  const double ended = written_seconds_;
  return is_writing_ ? ended + seconds_since(*begun_) : ended;
}

bool BackgroundSaves::has_ended() const {
  return under_way() && written_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

absl::Status BackgroundSaves::finish() {
  absl::Status saved = written_.get();
  if (!group_) return saved;
  const at::Tensor failures = at::full({1}, saved.ok() ? 0.0 : 1.0, at::kDouble);
  TRAINKIT_RETURN_IF_ERROR(group_->all_reduce(failures, "the checkpoint"));
  if (!saved.ok() || failures.item<double>() == 0) return saved;
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.peer",
       .problem = "another rank could not save the checkpoint of step " + std::to_string(step_) + "; see its error"});
}

}  // namespace trainkit
