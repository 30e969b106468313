// own_trainer: classifies the rows of .npy files. run_app() provides flags, resume, several devices, the memory plan,
// tests, results and predictions; this file contains the model and the data.
#include <ATen/Context.h>
#include <ATen/ops/rand.h>
#include <torch/nn/modules/linear.h>

#include <filesystem>

#include "trainkit/app/app.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/status.h"
#include "trainkit/data/split.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/tasks/classification.h"

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
  void add_flags(ConfigParser& parser) override {
    parser.add("hidden", &hidden_, {.help = "Width of the hidden layer.", .group = "Model", .min = 1, .max = 65536});
  }
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override {
    return run.data_dir.empty() ? parser.invalid("data_dir", "not given") : absl::OkStatus();
  }
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override {
    at::manual_seed(seed);
    const at::Tensor x = at::rand({4096, 8});
    std::filesystem::create_directories(folder);
    TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/x.npy", x));
    TRAINKIT_RETURN_IF_ERROR(write_npy(folder + "/y.npy", x.slice(1, 0, 4).argmax(1)));  // the largest of four features
    return 0;
  }

  absl::StatusOr<TrainingTask> open(RunContext& context) override {
    TRAINKIT_RETURN_IF_ERROR(read_classes(context.run));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor x, read_npy(context.run.data_dir + "/x.npy"));
    const auto rows = std::make_shared<TensorDataset>(TensorDataset({{"x", x}, {"y", labels_}}));
    const auto parts = random_split(rows, {0.8, 0.1, 0.1});
    return TrainingTask{.recipe = {.make_model = model(x.size(1))},
                        .training_set = parts[0],
                        .validation_set = parts[1],
                        .task = task(),
                        .test_set = parts[2],
                        .keep_best = true};
  }

  std::vector<AppCommand> commands() override {
    return {predict_command(
        *this, [this](TrainedRun& run) { return open_rows(run); }, "X.npy")};
  }

 private:
  absl::StatusOr<RowsToPredict> open_rows(TrainedRun& run) {
    TRAINKIT_RETURN_IF_ERROR(read_classes(run.options));
    TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor x, read_npy(run.words.front()));
    return RowsToPredict{model(x.size(1)), task(), std::make_shared<TensorDataset>(TensorDataset({{"x", x}}))};
  }
  absl::Status read_classes(const RunOptions& run) {
    TRAINKIT_ASSIGN_OR_RETURN(labels_, read_npy(run.data_dir + "/y.npy"));
    classes_ = labels_.max().item<int64_t>() + 1;
    return absl::OkStatus();
  }
  std::function<std::shared_ptr<torch::nn::Module>()> model(int64_t inputs) const {
    return [=, this] { return Classifier(inputs, hidden_, classes_).ptr(); };
  }
  std::shared_ptr<Task> task() const {
    return classification([](Classifier& net, const Batch& batch) { return net->forward(batch["x"]); },
                          {.classes = classes_});
  }
  int64_t hidden_ = 64, classes_ = 0;
  at::Tensor labels_;
};

int main(int argc, char** argv) {
  ClassifierApp app;
  return run_app(argc, argv, app);
}
