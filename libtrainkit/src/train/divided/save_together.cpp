#include "train/divided/save_together.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <future>
#include <optional>
#include <sstream>
#include <string_view>
#include <utility>
#include <vector>

#include "core/base/attempt.h"
#include "train/checkpoint/checkpoint_draft.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

// Note [Ranks save together]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~
// Ranks that divide the training state write their parts directly into the files of one checkpoint. The bytes are those
// that CheckpointStore::save writes with the whole state, which no rank holds.
// 1. Rank 0 creates the folder under a temporary name, and the files with their headers and full size.
// 2. Every rank opens the files. The folder's name is random, so a rank that finds it sees the same file system. If a
//    rank does not, as on several machines without a shared file system, rank 0 removes the folder, gathers all parts
//    and writes alone.
// 3. Parts that are not ranges of the file (channels_last) are gathered to rank 0.
// 4. Every rank writes its parts and flushes them, about SavingRank::round_bytes between two messages, so that a slow
//    disk is not taken for a lost rank and an error of one rank stops all soon.
//    Then it writes its own files (CheckpointContents::files) in another thread, and sends a message every few seconds.
// 5. Rank 0 reads the files of tensors back for their digests, and compares each rank's bytes with the digest that it
// reported:
//    this finds a part that has not arrived. Of the ranks' own files it compares the sizes. Then it puts the checkpoint
//    in place, see Note [Checkpoint commit].
// After steps 1, 2 and 4 all ranks exchange messages that contain their errors, so all take the same decision. Nobody
// writes into a folder after it has received its final name: rank 0 commits only after all ranks have reported that
// they have closed their files. If a rank is lost, the exchange fails on the others, and rank 0 removes the folder.

constexpr int64_t kMessageBytes = 8192;
constexpr std::chrono::seconds kWriting(5);  // between two messages of a rank that writes its own files

/// Replaces divided tensors by meta tensors of their whole shape.
NamedTensors whole_shapes(const NamedTensors& tensors, const DividedTensors& divided) {
  NamedTensors whole = tensors;
  for (auto& [name, tensor] : whole) {
    const auto found = divided.find(name);
    if (found != divided.end()) tensor = at::empty(found->second.shape, tensor.options().device(at::kMeta));
  }
  return whole;
}

class SaveTogether {
 public:
  SaveTogether(const SavingRank& rank, int64_t step, CheckpointContents contents, const DividedCheckpoint& divided)
      : rank_(rank), step_(step), contents_(std::move(contents)), divided_(divided) {}

  absl::Status operator()(const absl::Status& ready) {
    const absl::Status saved = run(ready);
    if (own_files_.valid()) own_files_.wait();  // of a save that another rank has ended
    draft_.reset();                             // after an error removes the folder
    return explained(saved);
  }

 private:
  bool is_first() const { return rank_.rank == 0; }
  absl::Status run(const absl::Status& ready) {
    TRAINKIT_ASSIGN_OR_RETURN(path_, create(ready));
    TRAINKIT_ASSIGN_OR_RETURN(const bool is_shared, open());
    if (!is_shared) return save_alone();
    TRAINKIT_RETURN_IF_ERROR(write());
    return is_first() ? attempt([&] { return commit(); }) : absl::OkStatus();
  }
  absl::Status explained(const absl::Status& status) const;
  absl::StatusOr<std::vector<std::string>> agree(const absl::Status& own, std::string_view text);
  absl::StatusOr<std::string> create(const absl::Status& ready);
  absl::StatusOr<bool> open();
  absl::Status open_files();
  absl::Status save_alone();
  absl::Status write();
  absl::Status write_round();
  absl::Status write_own_files();
  absl::Status commit();

  const SavingRank& rank_;
  int64_t step_;
  CheckpointContents contents_;
  const DividedCheckpoint& divided_;
  std::unique_ptr<CheckpointDraft> draft_;  // on rank 0
  std::string path_;                        // of the folder under its temporary name
  std::optional<DividedFile> model_, optimizer_;
  std::optional<Directory> folder_;
  std::future<absl::StatusOr<std::string>> own_files_;  // their lines, see line_of()
  std::optional<std::string> own_lines_;                // once they are written
  std::vector<std::string> reports_;                    // by rank: digest of both files of tensors, lines of own files
};

