#pragma once
/// Options of the Transformer trainer. Options shared by all trainers are in trainkit/app/run_options.h.

#include <cstdint>
#include <string>
#include <vector>

#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/nn/transformer.h"
#include "transformer/corpus.h"

namespace trainkit::transformer {

/// Values of the trainer's flags. Those of a part are in the part's own options, which model_config and corpus_options
/// complete.
struct TransformerOptions {
  TransformerConfig model = {};
  bool gradient_checkpointing = false;
  /// 1 disables it.
  IntOrAuto checkpoint_segments = {1};

  /// Each with or without a weight, see parse_input.
  std::vector<std::string> input = {};
  CorpusOptions corpus = {};
  bool pack_documents = false;
  /// Windows per evaluation; 0: all.
  int64_t eval_max_rows = 0;

  /// adamw or muon.
  std::string optimizer = "adamw";
  double beta1 = 0.9;
  double beta2 = 0.95;
  /// Learning rate at the end of the schedule, as a share of --lr.
  double final_lr_share = 0.1;

  std::string sample = {};
  std::string prompt_file = {};
  bool eval_sample = true;
  GenerateOptions sampling = {};
};

/// The mode of --sample and --prompt_file, for OptionSpec::modes.
inline constexpr char kSampleMode[] = "sample";

/// Sets this trainer's defaults in `run`. Call it before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of TransformerOptions, and presets, which also set flags of RunOptions (add those first):
///   small_gpu            8 rows, 128 wide, 2 layers: below 10 GB
///   large_gpu            32 rows, 512 wide, 6 layers: above 20 GB
///   shakespeare_char_cpu nanoGPT's recipe for a CPU: 4 layers, 4 heads, 128 wide, blocks of 64, 12 rows, 2,000 steps
void add_transformer_flags(ConfigParser& parser, TransformerOptions& options);

/// Returns the device-dependent defaults (batch, width, layers, accumulation, mixed precision) for
/// ConfigParser::set_defaults. CPU: 4, 512, 6, 8, off. CUDA: 16, 256, 3, 2, on.
Settings device_defaults(bool cuda);

/// Returns the preset for a device with `device_bytes` of memory: "small_gpu" below 10 GB, "large_gpu" above 20 GB,
/// else empty (the defaults).
std::string suggested_preset(int64_t device_bytes);

/// Checks rules between flags: the heads divide the width, gpt2 has its files, all inputs have a weight or none. Errors
/// name the source of the value.
absl::Status check_transformer_options(const ConfigParser& parser, const TransformerOptions& options);

TransformerConfig model_config(const TransformerOptions& options, int64_t vocab_size);
/// The inputs must have passed check_transformer_options.
CorpusOptions corpus_options(const TransformerOptions& options, const std::string& cache_dir);

}  // namespace trainkit::transformer
