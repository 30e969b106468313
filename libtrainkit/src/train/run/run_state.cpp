#include "train/run/run_state.h"

#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>
#include <c10/core/CachingDeviceAllocator.h>
#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <map>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <variant>

#include "distributed/group/gather_bytes.h"
#include "io/weights/stored_tensors.h"
#include "optim/optimizer_parts.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_state.h"
#include "train/checkpoint/generators.h"
#include "train/divided/sharded_state.h"
#include "trainkit/core/error.h"
#include "trainkit/core/format.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/data/prefetcher.h"
#include "trainkit/train/weights.h"

namespace trainkit {
namespace {

constexpr const char* kScaler = "scaler";
constexpr const char* kSource = "loader";
constexpr const char* kFileRanks = "source_files.ranks";

/// Whether the state of the source is the same on all ranks.
bool has_common_state(const RunParts& parts) { return dynamic_cast<const Prefetcher*>(parts.source) != nullptr; }

/// Reads the counters of a checkpoint and checks that they belong to its step.
absl::StatusOr<RunProgress> load_progress(const CheckpointContents& contents, const CheckpointPath& found) {
  TRAINKIT_ASSIGN_OR_RETURN(RunProgress progress, trainkit::load_progress(sub_state(contents.state, "trainer")));
  if (progress.step == found.step) return progress;
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "ckpt.state",
                    .where = found.path() + "/state.json",
                    .field = "trainer.step",
                    .problem = "belongs to another step",
                    .got = std::to_string(progress.step),
                    .expected = std::to_string(found.step)});
}

StateDict shape_state(const RunShape& shape) {
  return {{"global_batch_size", shape.global_batch_size}, {"replicas", shape.replicas}};
}

/// Gathers the trained rows of each rank: {"digests", "counts"}, one number per rank.
absl::StatusOr<StateDict> gather_rows(ProcessGroup* group, const RowTrace& rows) {
  std::vector<int64_t> digests = {static_cast<int64_t>(rows.digest)}, counts = {rows.count};
  if (group) {
    const at::Tensor mine = at::tensor({digests[0], counts[0]}, at::kLong);
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor bytes, detail::gather_bytes(*group, mine.view(at::kByte), "rows"));
    const at::Tensor all = bytes.view(at::kLong);
    digests.resize(static_cast<size_t>(group->world_size()));
    counts.resize(digests.size());
    for (size_t rank = 0; rank < digests.size(); ++rank) {
      digests[rank] = all[static_cast<int64_t>(rank)][0].item<int64_t>();
      counts[rank] = all[static_cast<int64_t>(rank)][1].item<int64_t>();
    }
  }
  return StateDict{{"digests", std::move(digests)}, {"counts", std::move(counts)}};
}

/// Reads the digest of this rank. On another number of ranks it is a digest of all earlier digests. Empty if the
/// checkpoint has none.
RowTrace load_rows(const StateDict& state, int64_t rank, int64_t ranks) {
  const auto digests = get_state<std::vector<int64_t>>(state, "digests");
  const auto counts = get_state<std::vector<int64_t>>(state, "counts");
  if (!digests.ok() || !counts.ok() || digests->size() != counts->size()) return {};
  if (static_cast<int64_t>(digests->size()) == ranks) {
    const auto own = static_cast<size_t>(rank);
    return {.digest = static_cast<uint64_t>((*digests)[own]), .count = (*counts)[own]};
  }
  RowTrace before;
  before.add(*digests);
  before.count = 0;
  for (const int64_t count : *counts) before.count += count;
  return before;
}

