#include "emotion_recognition/options.h"

#include <cmath>

#include "trainkit/app/app.h"
#include "trainkit/config/config.h"

namespace trainkit::emotion {
namespace {

constexpr char kPredictMode[] = "predict";

// What a flag needs to have an effect.
OptionNeed tables() { return {"dataset", {"csv"}}; }
OptionNeed frames() { return {"modality", {"audio"}, /*excludes=*/true}; }
OptionNeed sound() { return {"modality", {"visual"}, /*excludes=*/true}; }

void add_table_flags(ConfigParser& parser, EmotionOptions& options) {
  const OptionGroup add(parser, "Clips", {modes::kTrain});
  add("dataset", &options.dataset,
      {.help =
           "MELD: csv files and folders in MELD's layout below --data_dir. csv: the tables of --train_csv, --val_csv "
           "and --test_csv.",
       .choices = {"MELD", "csv"},
       .modes = {modes::kTrain, kPredictMode}});  // the labels of a run that has not stored its own
  add("train_csv", &options.train_csv,
      {.help = "Table of clips for training.", .path = PathKind::kInput, .needs = {tables()}});
  add("val_csv", &options.val_csv,
      {.help = "Table of clips for validation.", .path = PathKind::kInput, .needs = {tables()}});
  add("test_csv", &options.test_csv,
      {.help = "Table of clips for the test.", .path = PathKind::kInput, .needs = {tables()}});
  add("clip_dir", &options.clip_dir,
      {.help = "Folder of the clips of these tables. Default: --data_dir.",
       .path = PathKind::kInput,
       .needs = {tables()}});
  add("label_column", &options.columns.label, {.help = "Column with the label."});
  add("path_column", &options.columns.path,
      {.help = "Column with the path of a clip below its folder. Default: MELD's names "
               "dia<Dialogue_ID>_utt<Utterance_ID>.mp4."});
  add("csv_delimiter", &options.csv_delimiter, {.help = "Field separator, one character."});
}

void add_clip_flags(ConfigParser& parser, EmotionOptions& options) {
  const OptionGroup add(parser, "Clips", {modes::kTrain});
  add("frames", &options.clips.frames,
      {.help = "Number of frames per clip, spread evenly over it.",
       .min = 1,
       .max = 1024,
       .modes = {modes::kTrain, modes::kRun},
       .needs = {frames()}});
  add("image_size", &options.clips.image_size,
      {.help = "Height and width of a frame in pixels.",
       .min = 32,
       .max = 1024,
       .modes = {modes::kTrain, modes::kRun},
       .needs = {frames()}});
  add("audio_seconds", &options.audio_seconds,
      {.help = "Seconds of sound per clip: longer clips are cropped, shorter ones padded with silence.",
       .min = 0.5,
       .max = 120,
       .modes = {modes::kTrain, modes::kRun},
       .needs = {sound()}});
  add("cache_dir", &options.cache_dir,
      {.help = "Folder for a cache of decoded clips, reused by later runs; its size is printed first. Default: decode "
               "clips in each epoch.",
       .path = PathKind::kOutput});
  add("max_missing_share", &options.max_missing_share,
      {.help = "Largest share of a table's clips that may have no file; a larger one is an error.",
       .min = 0,
       .max = 1});
  add("folds", &options.folds,
      {.help = "Number of folds of a cross-validation over the training table, 3 or more; 0 disables it.",
       .min = 0,
       .max = 1000});
  add("group", &options.columns.group,
      {.help = "Column whose values (speakers) are never in two folds. Default: each clip by itself.",
       .metavar = "COLUMN",
       .needs = {{"folds", {"0"}, /*excludes=*/true}}});
  add("plan_data", &options.plan_data,
      {.help = "Number of training clips for a --dry_run without --data_dir. MELD has 9989.",
       .min = 0,
       .max = 1e9,
       .metavar = "CLIPS",
       .flag_only = true,
       .needs = {{"dry_run", {"true"}}}});
}

void add_model_flags(ConfigParser& parser, EmotionOptions& options) {
  const OptionGroup add(parser, "Model", {modes::kTrain});
  add("model_size", &options.model.size,
      {.help = "Size of the model; see docs/emotion.md. It sets the default of --batch_size.",
       .choices = model_sizes()});
  add("fusion_type", &options.model.fusion,
      {.help = "Fusion of frames and sound.", .choices = fusion_types(), .needs = {{"modality", {"both"}}}});
  add("modality", &options.modality, {.help = "Inputs of the model.", .choices = {"both", "visual", "audio"}});
  add("dropout", &options.model.dropout,
      {.help = "Share of values dropped before the last layer.", .min = 0, .max = 0.99});
  add("visual_weights", &options.visual_weights,
      {.help = "Weights of ResNet18: torchvision's .pth, or safetensors. Default: random weights.",
       .path = PathKind::kInput,
       .needs = {frames()}});
}

void add_learning_flags(ConfigParser& parser, EmotionOptions& options) {
  const OptionGroup add(parser, "Learning", {modes::kTrain});
  add("lr_visual", &options.lr_visual,
      {.help = "Learning rate of the frame encoder. Default: a tenth of --lr.", .above = 0, .needs = {frames()}});
  add("lr_audio", &options.lr_audio,
      {.help = "Learning rate of the audio encoder. Default: a tenth of --lr.", .above = 0, .needs = {sound()}});
  add("lr_fusion", &options.lr_fusion,
      {.help = "Learning rate of the fusion and the classifier. Default: --lr.", .above = 0});
  add("class_weights", &options.class_weights, {.help = "Weight labels by the inverse of their frequency."});
  add("label_smoothing", &options.label_smoothing,
      {.help = "Label smoothing: share of the target that is spread over all labels.", .min = 0, .max = 0.99});
}

}  // namespace

void set_run_defaults(RunOptions& run) {
  run.output_dir = "runs/emotion";
  run.epochs = 100;
  run.batch_size = {16};
  run.lr = 1e-3;
  run.weight_decay = 0.01;
  run.grad_clip = 1.0;
  run.scheduler = "cosine";
  run.on_error = OnError::kReplace;
  run.cuda_graph = CudaGraph::kAuto;
}

void add_emotion_flags(ConfigParser& parser, EmotionOptions& options) {
  add_table_flags(parser, options);
  add_clip_flags(parser, options);
  add_model_flags(parser, options);
  add_learning_flags(parser, options);
  parser.fix({"dataset", "label_column", "frames", "image_size", "audio_seconds", "model_size", "fusion_type",
              "modality", "lr_visual", "lr_audio", "lr_fusion", "folds", "group"});
}

// Source: the reference guide for three RTX 4090 (docs/guides.md): 24 to 28 clips per GPU for simple models, 16 to 20
// for complex ones, 8 to 12 for very large ones.
void set_batch_default(ConfigParser& parser, const EmotionOptions& options) {
  const char* clips = options.model.size == "simple" ? "24" : options.model.size == "huge" ? "8" : "16";
  parser.set_defaults({{"batch_size", clips}}, "model_size " + options.model.size);
}

// Source: config_3x4090.json and the training script of the reference guide for three RTX 4090.
void add_emotion_presets(ConfigParser& parser) {
  parser.add_preset("multi_gpu_3x4090",
                    {{"use_multi_gpu", "true"},
                     {"gpu_ids", "0,1,2"},
                     {"batch_size", "22"},
                     {"num_workers", "12"},
                     {"lr_visual", "3e-4"},
                     {"lr_audio", "3e-4"},
                     {"lr_fusion", "3e-3"},
                     {"auto_scale_lr", "false"},
                     {"fusion_type", "attention"},
                     {"scheduler", "cosine"},
                     {"grad_clip", "1.0"},
                     {"epochs", "100"},
                     {"tensorboard_dir", "./logs_multi_gpu"}},
                    "3 x RTX 4090, 22 clips each");
  parser.add_preset("audio_only",
                    {{"modality", "audio"}, {"model_size", "simple"}, {"lr_audio", "1e-3"}, {"epochs", "40"}},
                    "sound alone; decodes no frames");
}

absl::Status check_emotion_options(const ConfigParser& parser, const RunOptions& run, const EmotionOptions& options) {
  if (options.csv_delimiter.size() != 1) return parser.invalid("csv_delimiter", "not one character", "such as ;");
  if (options.folds == 1 || options.folds == 2)
    return parser.invalid("folds", "too few: one fold is the test, one the validation part", "0, or 3 or more");
  if (options.folds == 0 && !options.columns.group.empty())
    return parser.invalid("group", "needs --folds", "--folds K");
  if (options.folds > 0 && !(options.val_csv.empty() && options.test_csv.empty()))
    return parser.invalid(options.val_csv.empty() ? "test_csv" : "val_csv", "contradicts --folds", "",
                          "the folds of --train_csv are validation and test parts in turn");
  if (options.folds > 0 && !run.resume.empty() && run.resume != "latest")
    return parser.invalid("resume", "names one run, but --folds asks for several", "latest");
  if (options.plan_data > 0) {
    if (run.dry_run && run.data_dir.empty() && options.dataset == "MELD") return absl::OkStatus();
    return parser.invalid("plan_data", "replaces --data_dir in a dry run", "--dry_run without --data_dir");
  }
  if (options.dataset == "MELD") {
    if (run.data_dir.empty()) {
      return parser.invalid("data_dir", "not given", "a folder with MELD's layout",
                            "to try it: trainkit-emotion --make_demo_data DIR");
    }
    return absl::OkStatus();
  }
  if (options.train_csv.empty()) return parser.invalid("train_csv", "not given", "a table of clips");
  if (options.clip_dir.empty() && run.data_dir.empty()) {
    return parser.invalid("clip_dir", "not given", "the folder of the clips");
  }
  return absl::OkStatus();
}

Modality modality_of(const EmotionOptions& options) {
  return options.modality == "visual"  ? Modality::kVisual
         : options.modality == "audio" ? Modality::kAudio
                                       : Modality::kBoth;
}

EmotionModelOptions model_options(const EmotionOptions& options, int64_t num_classes) {
  EmotionModelOptions model = options.model;
  model.modality = modality_of(options);
  model.num_classes = num_classes;
  return model;
}

ClipDatasetOptions dataset_options(const EmotionOptions& options) {
  ClipDatasetOptions clips = options.clips;
  clips.modality = modality_of(options);
  clips.samples = std::llround(options.audio_seconds * static_cast<double>(clips.sample_rate));
  return clips;
}

ClipColumns clip_columns(const EmotionOptions& options) {
  ClipColumns columns = options.columns;
  columns.delimiter = options.csv_delimiter[0];
  return columns;
}

}  // namespace trainkit::emotion
