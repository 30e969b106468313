#include "emotion_recognition/session.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <vector>

#include "trainkit/core/error.h"
#include "trainkit/core/processors.h"
#include "trainkit/core/state_dict.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/optim/adam.h"
#include "trainkit/tasks/classification.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

namespace trainkit::emotion {
namespace {

absl::StatusOr<ClipList> read_split(const RunOptions& run, const EmotionOptions& options, const std::string& split,
                                    const std::string& csv, const std::vector<std::string>& labels) {
  SplitFiles files{csv, options.clip_dir.empty() ? run.data_dir : options.clip_dir};
  if (options.dataset != "csv") {
    TRAINKIT_ASSIGN_OR_RETURN(files, find_split(run.data_dir, split));
  }
  TRAINKIT_ASSIGN_OR_RETURN(ClipList list, read_clips(files, clip_columns(options), labels));
  TRAINKIT_RETURN_IF_ERROR(check_absent(list, options.max_missing_share));
  return list;
}

std::string describe_list(const char* name, const ClipDataset& dataset) {
  const ClipList& list = dataset.list();
  std::string text = fmt::format("{} {}", name, list.size());
  if (list.missing > 0) text += fmt::format(" ({} without a file)", list.missing);
  return text;
}

/// Rows of zeros with the shapes of clips, for a plan without data.
class PlannedRows final : public Dataset {
 public:
  explicit PlannedRows(std::shared_ptr<const ClipDataset> clips) : clips_(std::move(clips)) {}
  int64_t size() const override { return clips_->size(); }
  const std::vector<FieldSpec>& fields() const override { return clips_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    for (size_t field = 0; field < out.num_fields(); ++field) {
      std::fill_n(out.row(field, at), out.row_bytes(field), std::byte{0});
    }
    *out.row<int64_t>(out.num_fields() - 1, at) = clips_->list().clips[static_cast<size_t>(key.index)].label;
  }

