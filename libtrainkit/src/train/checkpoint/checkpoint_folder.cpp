#include "train/checkpoint/checkpoint_folder.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <limits>

#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_state.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

namespace trainkit::detail {

std::string foreign_entry(const Directory& checkpoint) {
  const auto names = checkpoint.list();
  if (!names.ok()) return ".";
  for (const std::string& name : *names) {
    const bool is_known = name == kManifestFile || name == kModelFile || name == kOptimizerFile || name == kStateFile ||
                          name.starts_with(kSourcePrefix);
    const auto type = checkpoint.type_of(name);
    if (!is_known || !type.ok() || *type != EntryType::kFile) return name;
  }
  return "";
}

std::string step_name(int64_t step) { return fmt::format("step-{:08}", step); }

std::optional<int64_t> parse_step(std::string_view name) {
  constexpr std::string_view kPrefix = "step-";
  int64_t step = 0;
  if (!name.starts_with(kPrefix)) return std::nullopt;
  std::from_chars(name.data() + kPrefix.size(), name.data() + name.size(), step);
  return step >= 0 && step_name(step) == name ? std::optional(step) : std::nullopt;
}

absl::StatusOr<FileRecord> write_source_file(const Directory& checkpoint, const PendingFile& pending) {
  TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, checkpoint.create_file(kSourcePrefix + pending.name));
  TRAINKIT_RETURN_IF_ERROR(pending.write(file));
  if (file.size_bytes() != pending.bytes) {
    return to_status({.exit_code = ExitCode::kBug,
                      .id = "ckpt.source",
                      .where = file.path(),
                      .problem = "the source has written another number of bytes than it announced",
                      .got = std::to_string(file.size_bytes()),
                      .expected = std::to_string(pending.bytes)});
  }
  TRAINKIT_RETURN_IF_ERROR(file.sync());
  TRAINKIT_RETURN_IF_ERROR(file.close());
  return FileRecord{file.size_bytes(), file.digest().hex()};
}

int64_t bytes_of(const std::vector<PendingFile>& files) {
  int64_t bytes = 0;
  for (const PendingFile& file : files) bytes += file.bytes;
  return bytes;
}

std::string source_file_name(int64_t rank, std::string_view name) { return fmt::format("{:04}.{}", rank, name); }

absl::StatusOr<std::map<std::string, ReadableFile>> open_source_files(const CheckpointPath& checkpoint, int64_t rank) {
  const std::string prefix = kSourcePrefix + source_file_name(rank, "");
  const auto folder = Fs::posix().open_directory(checkpoint.path());
  if (!folder.ok()) return as_weights(folder.status());
  const auto names = folder->list();
  if (!names.ok()) return as_weights(names.status());
  std::map<std::string, ReadableFile> files;
  for (const std::string& name : *names) {
    if (!name.starts_with(prefix)) continue;
    auto file = folder->open_file(name);
    if (!file.ok()) return as_weights(file.status());
    files.emplace(name.substr(prefix.size()), *std::move(file));
  }
  return files;
}

absl::Status as_weights(const absl::Status& status) { return reclassify(status, ExitCode::kWeights, "ckpt.file"); }

absl::Status no_space(const std::string& folder, int64_t step, int64_t free_bytes, int64_t needed) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "ckpt.space",
                    .where = folder,
                    .field = step_name(step),
                    .problem = "not enough disk space for this checkpoint; earlier checkpoints are unchanged",
                    .got = describe_bytes(free_bytes) + " free",
                    .expected = describe_bytes(needed)},
                   absl::StatusCode::kResourceExhausted);
}

