#pragma once
/// The hyperspectral trainer as an App.

#include <memory>
#include <optional>

#include "hsi_classification/options.h"
#include "hsi_classification/session.h"
#include "trainkit/app/app.h"

namespace trainkit::hsi {

class HsiApp final : public App {
 public:
  std::vector<AppCommand> commands() override;
  AppInfo info() const override;
  void set_defaults(RunOptions& run) const override { set_run_defaults(run); }
  void add_flags(ConfigParser& parser) override { add_hsi_flags(parser, options_); }
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override;
  absl::Status resolve_options(const ConfigParser& parser, RunOptions& run, const MachineInfo& machine) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions& run) const override;
  Repeats repeats() const override { return {.count = options_.repeats}; }

  absl::Status save(const RunOptions& run) const override;
  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status adapt_weights(RunContext& context, const RunWeights& from, LoadWeightsOptions& options,
                             RunFacts& facts) override;
  absl::Status on_results(RunContext& context, const std::string& folder, TestedRows& tested,
                          ResultPage& page) override;

 private:
  HsiOptions options_;
  std::optional<Session> session_;  // shared by all repeats
  Split split_;
};

}  // namespace trainkit::hsi
