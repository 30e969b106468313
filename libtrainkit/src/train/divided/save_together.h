#pragma once
// Several ranks write one checkpoint. Internal to Trainer.

#include <ATen/core/Tensor.h>
#include <absl/status/status.h>

#include <cstdint>
#include <functional>

#include "train/divided/divided_file.h"
#include "trainkit/core/fs.h"
#include "trainkit/train/checkpoint.h"

namespace trainkit::detail {

/// The divided tensors of both files.
struct DividedCheckpoint {
  DividedTensors model, optimizer;
};

/// One rank of a save, and its messages to the others. Calls block; they throw or return an error if a rank is lost.
struct SavingRank {
  int64_t rank = 0;
  int64_t ranks = 1;
  /// The store of the checkpoints, on rank 0.
  CheckpointStore* store = nullptr;
  const Fs* fs = &Fs::posix();
  /// Sends `own`, of equal size on all ranks, to all ranks, and returns theirs as rows.
  std::function<at::Tensor(const at::Tensor& own)> exchange;
  /// Gives rank 0 the whole tensors in place of its parts: of all divided tensors, or only of those without cuts.
  std::function<absl::Status(CheckpointContents& contents, bool all)> gather;
  /// Bytes that a rank writes between two messages, about: a slow disk must not be taken for a lost rank.
  int64_t round_bytes = int64_t{1} << 30;
  /// Bytes of CheckpointContents::files of all ranks.
  int64_t file_bytes = 0;
  /// Called on rank 0 before it gathers everything and writes alone; may be null.
  std::function<void()> on_alone = nullptr;
};

/// Writes the checkpoint of `step`, as CheckpointStore::save does with whole contents. Every rank calls it, in any
/// thread, with its own parts of the divided tensors and its own files; rank 0 has all other contents too. `ready`: an
/// error of this rank that makes the save fail. Errors: of this rank as those of CheckpointStore::save; exit code 8 if
/// another rank has failed or is lost, or if there are files and no common file system. Rank 0 may still fail after the
/// others have returned OK. See Note [Ranks save together].
absl::Status save_together(const SavingRank& rank, int64_t step, CheckpointContents contents,
                           const DividedCheckpoint& divided, const absl::Status& ready);

}  // namespace trainkit::detail
