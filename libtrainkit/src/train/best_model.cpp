#include "trainkit/train/best_model.h"

#include <fmt/format.h>

#include <charconv>
#include <filesystem>
#include <limits>
#include <utility>

#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

namespace fs = std::filesystem;

constexpr char kFile[] = "best.safetensors";
constexpr char kBefore[] = "best.before.safetensors";

template <class Number>
Number number_of(const SafetensorsMetadata& metadata, const std::string& name, Number fallback) {
  const auto at = metadata.find(name);
  if (at == metadata.end()) return fallback;
  std::from_chars(at->second.data(), at->second.data() + at->second.size(), fallback);
  return fallback;
}

absl::Status replace_file(const std::string& from, const std::string& to, bool copy) {
  std::error_code error;
  if (copy) {
    fs::copy_file(from, to, fs::copy_options::overwrite_existing, error);
  } else {
    fs::rename(from, to, error);
  }
  if (!error) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.write",
                    .where = to,
                    .problem = "cannot be replaced by " + from + ": " + error.message()});
}

absl::Status remove_file(const std::string& path) {
  std::error_code error;
  fs::remove(path, error);
  if (!error) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.write",
                    .where = path,
                    .problem = "cannot be removed: " + error.message()});
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
  if (!fs::exists(path)) return false;
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  const int64_t step = number_of<int64_t>(file.metadata(), "step", -1);
  if (step < 0 || step > resumed_step) return false;
  step_ = step;
  value_ = number_of<double>(file.metadata(), options_.metric, value_);
  return true;
}

absl::StatusOr<BestModel> BestModel::open(const std::string& output_dir, const std::string& resume,
                                          const BestModelOptions& options) {
  BestModel best(output_dir, options);
  if (!options.writes) return best;
  if (resume.empty()) {
    for (const std::string& path : {best.path_, best.before_}) TRAINKIT_RETURN_IF_ERROR(remove_file(path));
    return best;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(resume, output_dir));
  const fs::path folder = fs::path(checkpoint.folder).parent_path();
  std::error_code unknown;
  const bool own = fs::equivalent(folder, output_dir, unknown);
  for (const char* name : {kFile, kBefore}) {
    const std::string path = (folder / name).string();
    TRAINKIT_ASSIGN_OR_RETURN(const bool known, best.load_if_known(path, checkpoint.step));
    if (!known) continue;
    if (!own || name == kBefore) TRAINKIT_RETURN_IF_ERROR(replace_file(path, best.path_, /*copy=*/!own));
    break;
  }
  return best;
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
  return known ? replace_file(before_, path_, /*copy=*/false) : remove_file(path_);
}

absl::Status BestModel::offer(int64_t step, double value, const torch::nn::Module& model) {
  if (options_.writes && step <= step_) TRAINKIT_RETURN_IF_ERROR(forget_after_checkpoint());
  if (!options_.writes || !(options_.higher_is_better ? value > value_ : value < value_)) return absl::OkStatus();
  const int64_t earlier = std::exchange(step_, step);
  value_ = value;
  const auto saved = resolve_checkpoint("latest", output_dir_);
  if (earlier >= 0 && saved.ok() && earlier <= saved->step) {
    TRAINKIT_RETURN_IF_ERROR(replace_file(path_, before_, /*copy=*/false));
  }
  return save_safetensors(Fs::posix(), path_, named_tensors(model),
                          {{"step", fmt::format("{}", step)}, {options_.metric, fmt::format("{}", value)}});
}

absl::StatusOr<bool> BestModel::restore(torch::nn::Module& model) const {
  if (step_ < 0) return false;
  TRAINKIT_RETURN_IF_ERROR(load_weights(model, path_, {.allow_nonfinite = true}).status());
  return true;
}

}  // namespace trainkit
