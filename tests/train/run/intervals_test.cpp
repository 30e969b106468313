// Intervals of evaluations and saves in steps, epochs and time.
#include <thread>

#include "distributed/rank_threads.h"
#include "test_util.h"
#include "train/trainer_run.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/interval.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;
using std::chrono::milliseconds;

namespace {

/// The steps at which a run evaluates and saves.
struct Steps final : Events {
  absl::Status on_evaluation(int64_t step, Metrics& /*metrics*/) override {
    return evaluated.push_back(step), absl::OkStatus();
  }
  absl::Status on_save(int64_t step) override { return saved.push_back(step), absl::OkStatus(); }
  std::vector<int64_t> evaluated, saved;
};

Trainer trainer_of(DeviceReplicator& devices, const TrainerOptions& options) {
  return Trainer::create(devices, SGD({.lr = 0.01}), options).value();
}

std::unique_ptr<DeviceReplicator> new_devices() {
  return DeviceReplicator::create([] { return TinyNet(); }).value();
}

}  // namespace

TEST_CASE("Intervals in epochs follow the data, also after a resume and with an incomplete accumulation",
          "[train][session]") {
  // 5 batches and 3 steps per epoch.
  const TempDir dir;
  TrainerOptions options{.max_epochs = 5, .grad_accum_steps = 2, .output_dir = dir / "run"};
  options.eval_every = Interval::epochs(1);
  options.save_every = Interval::epochs(2);
  options.keep_last = 0;
  const auto validation = tiny_loader(8, 8);
  const auto run = [&](int64_t epochs) {
    options.max_epochs = epochs;
    const auto loader = tiny_loader(20, 4);
    const auto devices = new_devices();
    Steps steps;
    Trainer trainer = trainer_of(*devices, options);
    CHECK(trainer.fit(*loader, tiny_loss, {.validation = validation.get(), .events = &steps}).ok());
    return steps;
  };
  const Steps whole = run(5);
  CHECK(whole.evaluated == std::vector<int64_t>{3, 6, 9, 12, 15});
  CHECK(whole.saved == std::vector<int64_t>{6, 12, 15});
  options.resume = "latest";
  const Steps more = run(7);
  CHECK(more.evaluated == std::vector<int64_t>{18, 21});
  CHECK(more.saved == std::vector<int64_t>{18, 21});
}

TEST_CASE("Saves may be timed, and one of rank 0 is one of all ranks", "[train][session]") {
  const TempDir dir;
  const auto texts = on_ranks(2, [&](ProcessGroup& group) -> absl::Status {
    torch::manual_seed(11);
    const auto devices =
        DeviceReplicator::create([] { return TinyNet(); }, {.process_group = {&group, [](ProcessGroup*) {}}}).value();
    TrainerOptions options{.max_steps = 6, .output_dir = dir / "run"};
    options.save_every = milliseconds(400);
    Trainer trainer = trainer_of(*devices, options);
    const auto loader = tiny_loader(48, 4);
    Steps steps;
    const auto slow = [&](TinyNet& net, const Batch& batch) {
      if (group.rank() == 0 && trainer.options().max_steps > 0) std::this_thread::sleep_for(milliseconds(150));
      return tiny_loss(net, batch);
    };
    TRAINKIT_RETURN_IF_ERROR(trainer.fit(*loader, slow, {.events = &steps}).status());
    // At least one within the run, and that of its end; less than one per step.
    return steps.saved.size() >= 2 && steps.saved.size() < 6 ? absl::OkStatus() : absl::InternalError("saves");
  });
  for (const std::string& text : texts) CHECK(text == "ok");
}

TEST_CASE("Intervals that cannot be are refused in one line", "[train][session]") {
  const TempDir dir;
  const auto devices = new_devices();
  const auto problem = [&](Interval eval_every, Interval save_every) {
    TrainerOptions options{.max_steps = 3, .output_dir = dir / "run"};
    options.eval_every = eval_every;
    options.save_every = save_every;
    auto trainer = Trainer::create(*devices, SGD({.lr = 0.01}), options);
    if (!trainer.ok()) return std::string(trainer.status().message());
    return std::string(trainer->begin(tiny_loss).status().message());
  };
  CHECK_THAT(problem(milliseconds(5), 0), Contains("only saves may be timed"));
  CHECK_THAT(problem(-1, 0), Contains("must be >= 0"));
  CHECK_THAT(problem(0, milliseconds(-1)), Contains("must be >= 0"));
  CHECK_THAT(problem(0, Interval::epochs(1)), Contains("save_every") && Contains("counts epochs"));
  CHECK_THAT(problem(Interval::epochs(1), 0), Contains("eval_every") && Contains("counts epochs"));
}
