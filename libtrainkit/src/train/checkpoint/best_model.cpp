#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <limits>
#include <utility>
#include <vector>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

constexpr char kFile[] = "best.safetensors";
constexpr char kBefore[] = "best.before.safetensors";

/// Reads a number of the metadata of `path`; `fallback` if there is none of this name.
template <class Number>
absl::StatusOr<Number> number_of(const std::string& path, const SafetensorsMetadata& metadata, const std::string& name,
                                 Number fallback) {
  const auto at = metadata.find(name);
  if (at == metadata.end()) return fallback;
  Number number = fallback;
  const char* end = at->second.data() + at->second.size();
  const auto [rest, error] = std::from_chars(at->second.data(), end, number);
  if (error == std::errc() && rest == end) return number;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.metadata",
                    .where = path,
                    .field = name,
                    .problem = "is not a number",
                    .got = at->second});
}

/// Replaces `to` by a copy of `from`, atomically.
absl::Status copy_file(const std::string& from, const std::string& to) {
  const Fs& fs = Fs::posix();
  TRAINKIT_ASSIGN_OR_RETURN(const ReadableFile source, fs.open_file(from));
  const auto [folder, name] = split_path(to);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& target) -> absl::Status {
    std::vector<char> block(1 << 20);
    for (int64_t at = 0; at < source.size_bytes(); at += static_cast<int64_t>(block.size())) {
      const auto size = static_cast<size_t>(std::min<int64_t>(block.size(), source.size_bytes() - at));
      TRAINKIT_RETURN_IF_ERROR(source.read_at(at, block.data(), size));
      TRAINKIT_RETURN_IF_ERROR(target.append(block.data(), size));
    }
    return absl::OkStatus();
  });
}

/// Renames a file within its folder.
absl::Status rename_file(const std::string& folder, const char* from, const char* to) {
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return directory.rename(from, to);
}

absl::Status remove_file(const std::string& folder, const char* name) {
  const auto directory = Fs::posix().open_directory(folder);
  const absl::Status removed = directory.ok() ? directory->remove_file(name) : directory.status();
  return absl::IsNotFound(removed) ? absl::OkStatus() : removed;
}

double worst_of(const BestModelOptions& options) {
  constexpr double kInfinity = std::numeric_limits<double>::infinity();
  return options.higher_is_better ? -kInfinity : kInfinity;
}

}  // namespace

BestModel::BestModel(const std::string& output_dir, const BestModelOptions& options)
    : options_(options),
      output_dir_(output_dir),
      path_(output_dir + "/" + kFile),
      before_(output_dir + "/" + kBefore),
      value_(worst_of(options)) {}

absl::StatusOr<bool> BestModel::load_if_known(const std::string& path, int64_t resumed_step) {
  if (absl::IsNotFound(Fs::posix().open_file(path).status())) return false;
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t step, number_of<int64_t>(path, file.metadata(), "step", -1));
  TRAINKIT_ASSIGN_OR_RETURN(const double value, number_of(path, file.metadata(), options_.metric, value_));
  if (step < 0 || step > resumed_step) return false;
  step_ = step;
  value_ = value;
  return true;
}

absl::StatusOr<BestModel> BestModel::open(const std::string& output_dir, const std::string& resume,
                                          const BestModelOptions& options) {
  if (options.metric == "step") {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "train.options",
                      .field = "BestModelOptions",
                      .problem = "metric must not be 'step', the key of the step in the file's metadata"},
                     absl::StatusCode::kInvalidArgument);
  }
  BestModel best(output_dir, options);
  if (!options.writes) return best;
  if (resume.empty()) {
    for (const char* name : {kFile, kBefore}) TRAINKIT_RETURN_IF_ERROR(remove_file(output_dir, name));
    return best;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(resume, output_dir));
  const std::string folder = checkpoint.run_folder();
  for (const char* name : {kFile, kBefore}) {
    const std::string path = folder + "/" + name;
    TRAINKIT_ASSIGN_OR_RETURN(const bool known, best.load_if_known(path, checkpoint.step));
    if (!known) continue;
    if (path != best.path_) TRAINKIT_RETURN_IF_ERROR(copy_file(path, best.path_));
    return best;
  }
  for (const char* name : {kFile, kBefore}) TRAINKIT_RETURN_IF_ERROR(remove_file(output_dir, name));
  TRAINKIT_RETURN_IF_ERROR(best.take_recorded(checkpoint));
  return best;
}

