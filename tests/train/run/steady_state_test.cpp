// Resource use of a process stays constant during long training.
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "logging/run_log.h"
#include "sanitizers.h"
#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/core/status.h"
#include "trainkit/data/sampler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

struct Held {
  int64_t step = 0, resident_bytes = 0, descriptors = 0, threads = 0;
};

int64_t entries(const char* folder) { return std::distance(fs::directory_iterator(folder), fs::directory_iterator()); }

Held held(int64_t step) {
  int64_t pages = 0, resident = 0;
  std::ifstream("/proc/self/statm") >> pages >> resident;
  return {step, resident * sysconf(_SC_PAGESIZE), entries("/proc/self/fd"), entries("/proc/self/task")};
}

/// MiB per 1000 steps, by least squares.
double slope(const std::vector<Held>& samples) {
  double steps = 0, bytes = 0, squares = 0, products = 0;
  const auto count = static_cast<double>(samples.size());
  for (const Held& sample : samples) {
    steps += static_cast<double>(sample.step) / count;
    bytes += static_cast<double>(sample.resident_bytes) / count;
  }
  for (const Held& sample : samples) {
    const double step = static_cast<double>(sample.step) - steps;
    squares += step * step;
    products += step * (static_cast<double>(sample.resident_bytes) - bytes);
  }
  return products / squares * 1000 / (1 << 20);
}

}  // namespace

// 20,000 steps with TRAINKIT_TEST_FULL (./dev test --full).
TEST_CASE("Memory, file descriptors and threads stay constant while a run trains with 4 workers",
          "[train][steady_state]") {
  const bool full = is_full();
  const int64_t steps = full ? 20'000 : 2'000, warm = steps / 4;
  const TempDir dir;
  torch::manual_seed(1);
  auto devices = DeviceReplicator::create([] { return TinyNet(); }).value();
  auto loader = Prefetcher::create(tiny_dataset(640), RandomSampler(640, {.seed = 3}),
                                   {.batch_size = 4, .num_workers = 4, .persistent_workers = true})
                    .value();
  auto validation = Prefetcher::create(tiny_dataset(64), SequentialSampler(64),
                                       {.batch_size = 8, .num_workers = 4, .persistent_workers = true})
                        .value();
  auto logger = open_run_log({.output_dir = dir / "run"}).value();
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}),
                                 {.max_epochs = 0,
                                  .max_steps = steps,
                                  .grad_clip = 1,
                                  .log_every = 10,
                                  .eval_every = steps / 20,
                                  .save_every = steps / 50,
                                  .output_dir = dir / "run"})
                     .value();
  std::vector<Held> all;
  int64_t step = 0;
  const auto result = trainer.fit(*loader,
                                  [&](TinyNet& model, const Batch& batch) {
                                    if (model->is_training()) {
                                      ++step;
                                      // Between two saves and evaluations, whose threads and files are temporary.
                                      if (step >= warm && step % (steps / 50) == steps / 100) all.push_back(held(step));
                                    }
                                    return tiny_loss(model, batch);
                                  },
                                  {.validation = validation.get(), .logger = logger.get()});
  REQUIRE(result.status() == absl::OkStatus());
  REQUIRE(all.size() >= 35);
  // A save, the monitor and the log open files and start threads temporarily, for longer on a busy machine. The minimum
  // of many samples is therefore the steady state. A leak raises it by one per save or evaluation: by tens in half the
  // run. On a slow disk a save may be running at every sample of one half: a thread, its file and its folder.
  constexpr int64_t kOfASave = 2;
  const auto least = [](auto begin, auto end, int64_t Held::*what) {
    return (*std::min_element(begin, end, [&](const Held& a, const Held& b) { return a.*what < b.*what; })).*what;
  };
  const auto middle = all.begin() + static_cast<ptrdiff_t>(all.size() / 2);
  for (const auto what : {&Held::descriptors, &Held::threads}) {
    CHECK(least(middle, all.end(), what) <= least(all.begin(), middle, what) + kOfASave);
  }
  const int64_t bytes = least(all.begin(), all.end(), &Held::resident_bytes);
  int64_t most = bytes;
  for (const Held& sample : all) most = std::max(most, sample.resident_bytes);
  std::cout << steps << " steps, 4 workers: " << least(all.begin(), all.end(), &Held::threads) << " threads, "
            << least(all.begin(), all.end(), &Held::descriptors) << " descriptors; resident memory within "
            << (most - bytes) / 1024 << " KiB of " << bytes / (1 << 20) << " MiB, slope " << slope(all)
            << " MiB per 1000 steps" << std::endl;
  if (kSanitized) return;
  // Less than 1 MiB per 1000 steps in the long run; in the short one the allocator's own noise is larger.
  CHECK(static_cast<double>(most - bytes) < (full ? 8.0 : 4.0) * (1 << 20));
  if (full) CHECK(slope(all) < 1);
}
