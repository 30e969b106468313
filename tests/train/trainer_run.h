#pragma once
/// A small run of the Trainer with its outcome.

#include <signal.h>
#include <torch/torch.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "loop_util.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"
#include "trainkit/train/weights.h"

namespace trainkit::test {

/// Keeps logged values.
class RecordingLogger final : public Logger {
 public:
  void log(const LogRecord& record) override { records.push_back(record); }
  absl::Status flush() override { return absl::OkStatus(); }
  absl::Status rewind(int64_t step) override {
    std::erase_if(records, [&](const LogRecord& record) { return record.step > step; });
    return absl::OkStatus();
  }
  void print(std::string_view line) override { lines.emplace_back(line); }
  std::vector<LogRecord> records;
  std::vector<std::string> lines;
};

inline std::unique_ptr<Prefetcher> tiny_loader(int64_t rows, int64_t batch_size, int num_workers = 0) {
  return Prefetcher::create(tiny_dataset(rows), RandomSampler(rows, {.seed = 3}),
                            {.batch_size = batch_size, .num_workers = num_workers, .persistent_workers = true})
      .value();
}

inline bool same_bits(const NamedTensors& a, const NamedTensors& b) {
  if (a.size() != b.size()) return false;
  for (size_t i = 0; i < a.size(); ++i) {
    if (a[i].first != b[i].first || !at::equal(a[i].second, b[i].second)) return false;
  }
  return true;
}

struct Outcome {
  TrainerResult result;
  NamedTensors weights;
  std::vector<std::pair<int64_t, double>> losses;             // logged
  std::vector<double> lrs = {};                               // logged
  std::vector<std::pair<int64_t, std::string>> records = {};  // step and split of all logged records, in order
};

/// One run from a fixed seed with dropout, Adam state, a schedule, accumulation over an uneven epoch, and evaluation.
inline absl::StatusOr<Outcome> run(const TrainerOptions& options, int64_t stop_at = -1, int num_workers = 0) {
  torch::manual_seed(11);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = tiny_loader(/*rows=*/52, /*batch_size=*/4, num_workers);
  auto validation = tiny_loader(16, 8);
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-2}), options).value();
  RecordingLogger logger;
  FitOptions fit{.validation = validation.get(), .logger = &logger};
  int64_t calls = 0;
  auto result = trainer.fit(
      *loader,
      [&](TinyNet& model, const Batch& batch) {
        // The signal arrives in the middle of a step, between two micro-batches.
        if (model->is_training() && ++calls == stop_at) raise(SIGTERM);
        return tiny_loss(model, batch);
      },
      fit);
  if (!result.ok()) return result.status();
  Outcome outcome{*result, {}, {}};
  for (const auto& [name, tensor] : named_tensors(*devices->module()))
    outcome.weights.emplace_back(name, tensor.clone());
  for (const LogRecord& record : logger.records) {
    outcome.records.emplace_back(record.step, record.split);
    if (record.split != "train") continue;
    outcome.losses.emplace_back(record.step, *record.find("loss"));
    outcome.lrs.push_back(record.lr.at(0));
  }
  return outcome;
}

}  // namespace trainkit::test
