#include "trainkit/memory/batch_size_planner.h"

#include <torch/torch.h>

#include "memory/memory_recorder.h"
#include "test_util.h"

namespace trainkit {
namespace {

constexpr int64_t kMiB = int64_t{1} << 20;

TEST_CASE("A batch is divided as max(1, total / devices), and rows changed by rounding are reported") {
  CHECK(share_batch(2048, 8).per_device == 256);
  CHECK(share_batch(2048, 8).lost == 0);
  CHECK(share_batch(2048, 3).per_device == 682);
  CHECK(share_batch(2048, 3).lost == 2);
  CHECK(share_batch(3, 8).per_device == 1);
  CHECK(share_batch(3, 8).lost == -5);
  CHECK_THROWS_AS(share_batch(0, 1), c10::ValueError);
}

/// Two hand-written, recorded steps of a perceptron; `micro_batches` accumulate.
absl::StatusOr<MemoryTrace> record_perceptron(int64_t rows, int64_t micro_batches) {
  MemoryRecorder recorder(MemoryClass::kWeights);
  torch::nn::Sequential model(torch::nn::Linear(64, 256), torch::nn::ReLU(), torch::nn::Linear(256, 256),
                              torch::nn::ReLU(), torch::nn::Linear(256, 10));
  recorder.enter(MemoryClass::kOptimizer);
  torch::optim::SGD optimizer(model->parameters(), torch::optim::SGDOptions(0.01));
  recorder.enter(MemoryClass::kBatch);
  const at::Tensor x = torch::rand({rows, 64}), y = torch::zeros({rows}, torch::kLong);
  for (int step = 0; step < 2; ++step) {
    for (int64_t i = 0; i < micro_batches; ++i) {
      recorder.enter(MemoryClass::kActivations);
      torch::nn::functional::cross_entropy(model->forward(x), y).backward();
      for (const at::Tensor& p : model->parameters()) recorder.assign(p.grad(), MemoryClass::kGradients);
    }
    optimizer.step();
    optimizer.zero_grad();
  }
  return recorder.trace();
}

int64_t counted(int64_t rows) { return record_perceptron(rows, 1).value().peak().total(); }

TEST_CASE("The peak memory of a perceptron's step is predicted within 1 % at any batch") {
  const auto estimate = MemoryEstimate::create([](int64_t rows) { return record_perceptron(rows, 1); }).value();
  CHECK(estimate.check_error() <= 0.005);
  for (const int64_t rows : {1, 3, 16, 17, 33, 64, 100, 127, 128, 1000, 4096}) {
    INFO(rows << " rows");
    const MemoryBytes peak = estimate.predict(rows).peak;
    CHECK(static_cast<double>(peak.total()) == Approx(static_cast<double>(counted(rows))).epsilon(0.01));
    CHECK(peak[MemoryClass::kWeights] == 4 * (64 * 256 + 256 + 256 * 256 + 256 + 256 * 10 + 10));
  }
}

TEST_CASE("A kernel that changes its algorithm for few rows makes the estimate start from more rows") {
  std::vector<int64_t> recorded;
  const auto work = [&](int64_t rows) -> absl::StatusOr<MemoryTrace> {
    recorded.push_back(rows);
    MemoryTrace trace;
    trace.blocks.push_back({.bytes = rows < 8 ? 1000 : 100 * rows});  // allocated in a phase, never freed
    trace.events.push_back(1);
    return trace;
  };
  const auto estimate = MemoryEstimate::create(work).value();
  CHECK(estimate.check_error() == 0);
  CHECK(estimate.predict(500).peak.total() == 50000);
  CHECK(recorded == std::vector<int64_t>{2, 4, 8, 16, 32});
  // With few rows to record there is no better base, and the error is reported.
  const auto poor = MemoryEstimate::create(work, 8).value();
  CHECK(poor.check_error() == Approx(0.25));
  CHECK(poor.check_batch_size() == 8);
}

TEST_CASE("An error of the recording is returned") {
  const auto failing = [](int64_t rows) -> absl::StatusOr<MemoryTrace> {
    if (rows == 4) return absl::DataLossError("row 3");
    return MemoryTrace{};
  };
  CHECK(MemoryEstimate::create(failing).status().code() == absl::StatusCode::kDataLoss);
}

/// 10 MiB are permanent, and each row takes 1 MiB; with accumulation the gradients (5 MiB) are allocated with the
/// activations.
absl::StatusOr<MemoryTrace> plain_step(int64_t rows, int64_t micro_batches) {
  MemoryTrace trace;
  trace.blocks = {{.bytes = 10 * kMiB, .kind = MemoryClass::kWeights}};
  trace.events = {1};
  if (micro_batches > 1) {
    trace.blocks.push_back({.bytes = 5 * kMiB, .kind = MemoryClass::kGradients});
    trace.events.push_back(2);
  }
  for (int64_t i = 0; i < 2; ++i) {
    trace.blocks.push_back({.bytes = rows * kMiB / 2});
    trace.events.push_back(static_cast<int32_t>(trace.blocks.size()));
  }
  return trace;
}

BatchSizePlan plan_of(const BatchSizePlannerOptions& options) {
  return BatchSizePlanner::create(plain_step, options).value().plan().value();
}

/// As TrainStep: each row takes 1 MiB while it is computed, and every micro-batch but the last is kept, 256 KiB a row.
absl::StatusOr<MemoryTrace> keeping_step(int64_t rows, int64_t micro_batches) {
  MemoryTrace trace = plain_step(rows, 1).value();
  for (int64_t i = 1; i < micro_batches; ++i) {
    trace.blocks.push_back({.bytes = rows * kMiB / 4});
    trace.events.insert(trace.events.begin(), static_cast<int32_t>(trace.blocks.size()));
  }
  return trace;
}

TEST_CASE("A plan counts the micro-batches that a step keeps") {
  auto planner = BatchSizePlanner::create(keeping_step, {}).value();
  for (const int64_t steps : {1, 2, 3, 16, 64}) {
    CAPTURE(steps);
    const MemoryBytes expected = keeping_step(100, steps).value().peak();
    CHECK(planner.describe(100, steps).value().memory.peak.by_class == expected.by_class);
    CHECK(planner.estimate(steps).value().trace(100).peak().total() == expected.total());
  }
  const auto plan = [](int64_t mebibytes) {
    return BatchSizePlanner::create(keeping_step,
                                    {.device_bytes = mebibytes * kMiB, .usable = 1, .global_batch_size = 256})
        .value()
        .plan()
        .value();
  };
  CHECK(plan(10 + 64 + 48).batch_size == 64);  // 3 kept micro-batches of 16 MiB
  CHECK(plan(10 + 64 + 47).batch_size < 64);
  CHECK(plan(80).fits);
  CHECK(!plan(70).fits);  // all rows but one are kept
}

TEST_CASE("Without a global batch the largest power of two that fits is taken") {
  const BatchSizePlan plan = plan_of({.device_bytes = 100 * kMiB, .usable = 1});
  CHECK(plan.batch_size == 64);
  CHECK(plan.grad_accum_steps == 1);
  CHECK(plan.fits);
  CHECK(plan.memory.peak.total() == 74 * kMiB);
  CHECK(plan_of({.device_bytes = 100 * kMiB, .usable = 1, .reserve_bytes = 30 * kMiB}).batch_size == 32);
  CHECK(plan_of({.device_bytes = 100 * kMiB, .usable = 0.7}).batch_size == 32);
  CHECK(plan_of({.device_bytes = 100 * kMiB, .usable = 1, .max_batch_size = 20}).batch_size == 16);
  CHECK(plan_of({}).batch_size == 2048);
  const BatchSizePlan accumulated = plan_of({.device_bytes = 90 * kMiB, .usable = 1, .grad_accum_steps = 4});
  CHECK(accumulated.batch_size == 32);
  CHECK(accumulated.grad_accum_steps == 4);
}

TEST_CASE("With a global batch the largest divisor of each device's share that fits is accumulated") {
  const BatchSizePlan whole =
      plan_of({.device_bytes = 100 * kMiB, .usable = 1, .devices = 3, .global_batch_size = 192});
  CHECK(whole.batch_size == 64);
  CHECK(whole.grad_accum_steps == 1);
  const BatchSizePlan part = plan_of({.device_bytes = 70 * kMiB, .usable = 1, .devices = 3, .global_batch_size = 192});
  CHECK(part.batch_size == 32);
  CHECK(part.grad_accum_steps == 2);
  CHECK(part.global_batch_size() == 192);
  CHECK(part.memory.peak[MemoryClass::kGradients] == 5 * kMiB);
  const BatchSizePlan rounded = plan_of({.devices = 3, .global_batch_size = 200});
  CHECK(rounded.batch_size == 66);
  CHECK(rounded.lost_rows == 2);
}

TEST_CASE("A given batch size above the global batch loses no rows") {
  auto planner = BatchSizePlanner::create(plain_step, {.global_batch_size = 4});
  REQUIRE(planner.ok());
  CHECK(planner->describe(8, 1).value().lost_rows == 0);
  CHECK(planner->describe(1, 3).value().lost_rows == 1);
}

TEST_CASE("The plan reports that not even one row fits") {
  const BatchSizePlan plan = plan_of({.device_bytes = 8 * kMiB, .global_batch_size = 64});
  CHECK(plan.batch_size == 1);
  CHECK(plan.grad_accum_steps == 64);
  CHECK(!plan.fits);
  CHECK(!plan_of({.device_bytes = 8 * kMiB}).fits);
}

TEST_CASE("The planner reports every option that is out of range") {
  const auto refused = BatchSizePlanner::create(plain_step,
                                                {.device_bytes = -1,
                                                 .usable = 0,
                                                 .reserve_bytes = -1,
                                                 .devices = 0,
                                                 .global_batch_size = -1,
                                                 .grad_accum_steps = 0,
                                                 .max_batch_size = 0},
                                                3);
  REQUIRE(!refused.ok());
  for (const char* name : {"device_bytes", "usable", "reserve_bytes", "devices", "global_batch_size",
                           "grad_accum_steps", "max_batch_size", "max_recorded_batch_size"}) {
    CHECK(refused.status().message().find(name) != std::string::npos);
  }
}

TEST_CASE("Measuring finds the largest batch that runs, in few attempts") {
  for (const int64_t limit : {1, 2, 3, 37, 64, 99, 100}) {
    int attempts = 0;
    const auto attempt = [&](int64_t rows) {
      ++attempts;
      return rows <= limit ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
    };
    CHECK(measure_batch_size(attempt, 100).value() == limit);
    CHECK(attempts <= 14);
  }
  CHECK(measure_batch_size([](int64_t) { return absl::ResourceExhaustedError("no memory"); }, 100).status().code() ==
        absl::StatusCode::kResourceExhausted);
  CHECK(measure_batch_size([](int64_t) { return absl::DataLossError("row"); }, 100).status().code() ==
        absl::StatusCode::kDataLoss);
}

TEST_CASE("A plan is confirmed by a trial, and otherwise the largest batch that runs is taken") {
  auto planner = BatchSizePlanner::create(plain_step, {.usable = 1, .devices = 3, .global_batch_size = 192}).value();
  const BatchSizePlan planned = planner.plan().value();
  REQUIRE(planned.batch_size == 64);
  std::vector<std::pair<int64_t, int64_t>> tried;
  const auto up_to = [&](int64_t most) {
    tried.clear();
    return planner
        .confirm(planned,
                 [&tried, most](int64_t rows, int64_t micro_batches) {
                   tried.emplace_back(rows, micro_batches);
                   return rows <= most ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
                 })
        .value();
  };
  CHECK(up_to(64).batch_size == 64);
  CHECK(tried == std::vector<std::pair<int64_t, int64_t>>{{64, 1}});
  const BatchSizePlan smaller = up_to(37);
  CHECK(smaller.batch_size == 32);  // which divides the share
  CHECK(smaller.grad_accum_steps == 2);
  CHECK(smaller.global_batch_size() == 192);
  CHECK(smaller.fits);
  const BatchSizePlan none = up_to(0);
  CHECK(none.batch_size == 1);
  CHECK(none.grad_accum_steps == 64);
  CHECK(!none.fits);
  const auto lost = [](int64_t, int64_t) { return absl::DataLossError("row"); };
  CHECK(planner.confirm(planned, lost).status().code() == absl::StatusCode::kDataLoss);
  // Without a global batch the accumulation stays the same.
  auto free = BatchSizePlanner::create(plain_step, {.grad_accum_steps = 4, .max_batch_size = 64}).value();
  const auto at_most_20 = [](int64_t rows, int64_t) {
    return rows <= 20 ? absl::OkStatus() : absl::ResourceExhaustedError("no memory");
  };
  const BatchSizePlan kept = free.confirm(free.plan().value(), at_most_20).value();
  CHECK(kept.batch_size == 16);
  CHECK(kept.grad_accum_steps == 4);
}

}  // namespace
}  // namespace trainkit
