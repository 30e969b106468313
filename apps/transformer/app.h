#pragma once
/// The Transformer trainer as an App.

#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"
#include "transformer/evaluate.h"
#include "transformer/options.h"
#include "transformer/session.h"

namespace trainkit::transformer {

class TransformerApp final : public App {
 public:
  AppInfo info() const override;
  std::vector<AppCommand> commands() override { return {evaluate_command(*this, options_)}; }
  void set_defaults(RunOptions& run) const override { set_run_defaults(run); }
  void add_flags(ConfigParser& parser) override { add_transformer_flags(parser, options_); }
  Settings device_defaults(bool cuda) const override { return transformer::device_defaults(cuda); }
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override;
  std::optional<ProgramMode> mode_instead() const override;
  absl::StatusOr<std::optional<int>> run_instead(const RunOptions& run, at::Device device) override;

  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status adapt_weights(RunContext& context, const RunWeights& from, LoadWeightsOptions& options,
                             RunFacts& facts) override;
  void apply_plan(const MemoryPlan& plan) override;
  void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices) override;
  absl::Status save(const RunOptions& run) const override;
  absl::Status on_evaluation(RunContext& context, int64_t step, Metrics& metrics, DeviceReplicator& devices) override;
  std::string describe_scores(const RunContext& context, const TrainerResult& result,
                              const Metrics& scores) const override;
  /// Loads the best weights for the sample of finish(); returns the observed shares of a mixture.
  absl::StatusOr<Metrics> test(RunContext& context, const TrainedModel& trained) override;
  absl::Status finish(RunContext& context, const TrainedModel& trained) override;

 private:
  std::string sample_title(int64_t step, const RunContext& context) const;
  /// Writes a sample of the best weights before summary.json: a run with a summary has all of its results.
  absl::Status sample_at_end(RunContext& context, const TrainedModel& trained);
  StepRecipe recipe(const RunContext& context) const;
  /// Rows of each text that the run has read, resumed steps included.
  std::vector<int64_t> mixed_rows(const RunContext& context, const TrainerResult& result) const;

  TransformerOptions options_;
  std::optional<Session> session_;
  std::string last_sample_;
};

}  // namespace trainkit::transformer
