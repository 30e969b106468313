#include "train/checkpoint/checkpoint_draft.h"

#include <utility>

#include "io/weights/safetensors_header.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/checkpoint/checkpoint_store.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

int64_t file_bytes(const SafetensorsPlan& plan) { return static_cast<int64_t>(plan.header.size()) + plan.data_bytes; }

/// Creates a file with a header and zeros for the tensors, flushed so that other machines see its size.
absl::Status create_tensor_file(const Directory& folder, const std::string& name, const SafetensorsPlan& plan) {
  TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, folder.create_file(name));
  TRAINKIT_RETURN_IF_ERROR(file.append(plan.header));
  if (plan.data_bytes > 0) TRAINKIT_RETURN_IF_ERROR(file.write_at(file_bytes(plan) - 1, "", 1));
  TRAINKIT_RETURN_IF_ERROR(file.sync());
  return file.close();
}

absl::StatusOr<FileRecord> write_text(const Directory& folder, const std::string& name, const std::string& text) {
  TRAINKIT_ASSIGN_OR_RETURN(WritableFile file, folder.create_file(name));
  TRAINKIT_RETURN_IF_ERROR(file.append(text));
  TRAINKIT_RETURN_IF_ERROR(file.sync());
  TRAINKIT_RETURN_IF_ERROR(file.close());
  return FileRecord{file.size_bytes(), file.digest().hex()};
}

}  // namespace

CheckpointDraft::CheckpointDraft(CheckpointStore::Impl& store, int64_t step, std::string state)
    : store_(store),
      lock_(store.mutex),
      step_(step),
      state_(std::move(state)),
      name_(temporary_name(step_name(step))) {}

absl::StatusOr<std::unique_ptr<CheckpointDraft>> CheckpointDraft::create(CheckpointStore& store, int64_t step,
                                                                         const NamedTensors& model,
                                                                         const NamedTensors& optimizer,
                                                                         const StateDict& state, int64_t more_bytes) {
  TRAINKIT_ASSIGN_OR_RETURN(std::string text, state_to_json(state));
  std::unique_ptr<CheckpointDraft> draft(new CheckpointDraft(*store.impl_, step, std::move(text)));
  TRAINKIT_RETURN_IF_ERROR(draft->create_files(model, optimizer, more_bytes));
  return draft;
}

absl::Status CheckpointDraft::create_files(const NamedTensors& model, const NamedTensors& optimizer,
                                           int64_t more_bytes) {
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsPlan model_plan, plan_safetensors(model, {}));
  TRAINKIT_ASSIGN_OR_RETURN(const SafetensorsPlan optimizer_plan, plan_safetensors(optimizer, {}));
  const int64_t bytes = file_bytes(model_plan) + file_bytes(optimizer_plan) + more_bytes;
  TRAINKIT_ASSIGN_OR_RETURN(needed_, store_.check_space(step_, bytes, state_));
  is_removed_ = false;
  const auto create = [&]() -> absl::Status {
    TRAINKIT_RETURN_IF_ERROR(store_.folder.create_directory(name_));
    TRAINKIT_ASSIGN_OR_RETURN(const Directory folder, open());
    TRAINKIT_RETURN_IF_ERROR(create_tensor_file(folder, kModelFile, model_plan));
    return create_tensor_file(folder, kOptimizerFile, optimizer_plan);
  };
  absl::Status created = create();
  if (created.ok()) return created;
  is_removed_ = true;
  return store_.finish(name_, step_, needed_, created);  // removes the folder
}

CheckpointDraft::~CheckpointDraft() {
  if (!is_removed_) store_.folder.remove_tree(name_).IgnoreError();
}

std::string CheckpointDraft::path() const { return store_.folder.path() + "/" + name_; }

absl::StatusOr<Directory> CheckpointDraft::open() const { return store_.folder.open_directory(name_); }

absl::Status CheckpointDraft::write_rest(std::map<std::string, FileRecord> files) const {
  TRAINKIT_ASSIGN_OR_RETURN(const Directory folder, open());
  TRAINKIT_ASSIGN_OR_RETURN(files[kStateFile], write_text(folder, kStateFile, state_));
  const std::string manifest = manifest_to_json({.step = step_, .library = {}, .files = std::move(files)});
  TRAINKIT_RETURN_IF_ERROR(write_text(folder, kManifestFile, manifest).status());
  return folder.sync();
}

absl::Status CheckpointDraft::commit(std::map<std::string, FileRecord> files) {
  is_removed_ = true;
  return store_.finish(name_, step_, needed_, write_rest(std::move(files)));
}

}  // namespace trainkit::detail
