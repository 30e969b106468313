// trainkit-transformer: a language model of the GPT-2 kind on any text. Flags to settings to objects to Trainer::fit.
#include <ATen/Context.h>
#include <torch/utils.h>

#include <cstdio>

#include "trainkit/core/status.h"
#include "trainkit/logging/summary.h"
#include "trainkit/nn/onednn_matmul.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/memory_plan.h"
#include "trainkit/train/placement.h"
#include "trainkit/train/program.h"
#include "trainkit/train/run_folder.h"
#include "trainkit/train/weights.h"
#include "transformer/options.h"
#include "transformer/sampling.h"
#include "transformer/session.h"
#include "transformer/text_dataset.h"

namespace trainkit::transformer {
namespace {

void print(const std::string& line) {
  std::fputs((line + "\n").c_str(), stdout);
  std::fflush(stdout);
}

absl::StatusOr<int> train(const ConfigParser& parser, RunOptions& run, TransformerOptions& options,
                          const Machine& machine, Program& program) {
  TRAINKIT_ASSIGN_OR_RETURN(Placement placement, place_run(parser, run, machine, program));
  if (placement.is_first()) {
    TRAINKIT_RETURN_IF_ERROR(prepare_output_dir(parser, run));
    if (!run.dry_run) program.output_dir = run.output_dir;
  }
  const auto say = [&](const std::string& line) {
    if (placement.is_first()) print(line);
  };
  at::globalContext().setBenchmarkCuDNN(run.cudnn_benchmark);
  torch::manual_seed(run.seed);
  share_processors(run, machine, ReadCost::kCopy);  // token windows are copied out of a mapped file

  TRAINKIT_ASSIGN_OR_RETURN(const Session session, first_rank_first(placement, "preparing the text",
                                                                    [&] { return Session::open(run, options); }));
  const Corpus& corpus = session.corpus();
  const auto train_set = session.training_set(), validation_set = session.validation_set();
  const auto make_model = [&] { return create_model(options, corpus.tokenizer->vocab_size()); };
  const auto make_optimizer = [&] {
    return std::make_unique<AdamW>(AdamWOptions{.lr = resolve_lr(run, placement.batch.replicas),
                                                .betas = {options.beta1, options.beta2},
                                                .weight_decay = run.weight_decay});
  };
  StepRecipe recipe;
  recipe.make_model = [&] { return make_model().ptr(); };
  recipe.make_optimizer = make_optimizer;
  recipe.loss = text_loss();
  recipe.dataset = train_set;
  recipe.smaller = smaller_models(options, corpus.tokenizer->vocab_size());
  recipe.set_segments = [&](StepRecipe& other, int64_t segments) {
    TransformerOptions changed = options;
    changed.checkpoint_segments = {segments};
    other.make_model = [changed, &corpus] { return create_model(changed, corpus.tokenizer->vocab_size()).ptr(); };
  };
  recipe.most_segments = options.n_layers;
  recipe.choose_segments = options.checkpoint_segments.is_auto();
  TRAINKIT_ASSIGN_OR_RETURN(const MemoryPlan memory, plan_memory(parser, run, machine, recipe, placement));
  if (recipe.choose_segments) options.checkpoint_segments = {memory.checkpoint_segments};
  const auto order = std::make_shared<RandomSampler>(train_set->size(), RandomSamplerOptions{.seed = run.seed});
  TRAINKIT_ASSIGN_OR_RETURN(const auto loader, training_loader(train_set, order, run, machine, placement));
  TRAINKIT_ASSIGN_OR_RETURN(const auto validation, evaluation_loader(validation_set, run, machine, placement));
  TRAINKIT_RETURN_IF_ERROR(
      compare_data(placement, {{"training", train_set.get()}, {"validation", validation_set.get()}}));

  TRAINKIT_ASSIGN_OR_RETURN(const auto devices,
                            DeviceReplicator::create(make_model, replicator_options(run, placement)));
  Transformer model(std::dynamic_pointer_cast<TransformerImpl>(devices->module()));
  if (!run.init_from.empty()) {
    TRAINKIT_RETURN_IF_ERROR(load_weights(*model, run.init_from).status());
    devices->synchronize();
  }

  TRAINKIT_ASSIGN_OR_RETURN(TrainerOptions settings,
                            trainer_options(parser, run, placement, *loader, options.final_lr_share));
  settings.config = session.model_state();
  settings.weight_unit = "tokens";
  settings.predicted_memory = memory.predicted();
  settings.predicted_device_memory = memory.predicted_on_device();
  settings.explain_out_of_memory = memory.ladder;
  const std::string plan =
      session.describe() + memory.describe() + describe_run(run, settings, placement, *devices, *loader);
  say(run.json ? plan_to_json(plan, memory) : plan);
  if (placement.device().is_cuda() && !run.json) say(describe_memory(placement.device()));
  TRAINKIT_ASSIGN_OR_RETURN(auto trainer, Trainer::create(*devices, make_optimizer(), settings));
  if (run.dry_run) return 0;

  TRAINKIT_ASSIGN_OR_RETURN(const auto folder, RunFolder::open(parser, run, placement, "trainkit-transformer"));
  if (placement.is_first()) TRAINKIT_RETURN_IF_ERROR(session.save());
  // The last window of the validation text is padded: what does not count is not weighed either.
  const auto validation_loss = [&](Transformer& net, const Batch& batch) {
    return LossOutput(language_model_loss(net->forward(batch["x"]), batch["y"]),
                      static_cast<double>(validation_set->targets(batch.row_indices())));
  };
  const auto on_evaluation = [&](int64_t, Metrics& metrics) {
    metrics.merge(language_metrics(metrics["loss"], corpus));
  };
  TRAINKIT_ASSIGN_OR_RETURN(const TrainerResult result,
                            trainer.fit(*loader, text_loss(),
                                        {.validation = validation.get(),
                                         .validation_loss = make_loss_function(validation_loss),
                                         .on_evaluation = on_evaluation,
                                         .logger = &folder->logger()}));
  TRAINKIT_ASSIGN_OR_RETURN(const int code, folder->finish(result, *loader));
  say(describe_result(result, run));
  if (code == 0 && placement.is_first()) {
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
  TRAINKIT_ASSIGN_OR_RETURN(const Machine machine, launched_machine());
  TRAINKIT_ASSIGN_OR_RETURN(const at::Device device, resolve_device(parser, run, machine));
  parser.set_defaults(device_defaults(device.is_cuda()), device.is_cuda() ? "cuda" : "cpu");
  if (request == Request::kPrintConfig) {
    print(parser.text(request));
    return 0;
  }
  if (!run.make_demo_data.empty()) return write_demo_data(run.make_demo_data);
  TRAINKIT_RETURN_IF_ERROR(check_run_options(parser, run, machine));
  TRAINKIT_RETURN_IF_ERROR(check_transformer_options(parser, options));
  use_onednn_matmul();
  if (!options.sample.empty()) return sample_from_run(run, options, device);
  return train(parser, run, options, machine, program);
}

}  // namespace
}  // namespace trainkit::transformer

int main(int argc, char** argv) {
  return trainkit::run_program(
      [&](trainkit::Program& program) { return trainkit::transformer::run_transformer(argc, argv, program); });
}
