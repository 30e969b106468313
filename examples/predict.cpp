// Uses a trained model: trains a classifier for a few epochs, then loads its run and classifies other rows.
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>

#include "trainkit/app/predictor.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

struct ClassifierImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& x) { return out(hidden(x).relu()); }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(32, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 10));
};
TORCH_MODULE(Classifier);

// The class of a row is the index of the largest of its first 10 numbers.
std::shared_ptr<TensorDataset> make_rows(int64_t count) {
  const at::Tensor x = torch::randn({count, 32});
  return std::make_shared<TensorDataset>(NamedTensors{{"x", x}, {"y", x.slice(1, 0, 10).argmax(1)}});
}

void train(const std::string& run) {
  const auto rows = make_rows(8192);
  auto loader = Prefetcher::create(rows, RandomSampler(rows->size()), {.batch_size = 128}).value();
  auto devices = DeviceReplicator::create([] { return Classifier(); }).value();
  auto trainer =
      Trainer::create(*devices, AdamW({.lr = 5e-3}), {.max_epochs = 5, .save_every = 320, .output_dir = run}).value();
  trainer.fit(*loader, [](Classifier& m, const Batch& b) { return cross_entropy(m->forward(b["x"]), b["y"]); }).value();
}

int main() {
  torch::manual_seed(0);
  const std::string run = (std::filesystem::temp_directory_path() / "trainkit_example_predict").string();
  std::filesystem::remove_all(run);
  std::filesystem::create_directories(run);
  train(run);

  // Two logical replicas on the CPU; {at::Device("cuda:0"), at::Device("cuda:1")} uses two GPUs.
  const auto predictor = Predictor::open(run, [] { return Classifier(); },
                                         {.devices = {at::kCPU, at::kCPU}, .loader = {.batch_size = 256}})
                             .value();
  std::printf("%s\n", predictor.weights().describe().c_str());
  const auto rows = make_rows(1000);
  int64_t right = 0;
  predictor
      .run(
          rows, [](Classifier& model, const Batch& batch) { return model->forward(batch["x"]).softmax(1); },
          [&](const Batch& batch, const at::Tensor& probabilities) {
            right += probabilities.argmax(1).eq(batch["y"]).sum().item<int64_t>();
            return absl::OkStatus();
          })
      .value();
  std::printf("%ld of %ld rows are classified correctly\n", static_cast<long>(right), static_cast<long>(rows->size()));
  std::filesystem::remove_all(run);
  return right > 500 ? 0 : 1;
}