/// Adds the needed and the free bytes to the error of a disk that became full while this rank wrote.
absl::Status SaveTogether::explained(const absl::Status& status) const {
  const auto error = error_of(status);
  if (!error || error->id != "storage.full" || !model_ || !optimizer_) return status;
  const std::string folder = split_path(path_).first;
  const auto opened = rank_.fs->open_directory(folder);
  const int64_t free_bytes = opened.ok() ? opened->free_bytes().value_or(0) : 0;
  return no_space(folder, step_, free_bytes, model_->size_bytes() + optimizer_->size_bytes());
}

/// Returns the texts of all ranks, unless a rank has failed: then its error.
absl::StatusOr<std::vector<std::string>> SaveTogether::agree(const absl::Status& own, std::string_view text) {
  std::string message = own.ok() ? "+" + std::string(text) : "-" + error_line(own);
  message.resize(std::min<size_t>(message.size(), kMessageBytes - 1));
  const at::Tensor bytes = at::zeros({kMessageBytes}, at::kByte);
  std::memcpy(bytes.mutable_data_ptr(), message.data(), message.size());
  at::Tensor all;
  const absl::Status exchanged = attempt([&] { return all = rank_.exchange(bytes), absl::OkStatus(); });
  TRAINKIT_RETURN_IF_ERROR(own);
  TRAINKIT_RETURN_IF_ERROR(exchanged);
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < rank_.ranks; ++rank) {
    const std::string theirs = static_cast<const char*>(all[rank].const_data_ptr());
    if (theirs.starts_with('+')) {
      texts.push_back(theirs.substr(1));
      continue;
    }
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "dist.peer",
                      .problem = fmt::format("rank {} could not save the checkpoint of step {}: {}", rank, step_,
                                             theirs.substr(std::min<size_t>(1, theirs.size())))});
  }
  return texts;
}

/// Rank 0 creates the folder, whose path all ranks return.
absl::StatusOr<std::string> SaveTogether::create(const absl::Status& ready) {
  const absl::Status created = attempt([&]() -> absl::Status {
    TRAINKIT_RETURN_IF_ERROR(ready);
    if (!is_first()) return absl::OkStatus();
    TRAINKIT_ASSIGN_OR_RETURN(
        draft_, CheckpointDraft::create(*rank_.store, step_, whole_shapes(contents_.model, divided_.model),
                                        whole_shapes(contents_.optimizer, divided_.optimizer), contents_.state,
                                        rank_.file_bytes));
    return absl::OkStatus();
  });
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> paths, agree(created, draft_ ? draft_->path() : ""));
  return paths.front();
}

absl::Status SaveTogether::open_files() {
  const auto open_folder = [&]() -> absl::StatusOr<Directory> {
    if (is_first()) return draft_->open();
    const auto [parent_path, name] = split_path(path_);
    TRAINKIT_ASSIGN_OR_RETURN(const Directory parent, rank_.fs->open_directory(parent_path));
    return parent.open_directory(name);
  };
  TRAINKIT_ASSIGN_OR_RETURN(folder_, open_folder());
  TRAINKIT_ASSIGN_OR_RETURN(model_, DividedFile::open(*folder_, kModelFile));
  TRAINKIT_ASSIGN_OR_RETURN(optimizer_, DividedFile::open(*folder_, kOptimizerFile));
  return absl::OkStatus();
}

/// Opens the files. Returns whether all ranks could.
absl::StatusOr<bool> SaveTogether::open() {
  const absl::Status opened = attempt([&] { return open_files(); });
  // Without files of the ranks, rank 0 can write alone after any error.
  const bool fails = rank_.file_bytes > 0 && !absl::IsNotFound(opened);
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> answers,
                            agree(fails ? opened : absl::OkStatus(), opened.ok() ? "opened" : "not found"));
  return std::all_of(answers.begin(), answers.end(), [](const std::string& answer) { return answer == "opened"; });
}

/// Gathers the state to rank 0, which writes it.
absl::Status SaveTogether::save_alone() {
  draft_.reset();
  if (rank_.file_bytes > 0) {
    return to_status({.exit_code = ExitCode::kDistributed,
                      .id = "ckpt.source",
                      .problem = "the ranks have no common file system, which the files of their data need",
                      .hint = "let --output_dir be a shared folder"});
  }
  if (is_first() && rank_.on_alone) rank_.on_alone();
  TRAINKIT_RETURN_IF_ERROR(rank_.gather(contents_, /*all=*/true));
  return is_first() ? attempt([&] { return rank_.store->save(step_, contents_); }) : absl::OkStatus();
}

/// Writes tensors of about round_bytes; closes the files after the last one.
absl::Status SaveTogether::write_round() {
  TRAINKIT_RETURN_IF_ERROR(model_->write(rank_.round_bytes));
  if (!model_->is_written()) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(optimizer_->write(rank_.round_bytes));
  if (!optimizer_->is_written()) return absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(model_->close());
  return optimizer_->close();
}