/// Checks that a run on another number of devices keeps the rows per step; otherwise it would be a different run.
absl::Status check_shape(const RunShape& saved, const RunShape& now) {
  if (saved.replicas == 0 || saved.replicas == now.replicas || saved.global_batch_size == now.global_batch_size) {
    return absl::OkStatus();
  }
  return to_status(
      {.exit_code = ExitCode::kDistributed,
       .id = "dist.batch",
       .field = "global_batch_size",
       .problem = fmt::format("the run had {} rows per step on {} devices", saved.global_batch_size, saved.replicas),
       .got = fmt::format("{} on {} devices", now.global_batch_size, now.replicas),
       .expected = std::to_string(saved.global_batch_size),
       .hint = "choose batch_size and grad_accum_steps so that batch_size x devices x grad_accum_steps "
               "is unchanged"},
      absl::StatusCode::kInvalidArgument);
}

// Note [Averages in a checkpoint]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// With an average of the weights model.safetensors contains the averages, so that everything that uses a checkpoint
// (--init_from, Predictor, export, Python) gets them. The trained weights, from which only a resumed run continues, are
// in optimizer.safetensors as "live.<name>". A run resumed without averages takes these; a run resumed with averages
// from a checkpoint without them starts to average there.

/// Replaces the weights in `model` by the averages, and adds the weights to `others` under "live.".
void put_averages(const NamedTensors& averages, NamedTensors& model, NamedTensors& others) {
  std::unordered_map<std::string_view, at::Tensor*> weights;
  for (auto& [name, tensor] : model) weights.emplace(name, &tensor);
  for (const auto& [name, average] : averages) {
    const auto weight = weights.find(name);
    TORCH_CHECK(weight != weights.end(), "parameter '", name, "' of the optimizer is not in the model");
    others.emplace_back(detail::live_name(name), std::exchange(*weight->second, average));
  }
}

/// Loads the averages and the weights, see Note [Averages in a checkpoint]. `live` are the trained weights.
absl::Status load_weights_and_averages(const NamedTensors& saved, const std::map<std::string, at::Tensor>& live,
                                       detail::StoredTensors& stored, const std::string& path, const RunParts& parts) {
  torch::nn::Module& module = *parts.devices.module();
  TRAINKIT_RETURN_IF_ERROR(stored.copy_all(saved, named_tensors(module), path));
  const at::NoGradGuard no_grad;
  std::map<std::string, at::Tensor> weights;
  for (const auto& [name, tensor] : named_tensors(module)) weights[name] = tensor;
  for (const detail::ShardedCopy& copy : parts.copies) {
    detail::load_averages(copy.averages, weights, *copy.optimizer, *copy.shards);
  }
  for (const auto& [name, average] : parts.copies.empty() ? parts.averages : NamedTensors()) {
    at::Tensor(average).copy_(weights.at(name));
  }
  if (live.empty()) return absl::OkStatus();
  NamedTensors trained = saved;
  for (auto& [name, tensor] : trained) {
    if (const auto found = live.find(name); found != live.end()) tensor = found->second;
  }
  return stored.copy_all(trained, named_tensors(module), path);
}

/// Sets the initial learning rate after a checkpoint without one was loaded. `own` is the rate of the flags: a lower
/// base may be that of a plateau.
void set_initial_lr_of_older(const RunParts::Player& player, double own) {
  const double now = player.optimizer.lr(), base = player.scheduler ? player.scheduler->base_lr() : now;
  if (player.scheduler && player.scheduler->has_plateau() && base < own) return;
  player.optimizer.set_lr(base);
  detail::OptimizerParts::of(player.optimizer).rates.set(now);
}

/// A component of a run, and its section of state.json.
struct StateSection {
  std::string name;
  bool rolls_back;      // with the weights; the position in the data does not
  bool may_be_missing;  // the scaler's: of a run that was not in fp16
  std::function<StateDict()> state_dict;
  std::function<absl::Status(const StateDict&)> load_state_dict;
};

template <class T>
StateSection section_of(std::string name, T& component, bool rolls_back, bool may_be_missing = false) {
  return {.name = std::move(name),
          .rolls_back = rolls_back,
          .may_be_missing = may_be_missing,
          .state_dict = [&component] { return component.state_dict(); },
          .load_state_dict = [&component](const StateDict& state) { return component.load_state_dict(state); }};
}