 private:
  std::shared_ptr<const ClipDataset> clips_;
};

ClipList planned_list(int64_t clips) {
  ClipList list{.csv = "--plan_data", .folder = ".", .labels = meld_emotions(), .clips = {}};
  for (int64_t i = 0; i < clips; ++i) list.clips.push_back({"clip", i % std::ssize(list.labels), i + 2});
  return list;
}

/// WeightFile::left_out_note(). Errors are reported when the model is made.
std::string names_left_out(const std::string& path) {
  const auto file = WeightFile::open(path);
  return file.ok() ? file->left_out_note() : "";
}

/// Loads weights of ResNet18. Only its last layer ("fc.") may differ.
absl::Status load_visual_weights(ResNet18& backbone, const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const LoadedWeights loaded, load_weights(*backbone, path, {.partial = true}));
  for (const auto* names : {&loaded.missing, &loaded.unexpected, &loaded.misshapen}) {
    for (const std::string& name : *names) {
      if (name.starts_with("fc.")) continue;
      return to_status({.exit_code = ExitCode::kWeights,
                        .id = "weights.match",
                        .where = path,
                        .field = name,
                        .problem = "not the weights of a ResNet18",
                        .expected = "torchvision's names and shapes"});
    }
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<Session> Session::open(const RunOptions& run, const EmotionOptions& options, int64_t fold) {
  if (options.plan_data > 0) {
    auto planned = std::make_shared<ClipDataset>(planned_list(options.plan_data), dataset_options(options));
    Session session(options, planned, nullptr, nullptr);
    session.rows_[0] = std::make_shared<PlannedRows>(std::move(planned));
    return session;
  }
  TRAINKIT_RETURN_IF_ERROR(load_media_libraries());
  if (options.folds > 0) return open_fold(run, options, fold);
  const bool meld = options.dataset == "MELD";
  const auto& names = meld ? meld_emotions() : std::vector<std::string>{};
  TRAINKIT_ASSIGN_OR_RETURN(ClipList train, read_split(run, options, "train", options.train_csv, names));
  const std::vector<std::string> labels = train.labels;
  const ClipDatasetOptions dataset = dataset_options(options);
  std::shared_ptr<const ClipDataset> parts[2];
  const std::pair<const char*, const std::string&> others[] = {{"dev", options.val_csv}, {"test", options.test_csv}};
  for (size_t i = 0; i < 2; ++i) {
    if (!meld && others[i].second.empty()) continue;
    TRAINKIT_ASSIGN_OR_RETURN(ClipList list, read_split(run, options, others[i].first, others[i].second, labels));
    TRAINKIT_RETURN_IF_ERROR(check_disjoint(train, list));
    if (parts[0]) TRAINKIT_RETURN_IF_ERROR(check_disjoint(parts[0]->list(), list));
    parts[i] = std::make_shared<ClipDataset>(std::move(list), dataset);
  }
  auto trained = std::make_shared<ClipDataset>(std::move(train), dataset);
  return Session(options, std::move(trained), std::move(parts[0]), std::move(parts[1]));
}

absl::StatusOr<Session> Session::open_fold(const RunOptions& run, const EmotionOptions& options, int64_t fold) {
  const auto& names = options.dataset == "MELD" ? meld_emotions() : std::vector<std::string>{};
  TRAINKIT_ASSIGN_OR_RETURN(ClipList table, read_split(run, options, "train", options.train_csv, names));
  std::vector<std::string> groups;
  for (const Clip& clip : table.clips) groups.push_back(clip.group);
  TRAINKIT_ASSIGN_OR_RETURN(const auto folds, group_folds(groups, options.folds, run.seed, table.csv));
  const FoldRows rows = rows_of_fold(folds, options.folds, fold);
  const ClipDatasetOptions dataset = dataset_options(options);
  const auto part = [&](const std::vector<int64_t>& some) {
    return std::make_shared<ClipDataset>(select(table, some), dataset);
  };
  Session session(options, part(rows.train), part(rows.validation), part(rows.test));
  session.table_ = std::make_shared<ClipDataset>(std::move(table), dataset);
  session.fold_rows_ = rows;
  session.fold_ = fold;
  return session;
}

std::vector<ClipPart> Session::cached_parts() const {
  return table_ ? std::vector<ClipPart>{{"folds", table_}} : parts();
}

std::vector<ClipPart> Session::parts() const {
  std::vector<ClipPart> parts = {{"train", train_}};
  if (validation_) parts.push_back({"validation", validation_});
  if (test_) parts.push_back({"test", test_});
  return parts;
}

RowCacheOptions Session::cache_options() const {
  return {.folder = options_.cache_dir,
          .num_threads = available_cpus(),
          .is_lasting = is_lasting,
          .noun = "clips",
          .hint = "use fewer --frames or a smaller --image_size, or decode in each epoch without --cache_dir"};
}

RunFacts Session::describe_cache() const {
  if (options_.cache_dir.empty()) return {};
  return {{"cache", describe_row_cache(to_cache(cached_parts()), cache_options())}};
}

absl::StatusOr<int> Session::fill_cache(const MachineInfo& machine, const Placement& placement,
                                        const std::function<void(const std::string&)>& say) {
  if (options_.cache_dir.empty()) return 0;
  const SignalWatch signals;
  RowCacheOptions options = cache_options();
  options.first = machine.local_rank == 0;
  options.barrier = [&] { return placement.group ? placement.group->barrier("cache") : absl::OkStatus(); };
  options.say = say;
  options.stop = [] { return SignalWatch::stop_signal() != 0; };
  const auto cached = cache_rows(to_cache(cached_parts()), options);
  if (absl::IsCancelled(cached.status())) return 128 + SignalWatch::stop_signal();
  TRAINKIT_RETURN_IF_ERROR(cached.status());
  if (table_) {
    const std::vector<int64_t>* const own[] = {&fold_rows_.train, &fold_rows_.validation, &fold_rows_.test};
    for (size_t i = 0; i < rows_.size(); ++i) rows_[i] = std::make_shared<Subset>(cached->front(), *own[i]);
    return 0;
  }
  size_t i = 0;
  for (auto& rows : rows_) {
    if (rows) rows = (*cached)[i++];
  }
  return 0;
}

std::shared_ptr<EmotionModel> Session::create_model() const {
  auto model = std::make_shared<EmotionModel>(model_options(options_, static_cast<int64_t>(labels().size())));
  if (!options_.visual_weights.empty() && model->visual()) {
    ResNet18 backbone = model->visual()->backbone();
    const absl::Status loaded = load_visual_weights(backbone, options_.visual_weights);
    if (!loaded.ok()) throw absl::BadStatusOrAccess(loaded);
  }
  return model;
}

std::shared_ptr<Task> Session::task() const {
  ClassificationOptions options{
      .labels = labels(),
      .label_field = "label",
      .training_counts = train_->list().counts(),
      .weight_classes = options_.class_weights,
      .label_smoothing = options_.label_smoothing,
      .monitor = "weighted_f1",
      .scores = {{"accuracy", "accuracy"},
                 {"weighted_f1", "weighted F1"},
                 {"macro_f1", "macro F1"},
                 {"majority", "always the most frequent label:", ScoreName::Kind::kPercent, /*aside=*/true},
                 {"unreadable", "unreadable clips:", ScoreName::Kind::kCount, /*aside=*/true}},
      .validation_scores = {"weighted_f1", "macro_f1"},
      .row_word = "clip",
      .class_word = "label",
      .title = "Emotions in the test clips"};
  if (test_) {
    options.row_name = [test = test_](int64_t row) {
      const ClipList& list = test->list();
      return std::filesystem::path(list.clips[static_cast<size_t>(row)].path).lexically_relative(list.folder).string();
    };
    options.label_of = [test = test_](int64_t row) { return test->list().clips[static_cast<size_t>(row)].label; };
    options.absent = test_->list().absent();
  }
  return classification(class_scores, std::move(options));
}

StepRecipe Session::recipe() const {
  // The plan uses the kit's AdamW: the parameter groups of make_optimizer() do not change the size of its state.
  StepRecipe recipe{.make_model = [this] { return create_model(); },
                    .loss = task()->training_loss(),
                    .dataset = options_.plan_data > 0 ? rows_[0] : train_};
  const auto& sizes = model_sizes();
  for (auto size = std::find(sizes.begin(), sizes.end(), options_.model.size); size != sizes.begin();) {
    Session other = *this;
    other.options_.model.size = *--size;
    recipe.smaller.emplace_back("--model_size " + *size, [other](StepRecipe& smaller) {
      smaller.make_model = [other] { return other.create_model(); };
    });
  }
  if (modality_of(options_) == Modality::kAudio) return recipe;
  const auto with_rows = [&](const std::string& flag, const ClipDatasetOptions& rows) {
    recipe.smaller.emplace_back(flag, [this, rows](StepRecipe& smaller) {
      auto clips = std::make_shared<const ClipDataset>(train_->list(), rows);
      smaller.dataset = clips;
      if (options_.plan_data > 0) smaller.dataset = std::make_shared<PlannedRows>(std::move(clips));
    });
  };
  ClipDatasetOptions fewer = train_->options(), smaller = train_->options();
  fewer.frames /= 2;
  if (fewer.frames >= 1) with_rows(fmt::format("--frames {}", fewer.frames), fewer);
  smaller.image_size = smaller.image_size * 3 / 4 / 32 * 32;  // ResNet18 halves its images five times
  if (smaller.image_size >= 32) with_rows(fmt::format("--image_size {}", smaller.image_size), smaller);
  return recipe;
}

RunFacts Session::describe(const RunOptions& run) const {
  std::string clips = describe_list("train", *train_);
  if (validation_) clips += ", " + describe_list("validation", *validation_);
  if (test_) clips += ", " + describe_list("test", *test_);
  clips += fmt::format("; {} labels: {}", labels().size(), fmt::join(labels(), ", "));
  const ClipDatasetOptions& row = train_->options();
  std::string model = fmt::format("{}, {}", options_.model.size, options_.modality);
  if (options_.modality == "both") model += fmt::format(", fusion by {}", options_.model.fusion);
  if (options_.modality != "audio") {
    model += fmt::format("; {} frames of {} x {}", row.frames, row.image_size, row.image_size);
    model += options_.visual_weights.empty() ? "; ResNet18 with random weights (--visual_weights FILE)"
                                             : "; ResNet18 from " + options_.visual_weights;
  }
  RunFacts facts = {{"clips", std::move(clips)}, {"model", std::move(model)}};
  const bool uses_file = options_.modality != "audio" && !options_.visual_weights.empty();
  if (std::string rest = uses_file ? names_left_out(options_.visual_weights) : ""; !rest.empty())
    facts.emplace_back("note", std::move(rest));
  if (table_) {
    facts.emplace_back(
        "fold", fmt::format("{} of {}, {}", fold_ + 1, options_.folds,
                            options_.columns.group.empty() ? "each clip by itself" : "by " + options_.columns.group));
  }
  const bool starts = run.resume.empty() && run.init_from.empty() && options_.plan_data == 0;
  if (starts && options_.modality != "audio" && options_.visual_weights.empty()) {
    facts.emplace_back("warning:",
                       "the frame encoder starts from random weights; pretrained ones (--visual_weights "
                       "resnet18-f37072fd.pth) need far fewer clips. docs/emotion.md says where to get them");
  }
  int64_t absent = 0, listed = 0;
  for (const ClipPart& part : parts()) {
    absent += part.clips->list().missing;
    listed += part.clips->size();
  }
  if (absent > 0) {
    facts.emplace_back("warning:", fmt::format("{} of {} clips have no file (bad_samples.csv will list them; "
                                               "--max_missing_share allows {:g}% of each table)",
                                               absent, listed, 100 * options_.max_missing_share));
  }
  if (std::string none = missing_classes(train_->list()); !none.empty())
    facts.emplace_back("warning:", std::move(none));
  return facts;
}

bool has_sound(const EmotionOptions& options) { return modality_of(options) != Modality::kVisual; }

std::string describe_other_sound(const CheckpointPath& checkpoint, const EmotionOptions& options) {
  const auto state = load_checkpoint_state(checkpoint);
  if (!has_sound(options) || !state.ok()) return {};
  if (get_state<std::string>(sub_state(*state, "config"), "sound").ok()) return {};
  return "sound of several channels is now their mean; the run was trained with FFmpeg's mix of an earlier version, "
         "which was louder (mono clips are unchanged)";
}

at::Tensor class_scores(EmotionModel& model, const Batch& batch) {
  const auto field = [&](const char* name, Modality without) {
    return model.options().modality == without ? at::Tensor() : batch[name];
  };
  return model.forward(field("frames", Modality::kAudio), field("audio", Modality::kVisual),
                       field("has_audio", Modality::kVisual));
}

std::unique_ptr<Optimizer> make_optimizer(const RunOptions& run, const EmotionOptions& options,
                                          const torch::nn::Module& model, int64_t replicas) {
  auto optimizer =
      std::make_unique<AdamW>(AdamWOptions{.lr = resolve_lr(run, replicas), .weight_decay = run.weight_decay});
  const std::pair<std::string, double> rates[] = {{"visual", options.used_lr_visual(run.lr)},
                                                  {"audio", options.used_lr_audio(run.lr)},
                                                  {"fusion", options.used_lr_fusion(run.lr)}};
  for (ParamGroup& group : default_param_groups(model)) {
    for (const auto& rate : rates) {
      const std::string part = rate.first + ".";
      ParamGroup own = group;
      own.name = part + group.name;
      own.lr_multiple = rate.second / run.lr;
      std::erase_if(own.params, [&](const NamedParameter& p) { return !p.name.starts_with(part); });
      if (!own.params.empty()) optimizer->add_param_group(std::move(own));
    }
  }
  return optimizer;
}

}  // namespace trainkit::emotion
