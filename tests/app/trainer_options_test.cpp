// The shared flags as options of a Trainer.
#include "app/run/trainer_options.h"

#include "shared_fields.h"
#include "trainkit/app/placement.h"
#include "trainkit/data/tensor_dataset.h"
#include "trainkit/train/step_memory.h"

using namespace trainkit;
using namespace trainkit::test;

// All fields of TrainerOptions but the metric `monitor`, since RunOptions::monitor is the live table; see
// shared_fields.h.
#define TRAINER_FIELDS(X, S)    \
  X(max_epochs) S X(max_steps)  \
  S X(max_time)                 \
  S X(precision)                \
  S X(grad_accum_steps)         \
  S X(grad_clip)                \
  S X(scaler)                   \
  S X(ema_decay)                \
  S X(cuda_graph)               \
  S X(on_nonfinite)             \
  S X(max_nonfinite)            \
  S X(schedule)                 \
  S X(plateau)                  \
  S X(log_every)                \
  S X(weight_unit)              \
  S X(eval_every)               \
  S X(save_every)               \
  S X(output_dir)               \
  S X(keep_last)                \
  S X(keep_every)               \
  S X(continue_on_save_error)   \
  S X(resume)                   \
  S X(override_lr)              \
  S X(monitor_higher_is_better) \
  S X(early_stopping)           \
  S X(monitoring)               \
  S X(profile_step)             \
  S X(release_memory)           \
  S X(predicted_memory)         \
  S X(predicted_device_memory)  \
  S X(explain_out_of_memory)    \
  S X(handle_signals)           \
  S X(config)

TEST_CASE("Every shared flag that a Trainer has an option for reaches the Trainer", "[app][trainer_options]") {
  RunOptions given{.output_dir = "runs/other",
                   .epochs = 7,
                   .max_steps = 50,
                   .max_time = Seconds(9),
                   .log_every = 3,
                   .eval_every = 4,
                   .save_every = 5,
                   .keep_last = 6,
                   .keep_every = 8,
                   .on_save_error = OnSaveError::kContinue,
                   .resume = "latest",
                   .monitor = true,
                   .profile = 2,
                   .grad_accum_steps = 3,
                   .grad_clip = 0.5,
                   .ema = 0.9,
                   .scheduler = "plateau",
                   .early_stopping = 11,
                   .on_nonfinite = OnNonfinite::kSkip,
                   .max_nonfinite = 12,
                   .precision = Precision::kBf16,
                   .cuda_graph = CudaGraph::kAuto};
  ConfigParser parser({.name = "trainer"});
  add_run_flags(parser, given);
  const auto rows =
      std::make_shared<TensorDataset>(std::vector<std::pair<std::string, at::Tensor>>{{"x", at::zeros({8, 1})}});
  const auto loader = Prefetcher::create(rows, SequentialSampler(8), {.batch_size = 2}).value();
  const Placement placement{.batch = {.grad_accum_steps = given.grad_accum_steps}};
  const TrainerOptions made = trainkit::detail::trainer_options(parser, given, placement, *loader).value();
  [[maybe_unused]] const auto& [TRAINER_FIELDS(FIELD, COMMA), monitor] = made;
  TRAINER_FIELDS(ARRIVES, ;);
  // Under another name.
  CHECK(made.max_epochs == given.epochs);
  CHECK(made.ema_decay == given.ema);
  CHECK(made.plateau.has_value());
  CHECK(made.continue_on_save_error);
  CHECK(made.monitoring.table_every > 0);
  CHECK(made.profile_step == given.profile);
}

TEST_CASE("A trainer sets options of the replicas that no flag sets", "[app]") {
  StepRecipe recipe;
  recipe.configure_devices = [](DeviceReplicatorOptions& options) {
    options.find_unused_parameters = true;
    options.share_weights = false;
    options.bucket_bytes = 1 << 20;
  };
  const Placement placement{.strategy = Strategy::kDataParallel, .devices = {at::kCPU, at::kCPU}};
  const DeviceReplicatorOptions options = replicator_options(RunOptions{.shard = Sharding::kNone}, placement, recipe);
  CHECK(options.cpu_replicas == 2);
  CHECK(options.find_unused_parameters);
  CHECK_FALSE(options.share_weights);
  CHECK(options.bucket_bytes == 1 << 20);
  CHECK_FALSE(replicator_options(RunOptions{}, placement, StepRecipe{}).find_unused_parameters);
}
