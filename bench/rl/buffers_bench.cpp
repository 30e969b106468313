// Appending to and sampling from a replay buffer, and a rollout with its advantages, each compared with plain loops
// over the same memory in the same rounds.
#include <ATen/Parallel.h>
#include <benchmark/benchmark.h>
#include <torch/torch.h>

#include <cstring>
#include <memory>
#include <vector>

#include "rl/advantage_scan.h"
#include "rounds.h"
#include "trainkit/core/random.h"
#include "trainkit/rl/gae.h"
#include "trainkit/rl/replay_buffer.h"
#include "trainkit/rl/rollout_buffer.h"

namespace trainkit {
namespace buffers {

constexpr int kRounds = 7;  // of each, 0.1 s for each candidate

Batch batch_of(const std::vector<FieldSpec>& fields, int64_t rows) {
  std::vector<at::Tensor> tensors;
  for (const FieldSpec& field : fields) {
    std::vector<int64_t> sizes = {rows};
    sizes.insert(sizes.end(), field.shape.begin(), field.shape.end());
    tensors.push_back(torch::zeros(sizes, field.dtype));
  }
  return Batch(std::make_shared<const std::vector<FieldSpec>>(fields), std::move(tensors));
}

/// A buffer whose memory has been written once.
std::unique_ptr<ReplayBuffer> make(const std::vector<FieldSpec>& fields, int64_t capacity) {
  auto buffer = ReplayBuffer::create(fields, {.capacity = capacity, .batch_size = 256}).value();
  const Batch rows = batch_of(fields, 500);
  while (buffer->rows() < capacity + 1024) {
    if (!buffer->append(rows).ok()) std::abort();
  }
  return buffer;
}

/// A block of memory that is written in a circle.
struct Ring {
  explicit Ring(int64_t bytes) : memory(static_cast<size_t>(bytes)) {}
  std::byte* take(int64_t bytes) {
    if (at + bytes > std::ssize(memory)) at = 0;
    at += bytes;
    return memory.data() + at - bytes;
  }
  std::vector<std::byte> memory;
  int64_t at = 0;
};

constexpr int64_t kCapacity = 1 << 20;

/// Rows of 16 bytes, one reservation each; the floor writes them without any other thread in mind.
void BM_AppendRows(benchmark::State& state) {
  const auto threads = static_cast<int>(state.range(0));
  const auto buffer = make({{"x", at::kFloat, {4}}}, kCapacity);
  std::vector<Ring> rings(static_cast<size_t>(threads), Ring(kCapacity * 16));
  constexpr int64_t kRows = 1000;
  const auto append = [&](int) {
    for (int64_t i = 0; i < kRows; ++i) {
      ReplayRows row = buffer->reserve(1).value();
      auto* x = row.row<float>(0, 0);
      for (int64_t k = 0; k < 4; ++k) x[k] = static_cast<float>(i + k);
      row.commit();
    }
    return kRows;
  };
  const auto floor = [&](int thread) {
    for (int64_t i = 0; i < kRows; ++i) {
      auto* x = reinterpret_cast<float*>(rings[static_cast<size_t>(thread)].take(16));
      for (int64_t k = 0; k < 4; ++k) x[k] = static_cast<float>(i + k);
      benchmark::ClobberMemory();
    }
    return kRows;
  };
  bench::run_rounds(
      state, {{"rows", [&](double duration) { return bench::threaded_rate(threads, duration, append); }},
              {"plain_writes", [&](double duration) { return bench::threaded_rate(threads, duration, floor); }}});
  state.counters["M_rows_a_thread"] = state.counters["rows"] / 1e6 / threads;
}
BENCHMARK(BM_AppendRows)->ArgName("threads")->Arg(1)->Arg(2)->Iterations(kRounds)->UseManualTime();

/// Batches of `rows` rows of `bytes` bytes; the floor is a memcpy of each.
void BM_AppendBatches(benchmark::State& state) {
  const int64_t rows = state.range(0), bytes = state.range(1), capacity = (int64_t{256} << 20) / bytes;
  const std::vector<FieldSpec> fields = {{"x", at::kByte, {bytes}}};
  const auto buffer = make(fields, capacity);
  const Batch batch = batch_of(fields, rows);
  Ring ring(capacity * bytes);
  const auto append = [&] { return buffer->append(batch).ok() ? rows : 0; };
  const auto copy = [&] {
    std::memcpy(ring.take(rows * bytes), batch.tensors()[0].const_data_ptr(), static_cast<size_t>(rows * bytes));
    return rows;
  };
  bench::run_rounds(state, {{"rows", [&](double duration) { return bench::rate(duration, append); }},
                            {"memcpy", [&](double duration) { return bench::rate(duration, copy); }}});
  state.counters["M_rows"] = state.counters["rows"] / 1e6;
}
BENCHMARK(BM_AppendBatches)
    ->ArgNames({"rows", "bytes"})
    ->Args({256, 16})
    ->Args({64, 28224})
    ->Iterations(kRounds)
    ->UseManualTime();

/// Batches of 256 rows from a million; the floors gather the same fields by numbers that are drawn before, row by row
/// and with LibTorch's index_select.
void BM_Sample(benchmark::State& state) {
  at::set_num_threads(1);
  const int64_t width = state.range(0), capacity = width > 100 ? 10'000 : 1'000'000;
  const std::vector<FieldSpec> fields = {{"obs", at::kFloat, {width}},
                                         {"action", at::kFloat, {1}},
                                         {"reward", at::kFloat, {}},
                                         {"next_obs", at::kFloat, {width}},
                                         {"terminated", at::kBool, {}}};
  const auto buffer = make(fields, capacity);
  const Batch table = batch_of(fields, capacity), out = batch_of(fields, 256);
  constexpr int64_t kDraws = 4096;
  std::vector<at::Tensor> numbers;
  for (int64_t k = 0; k < kDraws; ++k) numbers.push_back(torch::randint(0, capacity, {256}, torch::kLong));
  size_t draw = 0;
  const auto gather = [&] {
    const auto* rows = numbers[draw++ % kDraws].const_data_ptr<int64_t>();
    for (size_t f = 0; f < fields.size(); ++f) {
      const int64_t bytes = fields[f].row_bytes();
      const auto* from = static_cast<const std::byte*>(table.tensors()[f].const_data_ptr());
      auto* to = static_cast<std::byte*>(out.tensors()[f].mutable_data_ptr());
      for (int64_t i = 0; i < 256; ++i) std::memcpy(to + i * bytes, from + rows[i] * bytes, static_cast<size_t>(bytes));
    }
    return 1;
  };
  const auto index_select = [&] {
    const at::Tensor& rows = numbers[draw++ % kDraws];
    for (const at::Tensor& tensor : table.tensors()) benchmark::DoNotOptimize(tensor.index_select(0, rows));
    return 1;
  };
  const auto sample = [&] { return buffer->next()->has_value() ? 1 : 0; };
  bench::run_rounds(state, {{"batches", [&](double duration) { return bench::rate(duration, sample); }},
                            {"gather", [&](double duration) { return bench::rate(duration, gather); }},
                            {"index_select", [&](double duration) { return bench::rate(duration, index_select); }}});
}
BENCHMARK(BM_Sample)->ArgName("width")->Arg(4)->Arg(7056)->Iterations(kRounds)->UseManualTime();

constexpr int64_t kSteps = 2048, kSimulators = 256;

GaeInput random_steps() {
  const auto real = [] { return torch::randn({kSteps, kSimulators}); };
  const auto flags = [] { return torch::rand({kSteps, kSimulators}) < 0.01; };
  return {real(), real(), real(), flags(), flags()};
}

/// Advantages of 256 x 2,048 steps, into memory that is there as in a RolloutBuffer, and into new tensors; the floor
/// reads the inputs and writes the outputs once, in order.
void BM_Gae(benchmark::State& state) {
  const GaeInput steps = random_steps();
  const at::Tensor sum = torch::empty_like(steps.reward), other = torch::empty_like(steps.reward);
  const auto compute = [&] { return benchmark::DoNotOptimize(gae(steps)), 1; };
  const GaeResult result = {sum, other};
  const auto compute_into = [&] { return detail::gae_into(steps, {}, result), 1; };
  const auto floor = [&] {
    const auto *reward = steps.reward.const_data_ptr<float>(), *value = steps.value.const_data_ptr<float>(),
               *next = steps.next_value.const_data_ptr<float>();
    const auto *terminated = steps.terminated.const_data_ptr<bool>(),
               *truncated = steps.truncated.const_data_ptr<bool>();
    auto *a = sum.mutable_data_ptr<float>(), *b = other.mutable_data_ptr<float>();
    for (int64_t i = 0; i < kSteps * kSimulators; ++i) {
      a[i] = reward[i] + value[i] + next[i] + static_cast<float>(terminated[i]) + static_cast<float>(truncated[i]);
      b[i] = a[i] + value[i];
    }
    benchmark::ClobberMemory();
    return 1;
  };
  bench::run_rounds(state, {{"per_second", [&](double duration) { return bench::rate(duration, compute_into); }},
                            {"with_new_tensors", [&](double duration) { return bench::rate(duration, compute); }},
                            {"one_pass", [&](double duration) { return bench::rate(duration, floor); }}});
  state.counters["ms"] = 1e3 / state.counters["per_second"];
}
BENCHMARK(BM_Gae)->Iterations(kRounds)->UseManualTime();

/// Records 256 x 2,048 steps with three fields and their outcomes, computes the advantages, and reads all mini-batches
/// of 2,048 rows once; the floor copies the same bytes, calls gae() and gathers the same rows. No simulator, no
/// network.
void BM_Rollout(benchmark::State& state) {
  constexpr int64_t kRows = kSteps * kSimulators, kBatch = 2048;
  const std::vector<FieldSpec> fields = {
      {"obs", at::kFloat, {4}}, {"action", at::kLong, {}}, {"log_prob", at::kFloat, {}}};
  const auto rollout =
      RolloutBuffer::create(fields, {.horizon = kSteps, .simulators = kSimulators, .batch_size = kBatch}).value();
  const Batch rows = batch_of(fields, kSimulators);
  const at::Tensor value = torch::zeros({kSimulators}), none = torch::zeros({kSimulators}, torch::kBool);
  const StepOutcome outcome = {torch::ones({kSimulators}), none, none, {}};
  const auto run = [&] {
    for (int64_t t = 0; t < kSteps; ++t) {
      rollout->add(rows.tensors(), value);
      rollout->add_outcome(outcome);
    }
    const auto zero = [](const Batch& all) { return torch::zeros({all.size()}); };
    if (!rollout->finish({rows.tensors()[0]}, zero).ok()) return 0;
    while (rollout->next().value()) continue;
    return 1;
  };
  const GaeInput steps = random_steps();
  Ring ring(kRows * 40);
  const at::Tensor order = torch::randperm(kRows), batch = torch::empty({kBatch * 40}, torch::kByte);
  const auto copies_and_gae = [&] {
    for (int64_t t = 0; t < kSteps; ++t) {
      for (const at::Tensor& tensor : {rows.tensors()[0], rows.tensors()[1], rows.tensors()[2], value, outcome.reward,
                                       outcome.terminated, outcome.truncated}) {
        std::memcpy(ring.take(static_cast<int64_t>(tensor.nbytes())), tensor.const_data_ptr(), tensor.nbytes());
      }
    }
    return benchmark::DoNotOptimize(gae(steps)), 1;
  };
  const auto floor = [&] {
    copies_and_gae();
    const auto* numbers = order.const_data_ptr<int64_t>();
    for (int64_t begin = 0; begin < kRows; begin += kBatch) {
      auto* to = static_cast<std::byte*>(batch.mutable_data_ptr());
      for (const int64_t bytes : {16, 8, 4, 4, 4, 4}) {
        for (int64_t i = 0; i < kBatch; ++i, to += bytes) {
          std::memcpy(to, ring.memory.data() + numbers[begin + i] * bytes, static_cast<size_t>(bytes));
        }
      }
    }
    return 1;
  };
  bench::run_rounds(state,
                    {{"per_second", [&](double duration) { return bench::rate(duration, run); }},
                     {"floor", [&](double duration) { return bench::rate(duration, floor); }},
                     {"copies_and_gae", [&](double duration) { return bench::rate(duration, copies_and_gae); }}});
}
BENCHMARK(BM_Rollout)->Iterations(kRounds)->UseManualTime();

}  // namespace buffers
}  // namespace trainkit
