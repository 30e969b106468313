#include "train/divided/divided_writers.h"

#include <utility>
#include <vector>

#include "distributed/group/process_group_impl.h"
#include "train/divided/save_together.h"
#include "train/divided/sharded_copies.h"
#include "train/divided/sharded_state.h"

namespace trainkit::detail {
namespace {

/// Joins the parts of the copies of one process, and writes them as a whole state.
class CopiesWriter final : public StoreWriter {
 public:
  CopiesWriter(CheckpointStore* store, std::vector<ShardedCopy> copies)
      : StoreWriter(store), copies_(std::move(copies)) {}

  void prepare(CheckpointContents& contents) override { add_state_of_copies(copies_, contents); }
  bool has_work(bool /*ready*/) const override { return true; }
  absl::Status write(int64_t step, CheckpointContents contents, const absl::Status& ready) override {
    absl::Status joined = join_state_of_copies(copies_, contents);
    if (ready.ok() && !joined.ok()) return joined;
    return StoreWriter::write(step, std::move(contents), ready);
  }

 private:
  std::vector<ShardedCopy> copies_;
};

/// Writes the parts of this rank into the files of all ranks, see Note [Ranks save together].
class TogetherWriter final : public CheckpointWriter {
 public:
  TogetherWriter(const ReplicaStrategy& devices, const Optimizer& optimizer, const TrainStep& step,
                 CheckpointStore* store, std::function<void()> on_alone)
      : devices_(devices), optimizer_(optimizer), step_(step), store_(store), on_alone_(std::move(on_alone)) {}

  void prepare(CheckpointContents& contents) override {
    divided_ = keep_own_parts(contents, step_.averages(), *devices_.module(), optimizer_, *devices_.shards());
  }
  void expect_files(int64_t bytes) override { file_bytes_ = bytes; }
  bool has_work(bool /*ready*/) const override { return true; }
  absl::Status write(int64_t step, CheckpointContents contents, const absl::Status& ready) override {
    const ParameterShards& shards = *devices_.shards();
    const SavingRank rank{
        .rank = shards.layout().rank(),
        .ranks = shards.layout().ranks(),
        .store = store_,
        .exchange = [&](const at::Tensor& message) { return shards.exchange(message); },
        .gather = [&](CheckpointContents& parts, bool all) { return gather_parts(parts, divided_, all, shards); },
        .file_bytes = file_bytes_,
        .on_alone = on_alone_};
    return save_together(rank, step, std::move(contents), divided_, ready);
  }

 private:
  const ReplicaStrategy& devices_;
  const Optimizer& optimizer_;
  const TrainStep& step_;
  CheckpointStore* store_;
  std::function<void()> on_alone_;
  DividedCheckpoint divided_;  // of the state that is being written
  int64_t file_bytes_ = 0;     // of all ranks
};

/// The first rank writes the state. If ranks have files of their own, all write into one checkpoint, see Note [Ranks
/// save together].
class RanksWriter final : public StoreWriter {
 public:
  RanksWriter(CheckpointStore* store, ProcessGroup& group) : StoreWriter(store), store_(store), group_(group) {}

  void expect_files(int64_t bytes) override {
    file_bytes_ = bytes;
    if (bytes > 0 && !side_) side_ = group_.impl().make_side_group();
  }
  bool has_work(bool ready) const override { return file_bytes_ > 0 || StoreWriter::has_work(ready); }
  absl::Status write(int64_t step, CheckpointContents contents, const absl::Status& ready) override {
    if (file_bytes_ == 0) return StoreWriter::write(step, std::move(contents), ready);
    const SavingRank rank{.rank = group_.rank(),
                          .ranks = group_.world_size(),
                          .store = store_,
                          .exchange = [&](const at::Tensor& message) { return exchange_on_host(*side_, message); },
                          .gather = [](CheckpointContents&, bool) { return absl::OkStatus(); },
                          .file_bytes = file_bytes_};
    return save_together(rank, step, std::move(contents), /*divided=*/{}, ready);
  }

 private:
  CheckpointStore* store_;
  ProcessGroup& group_;
  c10::intrusive_ptr<c10d::Backend> side_;  // for the thread that writes
  int64_t file_bytes_ = 0;                  // of all ranks
};

}  // namespace

std::unique_ptr<CheckpointWriter> make_writer(const ReplicaStrategy& devices, const Optimizer& optimizer,
                                              const TrainStep& step, CheckpointStore* store,
                                              const std::function<void()>& on_alone) {
  std::vector<ShardedCopy> copies = sharded_copies(devices, step);
  if (copies.size() > 1) return std::make_unique<CopiesWriter>(store, std::move(copies));
  if (devices.shards() && devices.process_group()) {
    return std::make_unique<TogetherWriter>(devices, optimizer, step, store, on_alone);
  }
  if (devices.process_group()) return std::make_unique<RanksWriter>(store, *devices.process_group());
  return std::make_unique<StoreWriter>(store);
}

}  // namespace trainkit::detail