/// The components whose state is in state.json alone. The optimizer's tensors are in a file of their own.
std::vector<StateSection> sections_of(const RunParts& parts) {
  std::vector<StateSection> sections;
  for (const RunParts::Player& player : parts.players) {
    if (!player.scheduler) continue;
    sections.push_back(section_of(player.entry("scheduler"), *player.scheduler, /*rolls_back=*/true));
  }
  sections.push_back(section_of(kScaler, parts.scaler, /*rolls_back=*/true, /*may_be_missing=*/true));
  if (parts.source && has_common_state(parts)) {
    sections.push_back(section_of(kSource, *parts.source, /*rolls_back=*/false));
  }
  return sections;
}

// Note [State of each rank]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// The position of a Prefetcher is the same on all ranks, so the first rank's is saved, in "loader". The state of other
// sources (a queue with batches that wait) and of the program's objects (FitOptions::state) differs: "own.<rank>"
// contains that of each rank as it is in a state.json. A rank that the run did not have starts with objects as they
// are; states of ranks that no longer exist are ignored.

/// Returns the state of this rank's source, unless all ranks share it, and of the program's objects.
StateDict own_state(const RunParts& parts) {
  StateDict state;
  if (parts.source && !has_common_state(parts)) merge_state(state, kSource, parts.source->state_dict());
  for (const NamedState& other : parts.others) merge_state(state, "state." + other.name, other.state_dict());
  return state;
}

bool has_own_state(const RunParts& parts) {
  return !parts.others.empty() || (parts.source && !has_common_state(parts));
}

/// Collects own_state() of all ranks, each of which must call it.
absl::StatusOr<StateDict> collect_own_states(const RunParts& parts) {
  if (!has_own_state(parts)) return StateDict();
  TRAINKIT_ASSIGN_OR_RETURN(std::string own, detail::state_to_json(own_state(parts)));
  std::vector<std::string> all = {std::move(own)};
  if (ProcessGroup* group = parts.devices.process_group()) {
    TRAINKIT_ASSIGN_OR_RETURN(all, detail::gather_texts(*group, all.front(), "the state of the ranks"));
  }
  StateDict state;
  for (size_t rank = 0; rank < all.size(); ++rank) state[fmt::format("own.{}", rank)] = std::move(all[rank]);
  return state;
}

// Note [Files of a source]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A source with data too large for state.json gives files (BatchSource::files). Rank r's are "source-<r>.<name>", so a
// run on another number of ranks cannot take them: it is refused. "source_files.ranks" is the number of ranks of a
// checkpoint with such files. The background save writes them, see RanksWriter.

/// Returns the files of this rank's source, and in `bytes` those of all ranks, each of which must call it.
absl::StatusOr<std::vector<PendingFile>> collect_files(const RunParts& parts, int64_t& bytes) {
  bytes = 0;
  if (!parts.source || has_common_state(parts)) return std::vector<PendingFile>();
  std::vector<PendingFile> files = parts.source->files();
  ProcessGroup* group = parts.devices.process_group();
  for (PendingFile& file : files) {
    file.name = detail::source_file_name(group ? group->rank() : 0, file.name);
    bytes += file.bytes;
  }
  if (!group) return files;
  const at::Tensor own = at::tensor({bytes}, at::kLong);
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor all, detail::gather_bytes(*group, own.view(at::kByte), "sizes of files"));
  bytes = all.view(at::kLong).sum().item<int64_t>();
  return files;
}

/// Returns an error of exit code 8 if the checkpoint has files of another number of ranks.
absl::Status check_ranks_of_files(const StateDict& saved, int64_t ranks) {
  const auto were = get_state<int64_t>(saved, kFileRanks);
  if (!were.ok() || *were == ranks) return absl::OkStatus();
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "ckpt.source",
                    .problem = "the checkpoint has data of each rank, which only as many ranks can continue with",
                    .got = fmt::format("{} ranks", ranks),
                    .expected = std::to_string(*were)},
                   absl::StatusCode::kInvalidArgument);
}

