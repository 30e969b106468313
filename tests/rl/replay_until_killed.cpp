// replay_until_killed DIR STEPS [ROWS]: trains on a ReplayBuffer whose ROWS rows of 64 KiB are part of every
// checkpoint, saves every second step, and continues from the newest checkpoint when it is started again. The test may
// kill it at any moment. Prints "resumed at <step>" and at the end "ended".
#include <torch/torch.h>

#include <filesystem>
#include <iostream>

#include "trainkit/core/error.h"
#include "trainkit/core/random.h"
#include "trainkit/optim/adam.h"
#include "trainkit/rl/replay_buffer.h"
#include "trainkit/train/session.h"
#include "trainkit/train/trainer.h"

using namespace trainkit;

namespace {

constexpr int64_t kNumbers = 16 * 1024;  // of a row

/// Appends row after row; each is a function of its number.
absl::Status append(ReplayBuffer& buffer, int64_t end) {
  while (buffer.rows() < end) {
    const int64_t number = buffer.rows();
    auto rows = buffer.reserve(1);
    if (!rows.ok()) return rows.status();
    RandomStream random(hash_key(1, number));
    for (int64_t i = 0; i < kNumbers; ++i) rows->row<float>(0, 0)[i] = static_cast<float>(random.uniform()) - 0.5f;
    rows->commit();
  }
  return absl::OkStatus();
}

absl::Status run(const std::string& folder, int64_t steps, int64_t rows) {
  torch::manual_seed(1);
  auto devices = DeviceReplicator::create([] { return torch::nn::Linear(kNumbers, 1); }).value();
  TrainerOptions options{.max_steps = steps, .log_every = 1, .output_dir = folder};
  options.save_every = 2;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, AdamW({.lr = 1e-3}), options).value();
  const auto buffer =
      ReplayBuffer::create({{"x", at::kFloat, {kNumbers}}},
                           {.capacity = rows, .batch_size = 8, .min_size = rows, .samples_per_insert = 2, .ahead = 8})
          .value();
  const auto loss = [](torch::nn::Linear& model, const Batch& batch) {
    return (model->forward(batch["x"]) - 1).square().mean();
  };
  auto session = trainer.begin(*buffer, loss);
  if (!session.ok()) return session.status();
  std::cout << "resumed at " << session->progress().step << std::endl;
  for (bool goes_on = true; goes_on;) {
    const absl::Status appended = append(*buffer, rows + 4 * session->progress().step);  // what the next batch needs
    if (!appended.ok()) return appended;
    const auto stepped = session->step();
    if (!stepped.ok()) return stepped.status();
    goes_on = *stepped;
  }
  const absl::Status finished = session->finish().status();
  if (finished.ok()) std::cout << "ended" << std::endl;
  return finished;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) return 2;
  at::set_num_threads(1);
  const absl::Status status = run(argv[1], std::stoll(argv[2]), argc > 3 ? std::stoll(argv[3]) : 256);
  if (!status.ok()) std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}