absl::StatusOr<std::vector<int64_t>> list_steps(const Directory& folder) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto names, folder.list());
  std::vector<int64_t> steps;
  for (const std::string& name : names) {
    const auto step = parse_step(name);
    if (!step) continue;
    const auto type = folder.type_of(name);
    if (type.ok() && *type == EntryType::kDirectory) steps.push_back(*step);
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

absl::Status verify_step(const Directory& folder, int64_t step) {
  const auto checkpoint = folder.open_directory(step_name(step));
  if (!checkpoint.ok()) return as_weights(checkpoint.status());
  TRAINKIT_ASSIGN_OR_RETURN(const auto manifest, verify_files(*checkpoint));
  Error error = checkpoint_error("ckpt.manifest", checkpoint->path(), {});
  if (manifest.step != step) {
    error.field = "step";
    error.problem = "the manifest belongs to another step";
    error.got = fmt::format("{}", manifest.step);
    return to_status(error);
  }
  for (const char* name : {kModelFile, kOptimizerFile, kStateFile}) {
    if (manifest.files.contains(name)) continue;
    error.problem = fmt::format("the manifest does not list {}", name);
    return to_status(error);
  }
  return absl::OkStatus();
}

std::optional<int64_t> newest_valid_step(const Directory& folder, int64_t below) {
  const auto steps = list_steps(folder);
  if (!steps.ok()) return std::nullopt;
  for (auto step = steps->rbegin(); step != steps->rend(); ++step) {
    if (*step <= below && verify_step(folder, *step).ok()) return *step;
  }
  return std::nullopt;
}

absl::Status with_hint(const Directory& folder, int64_t step, const absl::Status& status) {
  auto error = error_of(status);
  if (!error || !error->hint.empty()) return status;
  const auto older = newest_valid_step(folder, step - 1);
  error->hint = older ? fmt::format("{0} is valid: use {1}/{0}", step_name(*older), folder.path())
                      : "no older checkpoint is valid";
  return to_status(*error, status.code());
}

absl::StatusOr<int64_t> latest_step(const Directory& folder) {
  const auto text = folder.read_file(kLatestFile, 64);
  if (absl::IsNotFound(text.status())) {
    // `latest` was deleted, or the first save was interrupted between its two renames. A folder with a checkpoint's
    // name is complete, see Note [Checkpoint commit].
    TRAINKIT_ASSIGN_OR_RETURN(const auto steps, list_steps(folder));
    if (!steps.empty()) return steps.back();
    return to_status(checkpoint_error("ckpt.none", folder.path(), "contains no checkpoint"),
                     absl::StatusCode::kNotFound);
  }
  if (!text.ok()) return reclassify(text.status(), ExitCode::kWeights, "ckpt.latest");
  const bool one_line = text->ends_with('\n');
  const int64_t step = parse_step(std::string_view(*text).substr(0, text->size() - one_line)).value_or(-1);
  Error error = checkpoint_error("ckpt.latest", folder.path() + "/" + kLatestFile, {});
  error.got = *text;
  if (!one_line || step < 0) {
    error.problem = "does not name a checkpoint";
    error.expected = "step-<at least eight digits> and a line end";
    return to_status(error);
  }
  const auto type = folder.type_of(step_name(step));
  if (type.ok() && *type == EntryType::kDirectory) return step;
  error.got.pop_back();
  error.problem = "names a checkpoint that does not exist";
  return with_hint(folder, std::numeric_limits<int64_t>::max(), to_status(error));
}

absl::StatusOr<StateDict> read_state(const Directory& checkpoint) {
  const auto text = checkpoint.read_file(kStateFile, kMaxStateBytes);
  if (!text.ok()) return as_weights(text.status());
  return state_from_json(*text, checkpoint.path() + "/" + kStateFile);
}

namespace {

absl::StatusOr<CheckpointContents> read_step(const Directory& folder, int64_t step, StoredTensors* stored) {
  TRAINKIT_RETURN_IF_ERROR(verify_step(folder, step));
  const auto checkpoint = folder.open_directory(step_name(step));
  if (!checkpoint.ok()) return as_weights(checkpoint.status());
  const auto tensors_of = [&](const char* name) -> absl::StatusOr<NamedTensors> {
    auto file = checkpoint->open_file(name);
    if (!file.ok()) return as_weights(file.status());
    TRAINKIT_ASSIGN_OR_RETURN(const auto weights, SafetensorsFile::open(std::move(*file)));
    if (stored) return stored->list(weights);
    return weights.tensors();
  };
  CheckpointContents contents;
  TRAINKIT_ASSIGN_OR_RETURN(contents.model, tensors_of(kModelFile));
  TRAINKIT_ASSIGN_OR_RETURN(contents.optimizer, tensors_of(kOptimizerFile));
  TRAINKIT_ASSIGN_OR_RETURN(contents.state, read_state(*checkpoint));
  return contents;
}

}  // namespace

absl::StatusOr<CheckpointContents> load_step(const Directory& folder, int64_t step, StoredTensors* stored) {
  const auto type = folder.type_of(step_name(step));
  if (absl::IsNotFound(type.status())) {
    return to_status(checkpoint_error("ckpt.none", folder.path() + "/" + step_name(step), "no such checkpoint"),
                     absl::StatusCode::kNotFound);
  }
  auto contents = read_step(folder, step, stored);
  return contents.ok() ? std::move(contents) : with_hint(folder, step, contents.status());
}

absl::StatusOr<CheckpointContents> list_checkpoint(const CheckpointPath& checkpoint, StoredTensors& stored) {
  const auto folder = Fs::posix().open_directory(checkpoint.folder);
  if (!folder.ok()) return as_weights(folder.status());
  return load_step(*folder, checkpoint.step, &stored);
}

}  // namespace trainkit::detail