/// Gives the files of this rank to its source.
absl::Status load_files(const CheckpointPath& found, const RunParts& parts) {
  const ProcessGroup* group = parts.devices.process_group();
  TRAINKIT_ASSIGN_OR_RETURN(const auto files, detail::open_source_files(found, group ? group->rank() : 0));
  return parts.source->load_files(files);
}

/// Restores own_state() of this rank.
absl::Status load_own_state(const StateDict& saved, const RunParts& parts, const CheckpointPath& found) {
  if (!has_own_state(parts)) return absl::OkStatus();
  const ProcessGroup* group = parts.devices.process_group();
  const std::string name = fmt::format("own.{}", group ? group->rank() : 0);
  if (!saved.contains(name)) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, get_state<std::string>(saved, name));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict own, detail::state_from_json(text, found.path() + "/state.json " + name));
  if (parts.source && !has_common_state(parts)) {
    TRAINKIT_RETURN_IF_ERROR(parts.source->load_state_dict(sub_state(own, kSource)));
    TRAINKIT_RETURN_IF_ERROR(load_files(found, parts));
  }
  for (const NamedState& other : parts.others) {
    const absl::Status loaded = other.load_state_dict(sub_state(own, "state." + other.name));
    if (!loaded.ok()) return annotate(loaded, other.name);
  }
  return absl::OkStatus();
}

/// Loads the components that roll back, or the other ones.
absl::Status load_sections(const StateDict& state, const RunParts& parts, bool rolls_back) {
  for (const StateSection& section : sections_of(parts)) {
    if (section.rolls_back != rolls_back) continue;
    const StateDict own = sub_state(state, section.name);
    if (own.empty() && section.may_be_missing) continue;
    TRAINKIT_RETURN_IF_ERROR(section.load_state_dict(own));
  }
  return absl::OkStatus();
}

absl::Status of_other_players(const std::string& name, const std::string& path) {
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "ckpt.state",
                    .where = path + "/optimizer.safetensors",
                    .field = name,
                    .problem = "belongs to no player of this run",
                    .hint = "resume with the players of the run, or start a new run from its weights"});
}

/// Loads weights, optimizers, schedules and scaler. Reads the tensors of `contents`, which `stored` has listed, where
/// they are copied. Only copies with parts of the optimizer's state need all of it in memory.
absl::Status load_model(CheckpointContents& contents, detail::StoredTensors& stored, const CheckpointPath& found,
                        const RunParts& parts) {
  if (!parts.copies.empty()) TRAINKIT_RETURN_IF_ERROR(stored.read_all(contents.optimizer));
  std::map<std::string, at::Tensor> live;
  std::vector<StateDict> states;  // of the optimizers
  for (const RunParts::Player& player : parts.players) {
    states.push_back(sub_state(contents.state, player.entry("optimizer")));
  }
  for (const auto& [name, tensor] : contents.optimizer) {
    if (name.starts_with(detail::kLivePrefix)) {
      live[name.substr(detail::kLivePrefix.size())] = tensor;
      continue;
    }
    size_t owner = 0;
    while (owner < states.size() && !name.starts_with(parts.players[owner].entry(""))) ++owner;
    if (owner == states.size()) return of_other_players(name, found.path());
    states[owner][name.substr(parts.players[owner].entry("").size())] = tensor;
  }
  TRAINKIT_RETURN_IF_ERROR(
      load_weights_and_averages(contents.model, live, stored, found.path() + "/model.safetensors", parts));
  for (const detail::ShardedCopy& copy : parts.copies) {
    TRAINKIT_RETURN_IF_ERROR(
        copy.optimizer->load_state_dict(detail::parts_of_state(states.front(), *copy.optimizer, *copy.shards)));
  }
  std::vector<double> own_lrs;
  std::vector<bool> have_initial_lr;
  for (size_t i = 0; i < states.size(); ++i) {
    Optimizer& optimizer = parts.players[i].optimizer;
    own_lrs.push_back(optimizer.initial_lr());
    have_initial_lr.push_back(states[i].contains("initial_lr"));
    if (!parts.copies.empty()) continue;
    TRAINKIT_RETURN_IF_ERROR(detail::OptimizerParts::load(
        optimizer, std::move(states[i]),
        {.read = [&](const at::Tensor& tensor) { return stored.read(tensor); },
         .copy = [&](const at::Tensor& from, const at::Tensor& to) { return stored.copy(from, to); }}));
  }
  TRAINKIT_RETURN_IF_ERROR(load_sections(contents.state, parts, /*rolls_back=*/true));
  for (size_t i = 0; i < own_lrs.size(); ++i) {
    if (!have_initial_lr[i]) set_initial_lr_of_older(parts.players[i], own_lrs[i]);
  }
  return absl::OkStatus();
}

