#include "trainkit/train/checkpoint.h"

#include <ATen/core/Tensor.h>
#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <optional>

#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_manifest.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/checkpoint/checkpoint_store.h"
#include "trainkit/core/status.h"

namespace trainkit {
namespace {

/// Allowance for manifest, `latest`, folder entries and the last block of each file.
constexpr int64_t kSlackBytes = 64 << 10;

using detail::as_weights, detail::checkpoint_error, detail::kFolder, detail::kLatestFile, detail::kModelFile,
    detail::kOptimizerFile, detail::kStateFile, detail::latest_step, detail::list_steps, detail::load_step,
    detail::newest_valid_step, detail::parse_step, detail::read_state, detail::step_name, detail::verify_step,
    detail::with_hint;

}  // namespace

CheckpointStore::CheckpointStore(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CheckpointStore::CheckpointStore(CheckpointStore&&) noexcept = default;
CheckpointStore& CheckpointStore::operator=(CheckpointStore&&) noexcept = default;
CheckpointStore::~CheckpointStore() = default;

absl::StatusOr<CheckpointStore> CheckpointStore::open(const std::string& output_dir, const CheckpointOptions& options) {
  for (const auto& [flag, value] :
       {std::pair("--keep_last", int64_t{options.keep_last}), std::pair("--keep_every", options.keep_every)}) {
    if (value >= 0) continue;
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .field = flag,
                      .problem = "is negative",
                      .got = fmt::format("{}", value),
                      .expected = "0 or more"});
  }
  const Fs& fs = options.fs ? *options.fs : Fs::posix();
  TRAINKIT_ASSIGN_OR_RETURN(const Directory output, fs.create_directories(output_dir));
  const auto type = output.type_of(kFolder);
  if (absl::IsNotFound(type.status())) {
    TRAINKIT_RETURN_IF_ERROR(output.create_directory(kFolder));
    TRAINKIT_RETURN_IF_ERROR(output.sync());
  } else if (type.ok() && *type != EntryType::kDirectory) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "ckpt.folder",
                      .where = output_dir + "/" + kFolder,
                      .problem = "is a link or a file, expected a folder"});
  }
  TRAINKIT_ASSIGN_OR_RETURN(Directory folder, output.open_directory(kFolder));
  TRAINKIT_ASSIGN_OR_RETURN(const bool open_to_all, folder.writable_by_others());
  if (open_to_all) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "ckpt.folder",
                      .where = folder.path(),
                      .problem = "is writable by every user of this machine",
                      .hint = "chmod o-w " + folder.path()});
  }
  if (absl::IsUnavailable(folder.try_lock())) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "ckpt.locked",
                      .where = folder.path(),
                      .problem = "another run is writing checkpoints there",
                      .hint = "choose another --output_dir"},
                     absl::StatusCode::kUnavailable);
  }
  auto impl = std::make_unique<Impl>(std::move(folder), options);
  impl->retention = impl->remove_stale();
  return CheckpointStore(std::move(impl));
}

// Note [Checkpoint commit]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A crash at any moment must leave a valid checkpoint that `latest` names. save() therefore does, in this order:
// 1. write() writes all files under a temporary name, syncs each file, then the folder. The manifest is last.
// 2. put_in_place() renames the temporary folder to step-<n> and syncs the parent folder. If step-<n> exists, it
//    exchanges the two names atomically; the old checkpoint then has the temporary name (`swapped`).
// 3. write_file_atomically() replaces `latest`.
// 4. drop_old() renames surplus checkpoints to temporary names, then removes everything with such a name.
// Invariants: a folder named step-<n> is always complete, since it receives the name after its files are synced and
// loses the name before they are deleted. The checkpoint that `latest` names is never renamed away, except by the
// atomic exchange. After a failed step 3 following a swap the temporary folder is not deleted: it holds the last good
// checkpoint until the exchange is known to be on the disk. remove_stale() syncs the parent folder before it deletes,
// for the same reason: the names that a process sees may be newer than those on the disk.