/// Returns "\n<name> <bytes> <digest>".
std::string line_of(const PendingFile& file, const FileRecord& record) {
  return fmt::format("\n{} {} {}", file.name, record.bytes, record.xxh3_128);
}

/// Writes the files of this rank in another thread; waits a few seconds for their end.
absl::Status SaveTogether::write_own_files() {
  if (!own_files_.valid()) {
    own_files_ = std::async(std::launch::async, [this]() -> absl::StatusOr<std::string> {
      std::string lines;
      const absl::Status written = attempt([&]() -> absl::Status {
        for (const PendingFile& file : contents_.files) {
          TRAINKIT_ASSIGN_OR_RETURN(const FileRecord record, write_source_file(*folder_, file));
          lines += line_of(file, record);
        }
        return contents_.files.empty() ? absl::OkStatus() : folder_->sync();
      });
      if (!written.ok()) return written;
      return lines;
    });
  }
  if (own_files_.wait_for(kWriting) != std::future_status::ready) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(own_lines_, own_files_.get());
  return absl::OkStatus();
}

/// Writes the parts of this rank, and waits for those of the others.
absl::Status SaveTogether::write() {
  absl::Status own = rank_.gather(contents_, /*all=*/false);
  own.Update(attempt([&] {
    model_->assign(contents_.model, divided_.model, rank_.rank);
    optimizer_->assign(contents_.optimizer, divided_.optimizer, rank_.rank);
    contents_.model.clear();  // the files have them
    contents_.optimizer.clear();
    return absl::OkStatus();
  }));
  bool is_written = false, is_done = false;
  while (!is_done) {
    if (own.ok() && !is_written) {
      own = attempt([&] { return write_round(); });
      is_written = own.ok() && model_->is_written() && optimizer_->is_written();
    }
    if (own.ok() && is_written && !own_lines_) own = write_own_files();
    const std::string text = own_lines_ ? model_->digest() + optimizer_->digest() + *own_lines_ : std::string();
    TRAINKIT_ASSIGN_OR_RETURN(reports_, agree(own, text));
    is_done = std::none_of(reports_.begin(), reports_.end(), [](const std::string& one) { return one.empty(); });
  }
  return absl::OkStatus();
}

/// Adds the files that a rank has reported to the manifest. Error of exit code 6: one has not arrived.
absl::Status add_own_files(const Directory& folder, const std::string& report,
                           std::map<std::string, FileRecord>& files) {
  std::istringstream lines(report);
  std::string digests, name;
  std::getline(lines, digests);
  for (FileRecord record; lines >> name >> record.bytes >> record.xxh3_128;) {
    TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile file, folder.open_file(kSourcePrefix + name));
    if (file.size_bytes() != record.bytes) {
      return to_status({.exit_code = ExitCode::kStorage,
                        .id = "storage.io",
                        .where = file.path(),
                        .problem = "does not have the bytes that its rank has written",
                        .got = std::to_string(file.size_bytes()),
                        .expected = std::to_string(record.bytes)});
    }
    files[kSourcePrefix + name] = record;
  }
  return absl::OkStatus();
}

absl::Status SaveTogether::commit() {
  TRAINKIT_ASSIGN_OR_RETURN(const Directory folder, draft_->open());
  std::map<std::string, FileRecord> files;
  const size_t digest_size = Digest().hex().size();
  const auto read = [&](const char* name, const DividedTensors& divided, size_t begin) -> absl::Status {
    std::vector<std::string> digests;
    for (const std::string& report : reports_) digests.push_back(report.substr(begin, digest_size));
    TRAINKIT_ASSIGN_OR_RETURN(files[name], read_back(folder, name, divided, digests));
    return absl::OkStatus();
  };
  TRAINKIT_RETURN_IF_ERROR(read(kModelFile, divided_.model, 0));
  TRAINKIT_RETURN_IF_ERROR(read(kOptimizerFile, divided_.optimizer, digest_size));
  for (const std::string& report : reports_) TRAINKIT_RETURN_IF_ERROR(add_own_files(folder, report, files));
  return draft_->commit(std::move(files));
}

}  // namespace

absl::Status save_together(const SavingRank& rank, int64_t step, CheckpointContents contents,
                           const DividedCheckpoint& divided, const absl::Status& ready) {
  return SaveTogether(rank, step, std::move(contents), divided)(ready);
}

}  // namespace trainkit::detail