/// Explains why the run will differ from an uninterrupted one; empty if it will not.
std::string resume_warning(const StateDict& saved, const RunParts& parts, const RunShape& shape) {
  std::string text;
  const std::string was = detail::kind_of_device(saved), is = parts.devices.device().is_cpu() ? "cpu" : "cuda";
  const int64_t replicas = saved_shape(saved).replicas;
  if (was != is || (replicas > 0 && replicas != shape.replicas)) {
    text = fmt::format(
        "the checkpoint was written on {} x {}, and the run continues on {} x {}: random numbers (dropout) differ from "
        "those of an uninterrupted run",
        std::max<int64_t>(replicas, 1), was, shape.replicas, is);
  }
  if (const int64_t rows = saved_shape(saved).global_batch_size; rows > 0 && rows != shape.global_batch_size) {
    text += fmt::format(
        "{}the checkpoint was written with {} rows per step, and the run continues with {}: it differs from an "
        "uninterrupted one",
        text.empty() ? "" : "; ", rows, shape.global_batch_size);
  }
  if (parts.scaler.enabled() && sub_state(saved, kScaler).empty()) {
    text += fmt::format(
        "{}the checkpoint has no loss scale, as its run was not in fp16: the scale starts from its initial value",
        text.empty() ? "" : "; ");
  }
  return text;
}

}  // namespace

std::string RunParts::Player::entry(std::string_view key) const {
  return name.empty() ? std::string(key) : fmt::format("players.{}.{}", name, key);
}

void RowTrace::add(std::span<const int64_t> rows) {
  for (const int64_t row : rows) digest = hash_key(digest, row);
  count += static_cast<int64_t>(rows.size());
}

RunShape saved_shape(const StateDict& state) {
  const auto global = get_state<int64_t>(state, "shape.global_batch_size");
  const auto replicas = get_state<int64_t>(state, "shape.replicas");
  return global.ok() && replicas.ok() ? RunShape{*global, *replicas} : RunShape{};
}

