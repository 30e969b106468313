// own_trainer: classifies the rows of .npy files. run_app() provides flags, resume, several devices, the memory plan
// and results; this file contains the model, the data and the metrics.
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "trainkit/app/app.h"
#include "trainkit/app/placement.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/status.h"
#include "trainkit/data/split.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/nn/functional.h"

namespace {

using namespace trainkit;

/// Two linear layers with ReLU.
struct ClassifierImpl : torch::nn::Module {
  ClassifierImpl(int64_t inputs, int64_t hidden, int64_t classes)
      : first(register_module("first", torch::nn::Linear(inputs, hidden))),
        second(register_module("second", torch::nn::Linear(hidden, classes))) {}
  at::Tensor forward(const at::Tensor& x) { return second->forward(first->forward(x).relu()); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Classifier);

/// Returns the cross-entropy, with the share of correct rows as a metric. Both are computed on the device.
LossOutput classifier_loss(Classifier& model, const Batch& batch) {
  const at::Tensor scores = model->forward(batch["x"]);
  LossOutput output = cross_entropy(scores, batch["y"]);
  output.metrics.emplace_back("accuracy", scores.argmax(1).eq(batch["y"]).to(at::kFloat).mean());
  return output;
}

class ClassifierApp final : public App {
 public:
  AppInfo info() const override {
    return {.name = "own_trainer",
            .description = "Classifies the rows of x.npy (N, F) float32 by the labels of y.npy (N) int64.",
            .examples = {"own_trainer --make_demo_data demo && own_trainer --data_dir demo --hidden 32"}};
  }

  void set_defaults(RunOptions& run) const override { run.output_dir = "runs/own_trainer"; }

  void add_flags(ConfigParser& parser) override {
    parser.add("hidden", &hidden_, {.help = "Width of the hidden layer.", .group = "Model", .min = 1, .max = 65536});
  }

  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override {
    return run.data_dir.empty() ? parser.invalid("data_dir", "not given", "a folder with x.npy and y.npy")
                                : absl::OkStatus();
  }

  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override {
    at::manual_seed(seed);
    const at::Tensor x = at::rand({4096, 8});
    const at::Tensor y = x.slice(1, 0, 4).argmax(1);  // the largest of the first four features
    std::filesystem::create_directories(folder);
    TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/x.npy", x));
    TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/y.npy", y));
    std::printf("wrote %s/x.npy and %s/y.npy\n", folder.c_str(), folder.c_str());
    return 0;
  }

  absl::StatusOr<TrainingTask> open(RunContext& context) override {
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor x, read_npy(context.run.data_dir + "/x.npy"));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor y, read_npy(context.run.data_dir + "/y.npy"));
    const int64_t inputs = x.size(1), classes = y.max().item<int64_t>() + 1;
    const auto rows = std::make_shared<TensorDataset>(TensorDataset({{"x", x}, {"y", y}}));
    const auto parts = random_split(rows, {0.8, 0.2}, context.run.seed);
    TrainingTask task;
    task.recipe.make_model = [=, this] { return Classifier(inputs, hidden_, classes).ptr(); };
    task.recipe.loss = make_loss_function(classifier_loss);
    task.training_set = parts[0];
    test_set_ = task.validation_set = parts[1];
    task.keep_best = true;
    task.description = {{"data", std::to_string(x.size(0)) + " rows of " + std::to_string(inputs) + " features, " +
                                     std::to_string(classes) + " classes"}};
    return task;
  }

  absl::StatusOr<Metrics> test(RunContext& context, const TrainedModel& trained) override {
    if (trained.result.signal != 0) return Metrics{};
    TRAINKIT_RETURN_IF_ERROR(trained.load_best().status());
    TRAINKIT_ASSIGN_OR_RETURN(const auto loader,
                              evaluation_loader(test_set_, context.run, context.machine, context.placement));
    return evaluate(trained.devices, *loader, make_loss_function(classifier_loss), trained.precision);
  }

 private:
  int64_t hidden_ = 64;
  std::shared_ptr<const Dataset> test_set_;
};

}  // namespace

int main(int argc, char** argv) {
  ClassifierApp app;
  return run_app(argc, argv, app);
}