/// Removes the remains of interrupted saves. One that cannot be removed does not stop the removal of the others;
/// returns the first error. A folder with a file of the user stays.
absl::Status CheckpointStore::Impl::remove_stale() const {
  TRAINKIT_ASSIGN_OR_RETURN(const auto names, folder.list());
  const auto stale = [](const std::string& name) { return name.starts_with(kTemporaryPrefix); };
  if (std::none_of(names.begin(), names.end(), stale)) return absl::OkStatus();
  // The names may be newer than those on the disk, see Note [Checkpoint commit].
  TRAINKIT_RETURN_IF_ERROR(folder.sync());
  absl::Status first;
  for (const std::string& name : names) {
    if (!stale(name)) continue;
    const auto checkpoint = folder.open_directory(name);
    if (!checkpoint.ok() || detail::foreign_entry(*checkpoint).empty()) first.Update(folder.remove_tree(name));
  }
  return first;
}

/// Writes a complete checkpoint under a temporary name and syncs it.
absl::Status CheckpointStore::Impl::write(const std::string& temporary, int64_t step,
                                          const CheckpointContents& contents, const std::string& state) const {
  TRAINKIT_RETURN_IF_ERROR(folder.create_directory(temporary));
  TRAINKIT_ASSIGN_OR_RETURN(const Directory checkpoint, folder.open_directory(temporary));
  detail::Manifest manifest{.step = step, .library = {}, .files = {}};
  const auto write_file = [&](const char* name, const auto& fill) -> absl::Status {
    TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, checkpoint.create_file(name));
    TRAINKIT_RETURN_IF_ERROR(fill(file));
    TRAINKIT_RETURN_IF_ERROR(file.sync());
    manifest.files[name] = {file.size_bytes(), file.digest().hex()};
    return file.close();
  };
  TRAINKIT_RETURN_IF_ERROR(
      write_file(kModelFile, [&](WritableFile& f) { return write_safetensors(f, contents.model); }));
  TRAINKIT_RETURN_IF_ERROR(
      write_file(kOptimizerFile, [&](WritableFile& f) { return write_safetensors(f, contents.optimizer); }));
  TRAINKIT_RETURN_IF_ERROR(write_file(kStateFile, [&](WritableFile& f) { return f.append(state); }));
  for (const PendingFile& file : contents.files) {
    TRAINKIT_ASSIGN_OR_RETURN(manifest.files[detail::kSourcePrefix + file.name],
                              detail::write_source_file(checkpoint, file));
  }
  const std::string text = detail::manifest_to_json(manifest);
  TRAINKIT_RETURN_IF_ERROR(write_file(detail::kManifestFile, [&](WritableFile& f) { return f.append(text); }));
  return checkpoint.sync();
}

/// Gives a written checkpoint its name, durably. Sets `swapped` if the temporary name now holds the replaced
/// checkpoint. See Note [Checkpoint commit].
absl::Status CheckpointStore::Impl::put_in_place(const std::string& temporary, int64_t step, bool& swapped) const {
  const std::string name = step_name(step);
  const auto type = folder.type_of(name);
  if (!absl::IsNotFound(type.status())) {
    TRAINKIT_RETURN_IF_ERROR(type.status());
    if (*type != EntryType::kDirectory) {
      return to_status({.exit_code = ExitCode::kStorage,
                        .id = "ckpt.folder",
                        .where = folder.path() + "/" + name,
                        .problem = "is a link or a file, expected a checkpoint folder"});
    }
    absl::Status exchanged = folder.exchange(temporary, name);
    swapped = exchanged.ok();
    if (swapped) return folder.sync();
    if (!absl::IsInvalidArgument(exchanged) && !absl::IsUnimplemented(exchanged)) return exchanged;
    // The file system cannot exchange names. Two renames would leave a moment without the last good checkpoint, so they
    // are used only for other steps.
    const auto latest = latest_step(folder);
    if (!latest.ok() || *latest == step) return exchanged;
    TRAINKIT_RETURN_IF_ERROR(folder.rename(name, temporary_name(name)));  // removed by remove_stale()
  }
  TRAINKIT_RETURN_IF_ERROR(folder.rename(temporary, name));
  return folder.sync();
}

