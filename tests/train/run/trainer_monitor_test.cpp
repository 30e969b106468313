// The Trainer's monitor during a run.
#include <thread>

#include "monitor/monitor_series.h"
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Keeps logged records and printed lines.
class MemoryLogger final : public Logger {
 public:
  void log(const LogRecord& record) override { records.push_back(record); }
  void print(std::string_view line) override { lines.emplace_back(line); }
  void log_monitor(const MonitorReport& report) override { reports.push_back(report); }
  absl::Status flush() override { return absl::OkStatus(); }
  std::vector<LogRecord> records;
  std::vector<std::string> lines;
  std::vector<MonitorReport> reports;
};

/// Rows that are slow to read.
class SlowRows final : public Dataset {
 public:
  SlowRows(int64_t rows, std::chrono::milliseconds each) : rows_(tiny_dataset(rows)), each_(each) {}
  int64_t size() const override { return rows_->size(); }
  const std::vector<FieldSpec>& fields() const override { return rows_->fields(); }
  void get(const RowKey& key, const BatchView& out, int64_t at) const override {
    std::this_thread::sleep_for(each_);
    rows_->get(key, out, at);
  }

 private:
  std::shared_ptr<const Dataset> rows_;
  std::chrono::milliseconds each_;
};

std::unique_ptr<Prefetcher> loader_of(std::shared_ptr<const Dataset> rows, int64_t batch_size, int num_workers = 0) {
  const int64_t size = rows->size();
  return Prefetcher::create(std::move(rows), SequentialSampler(size),
                            {.batch_size = batch_size, .num_workers = num_workers})
      .value();
}

}  // namespace

TEST_CASE("A record has the time shares of its steps, and the shares add up", "[train][monitor]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = loader_of(tiny_dataset(80), 4);
  MemoryLogger logger;
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}), {.max_epochs = 1, .log_every = 5}).value();
  const TrainerResult result = trainer.fit(*loader, tiny_loss, {.logger = &logger}).value();
  REQUIRE(logger.records.size() == 4);
  for (const LogRecord& record : logger.records) {
    double sum = 0;
    for (const char* name : {"data_wait_fraction", "copy_fraction", "compute_fraction", "reduce_fraction"}) {
      INFO(name);
      REQUIRE(record.find(name));
      CHECK(*record.find(name) >= 0);
      sum += *record.find(name);
    }
    CHECK(sum == Approx(1));
    REQUIRE(record.find("utilisation"));
    CHECK(*record.find("utilisation") == Approx(1 - *record.find("data_wait_fraction")));
    CHECK(record.find("queue_depth"));
  }
  CHECK(result.monitor.seconds > 0);
  CHECK(result.monitor.seconds <= result.wall_seconds);
  CHECK_FALSE(result.monitor.of_gpus);
  CHECK(result.monitor.resident_bytes > (1 << 20));
}

TEST_CASE("The logger gets the memory of a step once it is measured", "[train][monitor]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = loader_of(tiny_dataset(80), 4);
  MemoryLogger logger;
  TrainerOptions options{.max_epochs = 1, .log_every = 5};
  options.predicted_memory.emplace()[MemoryClass::kActivations] = 4096;
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}), options).value();
  const TrainerResult result = trainer.fit(*loader, tiny_loss, {.logger = &logger}).value();
  REQUIRE(!logger.reports.empty());
  CHECK(logger.reports[0].predicted_step_bytes == 4096);
  CHECK(logger.reports[0].real_step_bytes > 0);
  CHECK(result.monitor.real_step_bytes == result.real_memory_bytes);
}

TEST_CASE("The monitor excludes the time of a slow evaluation", "[train][monitor]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = loader_of(tiny_dataset(80), 4);
  auto validation = loader_of(std::make_shared<SlowRows>(16, std::chrono::milliseconds(5)), 8);
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}), {.max_epochs = 1, .eval_every = 4}).value();
  const TrainerResult result = trainer.fit(*loader, tiny_loss, {.validation = validation.get()}).value();
  REQUIRE(result.steps == 20);
  CHECK(result.wall_seconds >= 5 * 0.08);  // five evaluations
  CHECK(result.monitor.seconds <= result.wall_seconds - 4 * 0.08);
}

TEST_CASE("Replicas that reduce gradients report the time for it, and a single one does not", "[train][monitor]") {
  const auto reduced = [](int64_t replicas) {
    auto devices = DeviceReplicator::create([] { return TinyNet(); },
                                            {.strategy = replicas > 1 ? Strategy::kDataParallel : Strategy::kSingle,
                                             .cpu_replicas = replicas})
                       .value();
    auto loader = loader_of(tiny_dataset(80), 4);
    auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}), {.max_epochs = 1}).value();
    return trainer.fit(*loader, tiny_loss).value().monitor.split.reduce;
  };
  CHECK(reduced(1) == 0);
  CHECK(reduced(2) > 0);
}

namespace {

/// A slow update, whatever the number of rows.
class SlowSgd final : public SGD {
 public:
  SlowSgd() : SGD({.lr = 1e-3}) {}
  std::unique_ptr<Optimizer> create_like() const override { return std::make_unique<SlowSgd>(); }

 protected:
  void apply(const FusedArguments& arguments) override {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    SGD::apply(arguments);
  }
};

/// The advice about the batch after training with SlowSgd and batches of `batch_size` slow rows. On a busy machine
/// there may be other advice.
std::vector<Advice> advice_for(int64_t batch_size) {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = loader_of(tiny_dataset(batch_size), batch_size);
  auto trainer = Trainer::create(*devices, SlowSgd(), {.max_epochs = 0, .max_steps = 15}).value();
  const auto loss = [](TinyNet& model, const Batch& batch) {
    std::this_thread::sleep_for(batch.size() * std::chrono::microseconds(200));
    return tiny_loss(model, batch);
  };
  std::vector<Advice> advice = trainer.fit(*loader, loss).value().monitor.advice;
  std::erase_if(advice, [](const Advice& one) { return one.row != Bottleneck::kSmallBatch; });
  return advice;
}

}  // namespace

TEST_CASE("A batch that is too small is reported, and a large enough one is not", "[train][monitor]") {
  const auto one_row = advice_for(1);
  REQUIRE(one_row.size() == 1);
  CHECK(one_row[0].flag == "--batch_size");
  CHECK(one_row[0].text.ends_with("raise --batch_size from 1 to 2"));
  CHECK(advice_for(512).empty());
}

TEST_CASE("The live table is printed during the run", "[train][monitor]") {
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = loader_of(tiny_dataset(400), 4);
  MemoryLogger logger;
  const MonitorOptions monitoring{.window = std::chrono::milliseconds(10), .table_every = 2};
  auto trainer = Trainer::create(*devices, SGD({.lr = 1e-3}), {.max_epochs = 1, .monitoring = monitoring}).value();
  const auto slow_loss = [](TinyNet& model, const Batch& batch) {
    std::this_thread::sleep_for(std::chrono::milliseconds(2));
    return tiny_loss(model, batch);
  };
  REQUIRE(trainer.fit(*loader, slow_loss, {.logger = &logger}).ok());
  REQUIRE(logger.lines.size() >= 2);
  CHECK(logger.lines[0] == MonitorSeries::table_heading());
  CHECK(logger.lines[1].starts_with("monitor "));
}
