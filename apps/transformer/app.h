#pragma once
/// The Transformer trainer as an App.

#include <optional>
#include <string>
#include <vector>

#include "trainkit/app/app.h"
#include "trainkit/core/fs.h"
#include "transformer/corpus.h"
#include "transformer/evaluate.h"
#include "transformer/initial_rows.h"
#include "transformer/mixture.h"
#include "transformer/model.h"
#include "transformer/options.h"

namespace trainkit::transformer {

class TransformerApp final : public App {
 public:
  AppInfo info() const override;
  std::vector<AppCommand> commands() override { return {evaluate_command(*this, options_)}; }
  void set_defaults(RunOptions& run) const override { set_run_defaults(run); }
  void add_flags(ConfigParser& parser) override { add_transformer_flags(parser, options_); }
  Settings device_defaults(bool cuda) const override { return transformer::device_defaults(cuda); }
  absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) override;
  absl::Status check_options(const ConfigParser& parser, const RunOptions&) const override {
    return check_transformer_options(parser, options_);
  }
  std::optional<OtherWork> other_work() const override;

  absl::StatusOr<TrainingTask> open(RunContext& context) override;
  absl::Status adapt_weights(RunContext&, const RunWeights& from, LoadWeightsOptions& options,
                             RunFacts& facts) override {
    return adapt_rows(from, *corpus_.tokenizer, options_, options, facts);
  }
  void apply_plan(const MemoryPlan& plan) override;
  void configure(RunContext& context, TrainerOptions& options, DeviceReplicator& devices) override;
  absl::Status save(const RunOptions& run) const override;
  /// Adds the observed shares of a mixture.
  absl::Status on_results(RunContext& context, const std::string& folder, TestedRows& tested,
                          ResultPage& page) override;
  absl::Status finish(RunContext& context, const TrainerResult& result) override;

 private:
  /// Reads the texts, with the tokenizer of the run that --resume continues. Token files are cached in --data_dir or in
  /// the run's folder; a dry run has a temporary folder for them.
  absl::Status open_corpus(const RunOptions& run);
  double share_of_targets(int64_t document_end) const;
  StepRecipe recipe(const RunContext& context) const;
  std::shared_ptr<Task> task(const RunContext& context, const ValidationRows& validation) const;
  RunFacts describe(const RunContext& context, const ValidationRows& validation) const;

  TransformerOptions options_;
  std::optional<TemporaryFolder> temporary_;
  Corpus corpus_;
  double target_share_ = 1;         // of the training positions: those that have a target
  std::optional<Mixture> mixture_;  // of the training texts by weight
  std::vector<int64_t> mixed_rows_;
};

}  // namespace trainkit::transformer