/// Deletes checkpoints in excess of keep_last: first steps after `newest`, of a run that was rolled back; then the
/// oldest. Milestones up to `newest`, and checkpoints with a file of the user, stay. Continues after an error and
/// returns the first one.
absl::Status CheckpointStore::Impl::drop_old(int64_t newest) const {
  absl::Status first;
  if (keep_last > 0) {
    TRAINKIT_ASSIGN_OR_RETURN(auto steps, list_steps(folder));
    std::rotate(steps.begin(), std::upper_bound(steps.begin(), steps.end(), newest), steps.end());
    const auto stays = [&](int64_t step) { return keep_every > 0 && step <= newest && step % keep_every == 0; };
    std::erase_if(steps, stays);
    const auto surplus = static_cast<int64_t>(steps.size()) - keep_last + (stays(newest) ? 1 : 0);
    for (int64_t i = 0; i < surplus; ++i) {
      const std::string name = step_name(steps[static_cast<size_t>(i)]);
      const auto checkpoint = folder.open_directory(name);
      if (checkpoint.ok() && !detail::foreign_entry(*checkpoint).empty()) continue;  // a file of the user is in it
      // Renamed before it is deleted, see Note [Checkpoint commit].
      first.Update(folder.rename(name, temporary_name(name)));
    }
  }
  first.Update(remove_stale());
  return first;
}

absl::StatusOr<int64_t> CheckpointStore::Impl::check_space(int64_t step, int64_t file_bytes,
                                                           const std::string& state) const {
  const int64_t needed = file_bytes + static_cast<int64_t>(state.size()) + kSlackBytes;
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t free_bytes, folder.free_bytes());
  if (free_bytes < needed) return detail::no_space(folder.path(), step, free_bytes, needed);
  return needed;
}

absl::Status CheckpointStore::Impl::finish(const std::string& temporary, int64_t step, int64_t needed,
                                           absl::Status status) {
  bool swapped = false;
  if (status.ok()) status = put_in_place(temporary, step, swapped);
  if (status.ok()) status = write_file_atomically(folder, kLatestFile, step_name(step) + "\n");
  if (!status.ok()) {
    // After a swap the temporary name holds the last good checkpoint, see Note [Checkpoint commit].
    if (!swapped) folder.remove_tree(temporary).IgnoreError();
    const auto left = folder.free_bytes();
    const auto error = error_of(status);
    return error && error->id == "storage.full" ? detail::no_space(folder.path(), step, left.value_or(0), needed)
                                                : status;
  }
  retention = drop_old(step);
  return absl::OkStatus();
}

absl::Status CheckpointStore::save(int64_t step, const CheckpointContents& contents) {
  TORCH_CHECK_VALUE(step >= 0, "a checkpoint's step must be >= 0, got ", step);
  const std::lock_guard lock(impl_->mutex);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string state, detail::state_to_json(contents.state));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t model_bytes, safetensors_bytes(contents.model));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t optimizer_bytes, safetensors_bytes(contents.optimizer));
  const int64_t tensor_bytes = model_bytes + optimizer_bytes;
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t needed,
                            impl_->check_space(step, tensor_bytes + detail::bytes_of(contents.files), state));
  const std::string temporary = temporary_name(step_name(step));
  return impl_->finish(temporary, step, needed, impl_->write(temporary, step, contents, state));
}

absl::StatusOr<CheckpointContents> CheckpointStore::load(int64_t step) const { return load_step(impl_->folder, step); }
absl::StatusOr<int64_t> CheckpointStore::latest() const { return latest_step(impl_->folder); }
absl::StatusOr<std::vector<int64_t>> CheckpointStore::steps() const { return list_steps(impl_->folder); }
const std::string& CheckpointStore::path() const { return impl_->folder.path(); }

absl::StatusOr<int64_t> CheckpointStore::newest_valid() const {
  if (const auto step = newest_valid_step(impl_->folder, std::numeric_limits<int64_t>::max())) return *step;
  return to_status(checkpoint_error("ckpt.none", path(), "contains no valid checkpoint"), absl::StatusCode::kNotFound);
}