bool BestModel::lost() const { return step_ < 0 && value_ != worst_of(options_); }

absl::Status BestModel::take_recorded(const CheckpointPath& checkpoint) {
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict state, load_checkpoint_state(checkpoint));
  const auto value = get_state<double>(state, "trainer.best." + options_.metric);
  const auto step = get_state<int64_t>(state, "trainer.best_step");
  if (!value.ok() || !step.ok() || std::isnan(*value)) return absl::OkStatus();
  value_ = *value;
  const auto contents = load_checkpoint({.folder = checkpoint.folder, .step = *step});
  if (!contents.ok()) return absl::OkStatus();  // lost()
  TRAINKIT_RETURN_IF_ERROR(save_safetensors(Fs::posix(), path_, contents->model, metadata_of(*step, value_)));
  step_ = *step;
  return absl::OkStatus();
}

SafetensorsMetadata BestModel::metadata_of(int64_t step, double value) const {
  return {{"step", fmt::format("{}", step)}, {options_.metric, fmt::format("{}", value)}};
}

// Note [Best weights and rollback]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// A resumed or rolled-back run must not know evaluations that its checkpoint does not know; else it would keep other
// best weights than an uninterrupted run. Two files make that possible. Before best.safetensors is overwritten, it is
// renamed to best.before.safetensors if the last checkpoint already knows it. Hence best.before.safetensors is always
// of a step up to the last checkpoint, and best.safetensors may be of a later one. load_if_known() compares the step in
// a file's metadata with the checkpoint's step to choose between them.

absl::Status BestModel::forget_after_checkpoint() {
  const auto saved = resolve_checkpoint("latest", output_dir_);
  if (!saved.ok() || step_ <= saved->step) return absl::OkStatus();
  step_ = -1;
  value_ = worst_of(options_);
  TRAINKIT_ASSIGN_OR_RETURN(const bool known, load_if_known(before_, saved->step));
  if (known) return rename_file(output_dir_, kBefore, kFile);
  TRAINKIT_RETURN_IF_ERROR(remove_file(output_dir_, kFile));
  return take_recorded(*saved);
}

absl::Status BestModel::offer(int64_t step, double value, const torch::nn::Module& model) {
  if (options_.writes && step <= step_) TRAINKIT_RETURN_IF_ERROR(forget_after_checkpoint());
  if (!options_.writes || !(options_.higher_is_better ? value > value_ : value < value_)) return absl::OkStatus();
  const auto saved = resolve_checkpoint("latest", output_dir_);
  const bool keeps_earlier = step_ >= 0 && saved.ok() && step_ <= saved->step;
  if (keeps_earlier) TRAINKIT_RETURN_IF_ERROR(rename_file(output_dir_, kFile, kBefore));
  absl::Status written = save_safetensors(Fs::posix(), path_, named_tensors(model), metadata_of(step, value));
  if (!written.ok()) {  // the earlier best weights stay
    if (keeps_earlier) rename_file(output_dir_, kBefore, kFile).IgnoreError();
    return written;
  }
  step_ = step;
  value_ = value;
  return absl::OkStatus();
}

absl::StatusOr<bool> BestModel::restore(torch::nn::Module& model) const {
  if (step_ < 0) return false;
  TRAINKIT_RETURN_IF_ERROR(load_weights(model, path_, {.allow_nonfinite = true}).status());
  return true;
}

}  // namespace trainkit
