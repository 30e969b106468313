// own_trainer: classifies the rows of .npy files. run_app() provides flags, resume, several devices, the memory plan,
// tests and results; this file contains the model and the data.
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>

#include "trainkit/app/app.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/status.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/tasks/classification.h"

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
    const int64_t rows = x.size(0), training = rows * 4 / 5;
    const int64_t inputs = x.size(1), classes = y.max().item<int64_t>() + 1;
    const auto part = [&](int64_t begin, int64_t end) {
      return std::make_shared<TensorDataset>(
          TensorDataset({{"x", x.slice(0, begin, end)}, {"y", y.slice(0, begin, end)}}));
    };
    TrainingTask task;
    task.recipe.make_model = [=, this] { return Classifier(inputs, hidden_, classes).ptr(); };
    task.task = classification([](Classifier& model, const Batch& batch) { return model->forward(batch["x"]); },
                               {.classes = classes});
    task.training_set = part(0, training);
    task.test_set = task.validation_set = part(training, rows);
    task.keep_best = true;
    task.description = {{"data", std::to_string(rows) + " rows of " + std::to_string(inputs) + " features, " +
                                     std::to_string(classes) + " classes"}};
    return task;
  }

 private:
  int64_t hidden_ = 64;
};

}  // namespace

int main(int argc, char** argv) {
  ClassifierApp app;
  return run_app(argc, argv, app);
}
