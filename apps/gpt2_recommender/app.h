#pragma once
/// Implements the recommender as an App.

#include <optional>
#include <string>

#include "gpt2_recommender/options.h"
#include "gpt2_recommender/session.h"
#include "trainkit/app/app.h"

namespace trainkit::rec {

class RecommenderApp final : public App {
 public:
  AppInfo info() const override;
  void set_defaults(RunOptions& run) const override { set_run_defaults(run); }
  std::vector<AppCommand> commands() override;
  void add_flags(ConfigParser& parser) override;
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override;
  absl::Status resolve_options(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override;

  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status adapt_weights(RunContext& context, const RunWeights& from, LoadWeightsOptions& options,
                             RunFacts& facts) override;
  void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices) override;
  absl::Status save(const RunOptions& run) const override { return session_->save(run); }
  absl::Status on_evaluation(RunContext& context, int64_t step, Metrics& metrics, DeviceReplicator& devices) override;
  absl::Status on_best(RunContext& context, const torch::nn::Module& model) override;
  absl::Status on_results(RunContext& context, const std::string& folder, TestedRows& tested,
                          ResultPage& page) override;
  absl::Status finish(RunContext& context, const TrainerResult& result) override;

 private:
  RecOptions options_;
  std::string rounding_;  // line about a changed number of rows per step; empty if none
  std::optional<Session> session_;
  std::optional<double> popularity_;          // its score in validation
  Metrics test_;                              // scores of the test
  std::shared_ptr<torch::nn::Module> model_;  // of the first replica
};

}  // namespace trainkit::rec
