#pragma once
/// The trainer of exported PyTorch models as an App.

#include <memory>
#include <string>
#include <vector>

#include "train/model_table.h"
#include "train/model_task.h"
#include "trainkit/app/app.h"

namespace trainkit::train {

class TrainApp final : public App {
 public:
  AppInfo info() const override;
  void set_defaults(RunOptions& run) const override;
  void add_flags(ConfigParser& parser) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override;
  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status save(const RunOptions& run) const override;
  std::vector<AppCommand> commands() override;

 private:
  /// Reads --model, and freezes the parameters of --freeze.
  absl::Status load_model();
  /// Rows of a path: arrays, or with --target a table.
  absl::StatusOr<ModelData> open_rows(const std::string& path, bool needs_y) const;
  std::function<std::shared_ptr<torch::nn::Module>()> copies() const;
  std::function<std::unique_ptr<Optimizer>()> optimizers(const RunOptions& run) const;
  absl::StatusOr<RowsToPredict> rows_to_predict(TrainedRun& run);

  std::string model_path_, validation_path_, test_path_, target_, loss_ = "cross_entropy", optimizer_ = "adamw";
  double momentum_ = 0.9, validation_share_ = 0.1;
  std::vector<std::string> freeze_, ignore_;
  bool shuffle_ = true;
  ExportedModel model_ = nullptr;
  TableSchema columns_;  // of a table
};

}  // namespace trainkit::train
