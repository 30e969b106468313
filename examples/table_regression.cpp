// Trains a regression on a csv file and predicts rows of another one: flags, plan, resume, ranks and report are the
// kit's.
#include <torch/nn/modules/linear.h>

#include "trainkit/app/app.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"
#include "trainkit/data/split.h"
#include "trainkit/data/table_dataset.h"
#include "trainkit/tasks/regression.h"

using namespace trainkit;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width) : first(width, 64), second(64, 1) {
    register_module("first", first);
    register_module("second", second);
  }
  at::Tensor forward(const at::Tensor& x) { return second(first(x).relu()); }
  torch::nn::Linear first, second;
};
TORCH_MODULE(Net);

std::shared_ptr<Task> task_of(const TableSchema& schema) {
  return regression(
      [schema](Net& net, const Batch& batch) { return net->forward(schema.inputs(batch)); },
      {.target = schema.target().name, .mean = schema.target().mean, .deviation = schema.target().deviation});
}

struct RegressionApp final : App {
  AppInfo info() const override {
    return {.name = "table_regression", .description = "Predicts a column of --csv.", .files = {"table.json"}};
  }
  void add_flags(ConfigParser& parser) override {
    parser.add("csv", &csv, {.help = "The table.", .path = PathKind::kInput});
    parser.add("target", &target, {.help = "The column to predict."});
  }
  absl::StatusOr<TrainingTask> open(RunContext&) override {
    TRAINKIT_ASSIGN_OR_RETURN(const Table table, Table::open(csv));
    const auto parts = random_split(table.rows(), {0.8, 0.1, 0.1});
    TRAINKIT_ASSIGN_OR_RETURN(schema, TableSchema::learn(table, parts[0], {.target = target}));
    TRAINKIT_ASSIGN_OR_RETURN(const auto rows, TableDataset::create(table, schema));
    const auto part = [&](size_t i) { return std::make_shared<Subset>(rows, parts[i]); };
    return TrainingTask{.recipe = {.make_model = [width = schema.width()] { return Net(width).ptr(); }},
                        .training_set = part(0),
                        .validation_set = part(1),
                        .task = task_of(schema),
                        .test_set = part(2),
                        .keep_best = true};
  }
  absl::Status save(const RunOptions& run) const override { return schema.save(run.output_dir + "/table.json"); }
  std::vector<AppCommand> commands() override { return {predict_command(*this, to_predict, "TABLE.csv")}; }

  static absl::StatusOr<RowsToPredict> to_predict(TrainedRun& run) {
    TRAINKIT_ASSIGN_OR_RETURN(const std::string stored, run.file("table.json", "its columns"));
    TRAINKIT_ASSIGN_OR_RETURN(const TableSchema schema, TableSchema::load(stored));
    TRAINKIT_ASSIGN_OR_RETURN(const Table table, Table::open(run.words.front()));
    TRAINKIT_ASSIGN_OR_RETURN(const auto rows, TableDataset::create(table, schema));
    return RowsToPredict{
        [width = schema.width()] { return Net(width).ptr(); }, task_of(schema), rows, {}, rows->describe_unknown()};
  }
  std::string csv, target;
  TableSchema schema;
};

int main(int argc, char** argv) {
  RegressionApp app;
  return run_app(argc, argv, app);
}