absl::StatusOr<CheckpointContents> collect_run(const RunParts& parts, const RunProgress& progress,
                                               const RunShape& shape, const StateDict& config, int64_t* file_bytes) {
  CheckpointContents contents;
  TRAINKIT_ASSIGN_OR_RETURN(contents.state, detail::collect_generators(parts.devices));
  TRAINKIT_ASSIGN_OR_RETURN(const StateDict rows, gather_rows(parts.devices.process_group(), progress.rows));
  TRAINKIT_ASSIGN_OR_RETURN(StateDict own, collect_own_states(parts));
  int64_t bytes = 0;
  TRAINKIT_ASSIGN_OR_RETURN(contents.files, collect_files(parts, bytes));
  if (file_bytes) *file_bytes = bytes;
  const bool is_first = !parts.devices.process_group() || parts.devices.process_group()->rank() == 0;
  if (!is_first && !parts.devices.shards()) return contents;  // only the first rank writes
  contents.model = named_tensors(*parts.devices.module());
  put_averages(parts.averages, contents.model, contents.optimizer);
  // The optimizer's tensors go to their own file, its scalars to the state.
  for (const RunParts::Player& player : parts.players) {
    const std::string scalars = player.entry("optimizer.");
    for (auto& [name, value] : player.optimizer.state_dict()) {
      if (const at::Tensor* tensor = std::get_if<at::Tensor>(&value)) {
        contents.optimizer.emplace_back(player.entry(name), *tensor);
      } else {
        contents.state[scalars + name] = value;
      }
    }
    // With a table on the GPU the optimizer does not have the current value.
    if (player.scheduler) contents.state[scalars + "lr"] = player.scheduler->lr();
  }
  if (!is_first) return contents;
  for (const StateSection& section : sections_of(parts)) {
    merge_state(contents.state, section.name, section.state_dict());
  }
  merge_state(contents.state, "trainer", progress_state(progress));
  merge_state(contents.state, "rows", rows);
  merge_state(contents.state, "shape", shape_state(shape));
  merge_state(contents.state, "config", config);
  contents.state.merge(own);
  if (bytes > 0) {
    const ProcessGroup* group = parts.devices.process_group();
    contents.state[kFileRanks] = group ? group->world_size() : int64_t{1};
  }
  return contents;
}

absl::Status roll_back_run(const std::string& output_dir, const RunParts& parts, RunProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath found, resolve_checkpoint("latest", output_dir));
  detail::StoredTensors stored;
  TRAINKIT_ASSIGN_OR_RETURN(CheckpointContents contents, detail::list_checkpoint(found, stored));
  TRAINKIT_ASSIGN_OR_RETURN(RunProgress loaded, load_progress(contents, found));
  TRAINKIT_RETURN_IF_ERROR(load_model(contents, stored, found, parts));
  loaded.rows = progress.rows;
  progress = std::move(loaded);
  return absl::OkStatus();
}

// Note [Order of a resume]
// ~~~~~~~~~~~~~~~~~~~~~~~~
// A resumed run must be bitwise identical to an uninterrupted one, and a rejected resume must change nothing on disk.
// resume_run() only reads the checkpoint. It checks the shape first, then loads the model (checked in full before any
// tensor is changed), then the loader's position, then the generators. The generators come last because loading must
// not draw from them afterwards. `progress` is assigned at the very end, so a failed resume leaves the counters as they
// were.

absl::StatusOr<std::string> resume_run(const std::string& spec, const std::string& output_dir, const RunParts& parts,
                                       const RunShape& shape, RunProgress& progress) {
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath found, resolve_checkpoint(spec, output_dir));
  detail::StoredTensors stored;
  TRAINKIT_ASSIGN_OR_RETURN(CheckpointContents contents, detail::list_checkpoint(found, stored));
  TRAINKIT_RETURN_IF_ERROR(check_shape(saved_shape(contents.state), shape));
  const int64_t rank = parts.devices.process_group() ? parts.devices.process_group()->rank() : 0;
  const int64_t ranks = parts.devices.process_group() ? parts.devices.process_group()->world_size() : 1;
  TRAINKIT_RETURN_IF_ERROR(check_ranks_of_files(contents.state, ranks));
  TRAINKIT_ASSIGN_OR_RETURN(RunProgress loaded, load_progress(contents, found));
  TRAINKIT_RETURN_IF_ERROR(load_model(contents, stored, found, parts));
  TRAINKIT_RETURN_IF_ERROR(load_sections(contents.state, parts, /*rolls_back=*/false));
  TRAINKIT_RETURN_IF_ERROR(load_own_state(contents.state, parts, found));
  loaded.rows = load_rows(sub_state(contents.state, "rows"), rank, ranks);
  TRAINKIT_RETURN_IF_ERROR(detail::load_generators(contents.state, parts.devices, hash_key(parts.seed, loaded.step)));
  progress = std::move(loaded);
  return resume_warning(contents.state, parts, shape);
}