absl::Status CheckpointStore::retention_status() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->retention;
}

std::string CheckpointPath::path() const { return folder + "/" + step_name(step); }

std::string CheckpointPath::run_folder() const { return split_path(folder).first; }

absl::StatusOr<CheckpointPath> resolve_checkpoint(const std::string& spec, const std::string& output_dir,
                                                  const Fs& fs) {
  const auto not_found = [&](const std::string& where, const std::string& problem, const std::string& hint = {}) {
    Error error = checkpoint_error("ckpt.none", where, problem);
    error.hint = hint;
    error.expected = "a run's folder, its checkpoints/, or one step-...";
    return to_status(error, absl::StatusCode::kNotFound);
  };
  // Whether there is no such folder; one that cannot be read is an error of its own.
  const auto is_missing = [](const absl::Status& status) {
    // Also a file, a path below one, a name that is too long.
    return absl::IsNotFound(status) || absl::IsFailedPrecondition(status) || absl::IsInvalidArgument(status);
  };
  const auto latest_of = [&](const std::string& path) -> absl::StatusOr<CheckpointPath> {
    const auto folder = fs.open_directory(path);
    if (is_missing(folder.status())) return not_found(path, "no checkpoint found");
    if (!folder.ok()) return as_weights(folder.status());
    TRAINKIT_ASSIGN_OR_RETURN(const int64_t step, latest_step(*folder));
    return CheckpointPath{.folder = path, .step = step};
  };
  const std::string own = output_dir + "/" + kFolder;
  if (spec == "latest") return latest_of(own);
  const auto [parent, name] = split_path(spec);
  if (const auto step = parse_step(name)) {
    for (const std::string& folder : {parent, own}) {
      const auto opened = fs.open_directory(folder + "/" + name);
      if (opened.ok()) return CheckpointPath{.folder = folder, .step = *step};
      if (!is_missing(opened.status())) return as_weights(opened.status());
      if (spec.find('/') != std::string::npos) break;  // a path is not searched for in output_dir
    }
    return not_found(spec, "no such checkpoint");
  }
  if (name == kLatestFile && !fs.open_directory(spec).ok()) return latest_of(parent);  // RUN/checkpoints/latest
  const std::string inside = spec + "/" + kFolder;
  if (!is_missing(fs.open_directory(inside).status())) return latest_of(inside);
  if (spec.ends_with(".pt") || spec.ends_with(".pth")) {
    return not_found(spec, "a PyTorch file, not a checkpoint of this library",
                     "--init_from " + spec + " starts a new run with its weights");
  }
  const auto folder = fs.open_directory(spec);
  if (is_missing(folder.status())) return not_found(spec, "no such folder");
  if (!folder.ok()) return as_weights(folder.status());
  const auto steps = list_steps(*folder);
  if (folder->type_of(kLatestFile).ok() || (steps.ok() && !steps->empty())) return latest_of(spec);
  return not_found(spec, "contains no checkpoint");
}

absl::StatusOr<CheckpointContents> load_checkpoint(const CheckpointPath& checkpoint, const Fs& fs) {
  const auto folder = fs.open_directory(checkpoint.folder);
  if (!folder.ok()) return as_weights(folder.status());
  return load_step(*folder, checkpoint.step);
}

absl::StatusOr<StateDict> load_checkpoint_state(const CheckpointPath& checkpoint, const Fs& fs) {
  const auto folder = fs.open_directory(checkpoint.path());
  if (!folder.ok()) return as_weights(folder.status());
  TRAINKIT_RETURN_IF_ERROR(detail::verify_file(*folder, kStateFile));
  return read_state(*folder);
}

absl::Status verify_checkpoint(const CheckpointPath& checkpoint, const Fs& fs) {
  const auto folder = fs.open_directory(checkpoint.folder);
  if (!folder.ok()) return as_weights(folder.status());
  const absl::Status status = verify_step(*folder, checkpoint.step);
  return status.ok() ? status : with_hint(*folder, checkpoint.step, status);
}

}  // namespace trainkit
