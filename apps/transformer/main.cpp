// trainkit-transformer: a language model of the GPT-2 kind on any text. Flags to settings to objects to Trainer::fit.
#include <ATen/Context.h>
#include <ATen/DeviceAccelerator.h>
#include <torch/utils.h>

#include <cstdio>
#include <filesystem>

#include "trainkit/core/status.h"
#include "trainkit/logging/format.h"
#include "trainkit/logging/summary.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/program.h"
#include "trainkit/train/run_folder.h"
#include "transformer/corpus.h"
#include "transformer/options.h"
#include "transformer/sampling.h"
#include "transformer/session.h"
#include "transformer/text_dataset.h"

namespace trainkit {
namespace {

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

/// Which preset suits the GPU, for whoever has not chosen one.
void suggest_preset(at::Device device) {
  const auto [free_bytes, total_bytes] = at::accelerator::getMemoryInfo(std::max<c10::DeviceIndex>(device.index(), 0));
  const std::string preset = suggested_preset(static_cast<int64_t>(total_bytes));
  print("memory     " + format_size(static_cast<int64_t>(free_bytes)) + " free of " +
        format_size(static_cast<int64_t>(total_bytes)) + (preset.empty() ? "" : "; suggested: --preset " + preset));
}

absl::StatusOr<int> train(const ConfigParser& parser, RunOptions& run, const TransformerOptions& options,
                          at::Device device, Program& program) {
  TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, run));
  if (!run.dry_run) program.output_dir = run.output_dir;
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  torch::manual_seed(run.seed);
  share_processors(run, ReadCost::kCopy);  // token windows are copied out of a mapped file

  TRAINKIT_ASSIGN_OR_RETURN(const Session session, Session::open(run, options));
  const Corpus& corpus = session.corpus();
  const int64_t block = options.block_size;
  const auto train_set = std::make_shared<TokenWindows>(
      corpus.tokens, TokenWindowsOptions{.block_size = block, .begin = 0, .end = corpus.train_tokens});
  const auto validation_set = std::make_shared<TokenWindows>(
      corpus.tokens, TokenWindowsOptions{.block_size = block, .begin = corpus.train_tokens, .whole = true});
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader,
                            Prefetcher::create(train_set, RandomSampler(train_set->size(), {.seed = run.seed}),
                                               training_loader_options(run, device)));
  TRAINKIT_ASSIGN_OR_RETURN(const auto validation,
                            Prefetcher::create(validation_set, SequentialSampler(validation_set->size()),
                                               evaluation_loader_options(run, device)));

  const auto make_model = [&] {
    Transformer model(model_config(options, corpus.tokenizer->vocab_size()));
    model->set_gradient_checkpointing(options.gradient_checkpointing);
    return model;
  };
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(make_model, {.device = device}));
  Transformer model(std::dynamic_pointer_cast<TransformerImpl>(devices->module()));
  if (!run.init_from.empty()) TRAINKIT_RETURN_IF_ERROR(load_weights(*model, run.init_from));

  TRAINKIT_ASSIGN_OR_RETURN(TrainerOptions settings,
                            trainer_options(parser, run, device, loader->batches_per_epoch(), options.final_lr_share));
  settings.config = session.model_state();
  settings.weight_unit = "tokens";
  const std::string plan = session.describe() + describe_run(run, settings, *devices, *loader);
  print(run.json ? plan_to_json(plan) : plan);
  if (device.is_cuda() && !run.json) suggest_preset(device);
  TRAINKIT_ASSIGN_OR_RETURN(
      auto trainer,
      Trainer::create(*devices,
                      AdamW({.lr = run.lr, .betas = {options.beta1, options.beta2}, .weight_decay = run.weight_decay}),
                      settings));
  if (run.dry_run) return 0;

  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, RunFolder::open(parser, run, "trainkit-transformer"));
  TRAINKIT_RETURN_IF_ERROR(session.save());
  const auto loss = [](Transformer& net, const Batch& batch) {
    return LossOutput(language_model_loss(net->forward(batch["x"]), batch["y"]),
                      static_cast<double>(batch["y"].numel()));
  };
  // The last window of the validation text is padded: what does not count is not weighed either.
  const auto validation_loss = [&](Transformer& net, const Batch& batch) {
    return LossOutput(language_model_loss(net->forward(batch["x"]), batch["y"]),
                      static_cast<double>(validation_set->targets(batch.row_indices())));
  };
  const auto on_evaluation = [&](int64_t, Metrics& metrics) {
    metrics.merge(language_metrics(metrics["loss"], corpus));
    if (run.monitor) folder->watch(*loader);
  };
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                            trainer.fit(*loader, loss,
                                        {.validation = validation.get(),
                                         .validation_loss = make_loss_function(validation_loss),
                                         .on_evaluation = on_evaluation,
                                         .logger = &folder->logger()}));
  TRAINKIT_ASSIGN_OR_RETURN(const int code, folder->finish(result, *loader));
  print(describe_result(result, run));
  if (code == 0) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string text, session.sample(model));
    print("\n--- a sample of the model's text ---\n" + text + "\n---");
  }
  return code;
}

absl::StatusOr<int> run_transformer(int argc, char** argv, Program& program) {
  RunOptions run;
  TransformerOptions options;
  set_run_defaults(run);
  ConfigParser parser(
      {.name = "trainkit-transformer",
       .version = library_versions()["trainkit"],
       .description = "Trains a Transformer language model on text.",
       .examples = {"trainkit-transformer --input book.txt --preset shakespeare_char_cpu",
                    "trainkit-transformer --batch-size 16 --hidden-dim 256 --n-layers 3 --max-epochs 100",
                    "trainkit-transformer --output_dir runs/transformer --resume latest",
                    "trainkit-transformer --output_dir runs/transformer --sample \"To be\""}});
  add_run_flags(parser, run);
  add_transformer_flags(parser, options);
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(argc, argv));
  if (request == Request::kHelp || request == Request::kVersion) {
    print(parser.text(request));
    return 0;
  }
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, resolve_device(parser, run));
  parser.set_defaults(device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  if (request == Request::kPrintConfig) {
    print(parser.text(request));
    return 0;
  }
  if (!run.make_demo_data.empty()) return write_demo_data(run.make_demo_data);
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run));
  TRAINKIT_RETURN_IF_ERROR(check_transformer_options(parser, options));
  if (!options.sample.empty()) return sample_from_run(run, options, device);
  return train(parser, run, options, device, program);
}

}  // namespace
}  // namespace trainkit

int main(int argc, char** argv) {
  return trainkit::run_program(
      [&](trainkit::Program& program) { return trainkit::run_transformer(argc, argv, program); });
}
