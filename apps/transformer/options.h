#pragma once
/// The settings that are the Transformer trainer's own; those of every trainer are in trainkit/app/run_options.h.

#include <cstdint>
#include <string>

#include "trainkit/app/run_options.h"
#include "trainkit/config/config.h"
#include "trainkit/nn/transformer.h"
#include "transformer/corpus.h"

namespace trainkit::transformer {

/// One member per flag, under the flag's name.
struct TransformerOptions {
  // Model
  int64_t hidden_dim = 512;
  int64_t n_layers = 6;
  /// 0: 8, or the largest number below that divides hidden_dim.
  int64_t n_heads = 0;
  int64_t block_size = 128;
  double dropout = 0.0;
  bool bias = false;
  bool gradient_checkpointing = false;
  /// 1: none.
  IntOrAuto checkpoint_segments = {1};

  // Text
  std::string input = {};
  std::string tokenizer = "char";
  std::string vocab = {};
  std::string merges = {};

  // Optimizer
  double beta1 = 0.9;
  double beta2 = 0.95;
  /// The learning rate at the end of the schedule, as a share of --lr.
  double final_lr_share = 0.1;

  // Sampling
  std::string sample = {};
  int64_t sample_tokens = 200;
  double temperature = 0.8;
  int64_t top_k = 200;
};

/// The defaults of `run` that this trainer changes; to be called before add_run_flags.
void set_run_defaults(RunOptions& run);

/// Adds every flag of TransformerOptions, and the presets, which set flags of RunOptions too (add those first):
///   small_gpu            8 rows, 128 wide, 2 layers: below 10 GB
///   large_gpu            32 rows, 512 wide, 6 layers: above 20 GB
///   shakespeare_char_cpu nanoGPT's recipe for a CPU: 4 layers, 4 heads, 128 wide, blocks of 64, 12 rows, 2,000 steps
void add_transformer_flags(ConfigParser& parser, TransformerOptions& options);

/// The defaults that depend on the device (batch, width, layers, accumulation, mixed precision), for
/// ConfigParser::set_defaults. CPU: 4, 512, 6, 8, off. CUDA: 16, 256, 3, 2, on.
Settings device_defaults(bool cuda);

/// The preset that suits a device with so many bytes of memory: "small_gpu" below 10 GB, "large_gpu" above 20 GB, else
/// empty (the defaults).
std::string suggested_preset(int64_t device_bytes);

/// Rules between the flags: heads divide the width, gpt2 has its files. Errors are blamed on where the value came from.
absl::Status check_transformer_options(const ConfigParser& parser, const TransformerOptions& options);

TransformerConfig model_config(const TransformerOptions& options, int64_t vocab_size);
CorpusOptions corpus_options(const TransformerOptions& options, const std::string& cache_dir);

}  // namespace trainkit::transformer
