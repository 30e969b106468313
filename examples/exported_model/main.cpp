// Trains a PyTorch model that Python has exported, to say in which quarter of a noisy picture a spot lies.
//   python export.py model.tkm
//   example_exported_model model.tkm [folder]
// With a folder it can be killed and resumed. No Python runs here.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "trainkit/nn/exported_model.h"
#include "trainkit/train/metrics.h"
#include "trainkit/train/weights.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

/// `count` pictures (count, 1, 16, 16) with the numbers of the quarters (count).
std::unique_ptr<Prefetcher> spots(int64_t count) {
  const at::Tensor row = torch::randint(0, 15, {count}), column = torch::randint(0, 15, {count});
  const at::Tensor picture = 0.5 * torch::randn({count, 1, 16, 16});
  for (int64_t i = 0; i < count; ++i) {
    const auto y = row[i].item<int64_t>(), x = column[i].item<int64_t>();
    picture[i][0].slice(0, y, y + 2).slice(1, x, x + 2).add_(2);
  }
  const at::Tensor quarter = row.ge(8) * 2 + column.ge(8);
  auto rows = std::make_shared<TensorDataset>(NamedTensors{{"x", picture}, {"y", quarter.to(at::kLong)}});
  return Prefetcher::create(rows, RandomSampler(count, {.seed = 1}), {.batch_size = 64}).value();
}

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: %s MODEL.tkm [FOLDER]\n", argv[0]), 2;
  const std::string folder = argc > 2 ? argv[2] : "";
  torch::manual_seed(0);
  const auto loader = spots(2048), validation = spots(512);
  const auto loaded = ExportedModel::load(argv[1]);
  if (!loaded.ok()) return std::fprintf(stderr, "%s\n", loaded.status().ToString().c_str()), 5;
  auto devices = DeviceReplicator::create([&] { return loaded->copy(); }).value();

  TrainerOptions options{.max_epochs = 6, .eval_every = Interval::epochs(1), .output_dir = folder};
  if (!folder.empty()) options.save_every = 20;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, AdamW({.lr = 3e-3}), options).value();
  const MetricCollection scores(ClassificationMetrics({.classes = 4}));
  FitOptions fit{.validation = validation.get()};
  fit.validation_loss = [scores](ExportedModel& model, const Batch& batch) {
    const at::Tensor logits = model->forward(batch["x"]);
    scores.update(logits, batch);
    return cross_entropy(logits, batch["y"]);
  };
  fit.on_evaluation = [&](int64_t step, Metrics& metrics) {
    if (!scores.add_scores(devices->process_group(), metrics).ok()) return;
    std::printf("step %3ld  loss %.3f  accuracy %.3f\n", static_cast<long>(step), metrics["loss"], metrics["accuracy"]);
  };
  const auto loss = [](ExportedModel& model, const Batch& batch) {
    return cross_entropy(model->forward(batch["x"]), batch["y"]);
  };
  const TrainerResult result = trainer.fit(*loader, loss, fit).value();
  if (!folder.empty()) {  // back to Python: model.load_state_dict(safetensors.torch.load_file(...))
    save_safetensors(Fs::posix(), folder + "/trained.safetensors", named_tensors(*devices->module())).IgnoreError();
  }
  return result.evaluation.at("accuracy") > 0.9 ? 0 : 1;
}
