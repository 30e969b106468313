// Options that a Trainer passes on to its steps and its checkpoints.
#include "shared_fields.h"
#include "train/run/fit_context.h"

using namespace trainkit;
using namespace trainkit::test;

// All fields of these structs; see shared_fields.h.
#define STEP_FIELDS(X, S)            \
  X(precision) S X(grad_accum_steps) \
  S X(grad_clip)                     \
  S X(zero_grad_set_to_none)         \
  S X(skip_nonfinite)                \
  S X(scaler)                        \
  S X(ema_decay)                     \
  S X(cuda_graph)                    \
  S X(release_memory)                \
  S X(on_gradients)                  \
  S X(graph_backend)
#define CHECKPOINT_FIELDS(X, S) \
  X(keep_last) S X(keep_every)  \
  S X(fs)

TEST_CASE("Every option of a Trainer that steps have too reaches the steps", "[train][trainer]") {
  const TrainerOptions given{.precision = Precision::kBf16,
                             .grad_accum_steps = 3,
                             .grad_clip = 0.5,
                             .scaler = {.init_scale = 4},
                             .ema_decay = 0.9,
                             .cuda_graph = CudaGraph::kAuto,
                             .release_memory = [] { return true; }};
  const TrainStepOptions made = step_options(given);
  [[maybe_unused]] const auto& [STEP_FIELDS(FIELD, COMMA)] = made;
  STEP_FIELDS(ARRIVES, ;);
}

TEST_CASE("Every option of a Trainer that checkpoints have too reaches the checkpoints", "[train][trainer]") {
  const TrainerOptions given{.keep_last = 5, .keep_every = 100};
  const CheckpointOptions made = checkpoint_options(given);
  [[maybe_unused]] const auto& [CHECKPOINT_FIELDS(FIELD, COMMA)] = made;
  CHECKPOINT_FIELDS(ARRIVES, ;);
}
