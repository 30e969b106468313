// Trains a classifier on a folder per class of .npy files, and predicts those of other folders.
#include <torch/nn/modules/linear.h>

#include "trainkit/app/app.h"
#include "trainkit/core/status.h"
#include "trainkit/data/array_folder.h"
#include "trainkit/data/split.h"
#include "trainkit/tasks/classification.h"

using namespace trainkit;

struct NetImpl : torch::nn::Module {
  NetImpl(int64_t inputs, int64_t classes) : first(inputs, 64), second(64, classes) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x.flatten(1)).relu()); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

struct ClassesApp final : App {
  AppInfo info() const override {
    return {.name = "array_classes", .description = "Classifies the arrays of --data_dir, a folder per class."};
  }
  absl::StatusOr<TrainingTask> open(RunContext& context) override {
    TRAINKIT_ASSIGN_OR_RETURN(rows, ArrayFolder::open(context.run.data_dir));
    const auto parts = random_split(rows, {0.8, 0.1, 0.1});
    const auto name = [this, test = parts[2]](int64_t row) { return rows->name(test->source(row).second); };
    return TrainingTask{.recipe = {.make_model = model()},
                        .training_set = parts[0],
                        .validation_set = parts[1],
                        .task = task(name),
                        .test_set = parts[2],
                        .keep_best = true};
  }
  std::vector<AppCommand> commands() override {
    return {predict_command(
        *this, [this](TrainedRun& run) { return to_predict(run); }, "FOLDER")};
  }
  absl::StatusOr<RowsToPredict> to_predict(TrainedRun& run) {
    TRAINKIT_ASSIGN_OR_RETURN(rows, ArrayFolder::open(run.options.data_dir));
    TRAINKIT_ASSIGN_OR_RETURN(const auto other, ArrayFolder::open(run.words.front()));
    return RowsToPredict{model(), task({}), other, [other](int64_t row) { return other->name(row); }};
  }
  std::function<std::shared_ptr<torch::nn::Module>()> model() const {
    const int64_t inputs = rows->fields()[0].row_bytes() / 4;
    return [=, classes = std::ssize(rows->classes())] { return Net(inputs, classes).ptr(); };
  }
  std::shared_ptr<Task> task(std::function<std::string(int64_t)> row_name) const {
    return classification([](Net& net, const Batch& batch) { return net->forward(batch["x"]); },
                          {.labels = rows->classes(), .row_word = "array", .row_name = std::move(row_name)});
  }
  std::shared_ptr<const ArrayFolder> rows;
};

int main(int argc, char** argv) {
  ClassesApp app;
  return run_app(argc, argv, app);
}
