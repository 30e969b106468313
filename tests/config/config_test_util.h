#pragma once
/// A program with the flags of a trainer, run in this process, and the contract of its errors.

#include <fstream>
#include <sstream>

#include "test_util.h"
#include "trainkit/app/run_options.h"
#include "trainkit/core/status.h"

namespace trainkit::test {

/// The shared flags and those of a Transformer trainer, by default on a machine with two cores and no GPU.
struct TrainerFlags {
  RunOptions run{.output_dir = "runs/transformer", .epochs = 100, .batch_size = {16}, .lr = 3e-4};
  std::string input;
  std::string vocab, merges;
  std::string tokenizer = "char";
  std::string sample;
  int64_t hidden_dim = 256, n_layers = 3, block_size = 128;
  std::optional<int64_t> n_heads;
  double dropout = 0.1;
  bool gradient_checkpointing = false;
  MachineInfo machine{.cuda_devices = 0, .cpus = 2};
  ConfigParser parser{{.name = "trainkit-transformer", .version = "0.1.0", .description = "Trains a Transformer."}};

  TrainerFlags() {
    add_run_flags(parser, run);
    const auto model = [](OptionSpec spec) { return spec.group = "Model", spec; };
    parser.add("hidden_dim", &hidden_dim, model({.help = "Width.", .min = 1, .max = 65536}));
    parser.add("n_layers", &n_layers, model({.help = "Blocks.", .min = 1, .max = 1024}));
    parser.add("n_heads", &n_heads, model({.help = "Attention heads.", .min = 1, .max = 1024}));
    parser.add("block_size", &block_size, model({.help = "Tokens of context.", .min = 1, .max = 1 << 20}));
    parser.add("dropout", &dropout, model({.help = "Share of zeroed values.", .min = 0, .max = 0.99}));
    parser.add("gradient_checkpointing", &gradient_checkpointing, model({.help = "Less memory, more time."}));
    parser.add("tokenizer", &tokenizer, model({.help = "Text to tokens.", .choices = {"char", "gpt2"}}));
    parser.add("input", &input, model({.help = "Text file.", .path = PathKind::kInput}));
    parser.add("vocab", &vocab, model({.help = "vocab.json of gpt2.", .path = PathKind::kInput}));
    parser.add("merges", &merges, model({.help = "merges.txt of gpt2.", .path = PathKind::kInput}));
    parser.add("sample", &sample, model({.help = "Continue this text.", .flag_only = true}));
    parser.add_preset("small_gpu", {{"batch_size", "8"}, {"hidden_dim", "128"}, {"n_layers", "2"}}, "under 10 GB");
    parser.add_preset("large_gpu", {{"batch_size", "32"}, {"hidden_dim", "512"}, {"n_layers", "6"}}, "over 20 GB");
  }

  /// All checks of a trainer before it builds anything.
  absl::Status start(const std::vector<std::string>& arguments) {
    const auto request = parser.parse(arguments);
    TRAINKIT_RETURN_IF_ERROR(request.status());
    TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
    return run.output_dir == "runs/transformer" ? absl::OkStatus() : prepare_output_dir(parser, run);
  }
};

/// The checks of a run with this --output_dir.
inline absl::Status start_in(const std::string& output_dir, std::vector<std::string> flags = {}) {
  TrainerFlags program;
  flags.push_back("--output_dir=" + output_dir);
  return program.start(flags);
}

inline std::string write(const std::string& path, const std::string& text) {
  std::ofstream(path, std::ios::binary) << text;
  return path;
}

/// The contract of every error: its code and id, and at most two lines of printable text, the first of <= 400 bytes.
inline void check_error(const absl::Status& status, ExitCode code, const std::string& id) {
  const auto error = error_of(status);
  REQUIRE(error.has_value());
  const std::string text = error_text(status);
  INFO(text);
  CHECK(error->exit_code == code);
  CHECK(error->id == id);
  CHECK(text.starts_with("trainkit: error[" + id + "] "));
  CHECK(text.find('\n') <= sizeof "trainkit: " - 1 + 400);
  CHECK(std::count(text.begin(), text.end(), '\n') == (error->hint.empty() ? 1 : 2));
  CHECK(std::none_of(text.begin(), text.end(), [](unsigned char c) { return (c < 0x20 && c != '\n') || c == 0x7f; }));
}

}  // namespace trainkit::test
