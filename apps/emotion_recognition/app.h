#pragma once
/// Implements the emotion trainer as an App.

#include <algorithm>
#include <memory>
#include <optional>

#include "emotion_recognition/export.h"
#include "emotion_recognition/options.h"
#include "emotion_recognition/predict.h"
#include "emotion_recognition/session.h"
#include "trainkit/app/app.h"

namespace trainkit::emotion {

class EmotionApp final : public App {
 public:
  AppInfo info() const override;
  std::vector<AppCommand> commands() override {
    return {predict_command(*this, options_), export_command(*this, options_)};
  }
  void set_defaults(RunOptions& run) const override { set_run_defaults(run); }
  void add_flags(ConfigParser& parser) override;
  void set_dependent_defaults(ConfigParser& parser) const override { set_batch_default(parser, options_); }
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override;

  Repeats repeats() const override {
    return {.count = std::max<int64_t>(options_.folds, 1), .folder = "fold", .word = "fold", .own_seeds = false};
  }

  ReadCost read_cost() const override { return options_.cache_dir.empty() ? ReadCost::kDecode : ReadCost::kCopy; }
  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status adapt_weights(RunContext& context, const RunWeights& from, LoadWeightsOptions& options,
                             RunFacts& facts) override;
  absl::StatusOr<int> prepare(RunContext& context, TrainingTask& task) override;
  void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices) override;
  absl::Status save(const RunOptions& run) const override {
    return save_labels(run.output_dir + "/" + kLabelsFile, session_->labels());
  }

 private:
  EmotionOptions options_;
  std::optional<Session> session_;
};

}  // namespace trainkit::emotion
