// trainkit export: writes the weights of a checkpoint or a weight file as .safetensors or a PyTorch file, or a trained
// run as an ONNX file.
#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <vector>

#include "io/weights/model_weights.h"
#include "trainkit/app/initial_weights.h"
#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/report/summary.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/trainer.h"

namespace trainkit::tool {
namespace {

enum class Format { kTorch, kSafetensors, kOnnx };

absl::StatusOr<Format> format_of(const std::string& path, const std::string& given) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (given == "safetensors" || (given.empty() && extension == ".safetensors")) return Format::kSafetensors;
  if (given == "onnx" || (given.empty() && extension == ".onnx")) return Format::kOnnx;
  if (given == "torch") return Format::kTorch;
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return Format::kTorch;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = path,
                    .field = "OUT",
                    .problem = "unknown file extension",
                    .got = extension,
                    .expected = ".safetensors, .pt, .pth, .bin or .onnx"});
}

/// Returns the weight file that `source` is or contains.
absl::StatusOr<std::string> find_weight_file(const std::string& source) {
  if (!std::filesystem::is_directory(source) && !source.ends_with("/latest")) return source;
  TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(source, "."));
  TRAINKIT_RETURN_IF_ERROR(verify_checkpoint(checkpoint));
  return checkpoint.path() + "/model.safetensors";
}

/// Writes the tensors. One that the format cannot hold is a fault of the file that was read, not of this program.
absl::Status write(const std::string& out, Format format, const std::string& source, const NamedTensors& tensors) {
  absl::Status saved = format == Format::kTorch ? save_torch_file(Fs::posix(), out, tensors)
                                                : save_safetensors(Fs::posix(), out, tensors, {{"format", "pt"}});
  std::optional<Error> error = error_of(saved);
  if (!error || error->id != "weights.write") return saved;
  error->exit_code = ExitCode::kWeights;
  error->where = source;
  if (format == Format::kSafetensors) error->hint = "OUT.pt can hold every tensor of a PyTorch file";
  return to_status(*error);
}

/// Maps the further names of tied weights in the exported PyTorch model `path` to the names that checkpoints have.
absl::StatusOr<std::map<std::string, std::string>> ties_in(const std::string& path) {
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(path));
  for (const auto& [name, text] : file.values()) {
    if (name != "trainkit.model") continue;
    const auto json = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
    if (json.is_object() && json.contains("ties") && json["ties"].is_object()) {
      std::map<std::string, std::string> ties;
      for (const auto& [further, first] : json["ties"].items()) {
        if (first.is_string()) ties.emplace(further, first.get<std::string>());
      }
      return ties;
    }
  }
  return to_status({.exit_code = ExitCode::kWeights,
                    .id = "weights.model",
                    .where = path,
                    .problem = "is no exported model",
                    .hint = "write it in Python: trainkit.export_model(model, example_inputs, \"model.tkm\")"});
}

/// Adds tied weights under the further names that Python's load_state_dict() asks for. `model` is the exported model,
/// or "": that of the run of trainkit-train with the weight file `source`.
absl::Status add_tied(const std::string& source, std::string model, NamedTensors& tensors) {
  if (model.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const RunWeights weights, find_initial_weights(source));
    const std::string setting = setting_beside(weights, "model").value_or("");
    if (!setting.ends_with(".tkm")) return absl::OkStatus();
    if (!Fs::posix().exists(setting)) {
      print(fmt::format("note: {} does not exist, so tied weights have one name; --model MODEL.tkm names the file\n",
                        escape_text(setting, 4096)));
      return absl::OkStatus();
    }
    model = setting;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const auto ties, ties_in(model));
  std::map<std::string, at::Tensor> by_name(tensors.begin(), tensors.end());
  for (const auto& [further, first] : ties) {
    if (by_name.contains(first) && !by_name.contains(further)) tensors.emplace_back(further, by_name.at(first));
  }
  return absl::OkStatus();
}

absl::Status usage_error(const std::string& where, const std::string& field, const std::string& problem,
                         const std::string& expected) {
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = where,
                    .field = field,
                    .problem = problem,
                    .expected = expected});
}