AllocatorUse allocator_use(at::Device gpu) {
  const auto stats = at::getDeviceAllocator(gpu.type())->getDeviceStats(std::max<c10::DeviceIndex>(gpu.index(), 0));
  return {.allocated_bytes = stats.allocated_bytes[0].current,
          .reserved_bytes = stats.reserved_bytes[0].current,
          .retries = stats.num_alloc_retries};
}

std::vector<AllocatorUse> allocator_use(const DeviceReplicator& devices) {
  std::vector<AllocatorUse> all;
  for (int64_t replica = 0; replica < devices.replicas(); ++replica) {
    if (!devices.device(replica).is_cpu()) all.push_back(allocator_use(devices.device(replica)));
  }
  return all;
}

int64_t total_memory_bytes(at::Device gpu) {
  return static_cast<int64_t>(at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(gpu.index(), 0)).second);
}

std::string describe_memory(const AllocatorUse& use, int64_t total_bytes) {
  return fmt::format("{} allocated, {} reserved, {} total", format_size(use.allocated_bytes),
                     format_size(use.reserved_bytes), format_size(total_bytes));
}

absl::StatusOr<std::string> describe_gpu_memory(const DeviceReplicator& devices, ProcessGroup* group) {
  std::vector<int64_t> numbers;
  for (int64_t i = 0; i < devices.replicas() && !devices.device(i).is_cpu(); ++i) {
    const AllocatorUse use = allocator_use(devices.device(i));
    numbers.insert(numbers.end(), {use.allocated_bytes, use.reserved_bytes, total_memory_bytes(devices.device(i))});
  }
  if (numbers.empty()) return std::string();
  at::Tensor all = at::tensor(numbers, at::kLong);
  if (group) {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor bytes,
                              detail::gather_bytes(*group, all.view(at::kByte), "memory of the GPUs"));
    all = bytes.view(at::kLong);
  }
  all = all.view({-1, 3});
  std::string text = "GPU memory:";
  for (int64_t i = 0; i < all.size(0); ++i) {
    const auto number = [&](int64_t k) { return all[i][k].item<int64_t>(); };
    text += fmt::format("{} {} {}", i > 0 ? ";" : "", group ? fmt::format("rank {}", i) : devices.device(i).str(),
                        describe_memory({.allocated_bytes = number(0), .reserved_bytes = number(1)}, number(2)));
  }
  return text;
}

absl::Status gather_gpus(ProcessGroup& group, std::vector<int64_t>& memory_bytes, std::vector<double>& utilisation) {
  const double share = utilisation.empty() ? -1 : utilisation.front();
  const at::Tensor mine = at::tensor({static_cast<double>(memory_bytes.front()), share}, at::kDouble);
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor bytes,
                            detail::gather_bytes(group, mine.view(at::kByte), "GPUs of the ranks"));
  const at::Tensor all = bytes.view(at::kDouble);
  memory_bytes.clear();
  utilisation.clear();
  bool is_known = false;
  for (int64_t rank = 0; rank < all.size(0); ++rank) {
    memory_bytes.push_back(static_cast<int64_t>(all[rank][0].item<double>()));
    utilisation.push_back(all[rank][1].item<double>());
    is_known |= utilisation.back() >= 0;
  }
  if (!is_known) utilisation.clear();
  return absl::OkStatus();
}

std::vector<int64_t> device_memory_bytes(const DeviceReplicator& devices) {
  std::vector<int64_t> bytes;
  for (const AllocatorUse& use : allocator_use(devices)) bytes.push_back(use.allocated_bytes);
  return bytes;
}

}  // namespace trainkit
