// trainkit export: writes the weights of a checkpoint or a weight file as .safetensors or a PyTorch file.
#include <fmt/format.h>

#include <filesystem>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/logging/summary.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/words.h"

namespace trainkit::tool {
namespace {

enum class Format { kTorch, kSafetensors };

absl::StatusOr<Format> format_of(const std::string& path) {
  const std::string extension = std::filesystem::path(path).extension().string();
  if (extension == ".safetensors") return Format::kSafetensors;
  if (extension == ".pt" || extension == ".pth" || extension == ".bin") return Format::kTorch;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = path,
                    .field = "OUT",
                    .problem = "unknown file extension",
                    .got = extension,
                    .expected = ".safetensors, .pt, .pth or .bin"});
}

absl::StatusOr<NamedTensors> read(const std::string& source, std::string prefix) {
  std::string path = source;
  if (std::filesystem::is_directory(source) || source.ends_with("/latest")) {
    TRAINKIT_ASSIGN_OR_RETURN(const CheckpointPath checkpoint, resolve_checkpoint(source, "."));
    TRAINKIT_RETURN_IF_ERROR(verify_checkpoint(checkpoint));
    path = checkpoint.path() + "/model.safetensors";
  }
  TRAINKIT_ASSIGN_OR_RETURN(const WeightFile file, WeightFile::open(path));
  if (prefix.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(prefix, file.state_dict_prefix());
  }
  return file.tensors(prefix);
}

}  // namespace

absl::StatusOr<int> export_command(const Arguments& given) {
  ConfigParser parser(
      {.name = "trainkit export CHECKPOINT OUT",
       .version = library_versions()["trainkit"],
       .description = "Writes the weights of a checkpoint (a run folder, its checkpoints/ or one step-...) or of a "
                      "weight file to OUT.\nThe extension of OUT gives the format: .safetensors, or .pt, .pth, .bin "
                      "for torch.load(OUT, weights_only=True).",
       .examples = {"trainkit export runs/transformer model.pt",
                    "trainkit export runs/transformer/checkpoints/step-00000100 model.safetensors",
                    "trainkit export model.pth model.safetensors --prefix ema.model"}});
  std::string prefix;
  bool overwrite = false;
  parser.add(
      "prefix", &prefix,
      {.help = "State dict inside a PyTorch file. Default: found automatically.", .group = "Input", .metavar = "NAME"});
  parser.add("overwrite", &overwrite, {.help = "Replace OUT if it exists.", .group = "Output"});
  Arguments arguments = given;
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<std::string> words, take_words(arguments, {"CHECKPOINT", "OUT"}));
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted || words.empty()) return 0;
  const std::string& out = words[1];
  TRAINKIT_ASSIGN_OR_RETURN(const Format format, format_of(out));
  if (!overwrite && Fs::posix().exists(out)) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.value",
                      .where = out,
                      .field = "OUT",
                      .problem = "file exists already",
                      .hint = "replace it with --overwrite"});
  }
  TRAINKIT_ASSIGN_OR_RETURN(const NamedTensors tensors, read(words[0], prefix));
  TRAINKIT_RETURN_IF_ERROR(format == Format::kTorch ? save_torch_file(Fs::posix(), out, tensors)
                                                    : save_safetensors(Fs::posix(), out, tensors, {{"format", "pt"}}));
  print(fmt::format("wrote {} tensors to {}\n", tensors.size(), escape_text(out, 4096)));
  return 0;
}

}  // namespace trainkit::tool