absl::Status export_weights(const std::string& from, const std::string& out, Format format, const std::string& prefix,
                            const std::string& model) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string source, find_weight_file(from));
  std::error_code absent;
  if (std::filesystem::equivalent(source, out, absent)) {
    return usage_error(out, "OUT", "is the file to export, whose metadata would be lost", "another file");
  }
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(source));
  TRAINKIT_ASSIGN_OR_RETURN(detail::ModelWeights weights, detail::read_model_weights(file, prefix));
  TRAINKIT_RETURN_IF_ERROR(add_tied(source, model, weights.tensors));
  TRAINKIT_RETURN_IF_ERROR(write(out, format, source, weights.tensors));
  print(fmt::format("wrote {} tensors to {}\n", weights.tensors.size(), escape_text(out, 4096)));
  if (!weights.left_out.empty()) print(detail::describe_left_out(source, weights.left_out) + "\n");
  return absl::OkStatus();
}

/// Lets the trainer of the run write the file, since it alone knows the model.
absl::Status export_to_onnx(const ConfigParser& parser, const std::string& app, const std::string& source,
                            const std::string& out, bool overwrite) {
  std::string run = source;
  if (!Fs::posix().exists(run + "/run.json")) {
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(source, "."));
    run = checkpoint.run_folder();
  }
  TRAINKIT_ASSIGN_OR_RETURN(const std::string program, app.empty() ? find_trainer_of(run) : find_trainer(parser, app));
  std::vector<std::string> words = {program, "export", source, out};
  if (overwrite) words.push_back("--overwrite");
  return become(std::move(words));
}

}  // namespace

absl::StatusOr<int> export_command(const Arguments& given) {
  ConfigParser parser(
      {.name = "trainkit export",
       .version = library_versions()["trainkit"],
       .description =
           "Writes the weights of a checkpoint (a run folder, its checkpoints/ or one step-...) or of a "
           "weight file to OUT.\nThe extension of OUT gives the format: .safetensors; .pt, .pth, .bin for "
           "torch.load(OUT, weights_only=True); .onnx\nfor a whole model, which the trainer of the run writes (PROGRAM "
           "export).",
       .examples = {"trainkit export runs/transformer model.pt",
                    "trainkit export runs/transformer/checkpoints/step-00000100 model.safetensors",
                    "trainkit export model.pth model.safetensors --prefix ema.model",
                    "trainkit export runs/hsi model.onnx"},
       .words = "CHECKPOINT OUT"});
  std::string prefix, format_name, app, model;
  bool overwrite = false;
  parser.add(
      "prefix", &prefix,
      {.help = "State dict inside a PyTorch file. Default: found automatically.", .group = "Input", .metavar = "NAME"});
  parser.add("app", &app,
             {.help = "Trainer of the run, for .onnx: a name or a path. Default: the program that run.json names.",
              .group = "Input",
              .metavar = "NAME"});
  parser.add(
      "model", &model,
      {.help = "The exported PyTorch model of the weights: tied weights get each of their names. Default: that of "
               "a run of trainkit-train.",
       .group = "Input",
       .metavar = "MODEL.tkm"});
  parser.add("format", &format_name,
             {.help = "Format of OUT. Default: given by its extension.",
              .group = "Output",
              .choices = {"safetensors", "torch", "onnx"}});
  parser.add("overwrite", &overwrite, {.help = "Replace OUT if it exists.", .group = "Output"});
  Arguments arguments = given;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> words, parser.take_words(arguments.flags));
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted || words.empty()) return 0;
  const std::string& out = words[1];
  TRAINKIT_ASSIGN_OR_RETURN(const Format format, format_of(out, format_name));
  if (!overwrite && Fs::posix().exists(out)) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .where = out,
                      .field = "OUT",
                      .problem = "file exists already",
                      .hint = "replace it with --overwrite"});
  }
  if (format == Format::kOnnx) {
    if (!prefix.empty()) return usage_error("", "--prefix", "has no meaning for ONNX", "a run without --prefix");
    if (!out.ends_with(".onnx")) return usage_error(out, "OUT", "is no name of an ONNX file", "OUT.onnx");
    return export_to_onnx(parser, app, words[0], out, overwrite);
  }
  TRAINKIT_RETURN_IF_ERROR(export_weights(words[0], out, format, prefix, model));
  return 0;
}

}  // namespace trainkit::tool
