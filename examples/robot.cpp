// A robot that learns to move while it moves. Three threads: the host has a clock of its own, applies the last command
// every five milliseconds and stores what it sees; the learner trains a model of the motor on these rows; the pilot
// chooses commands with the newest published weights. None waits for another one.
//   example_robot [seconds]
#include <torch/torch.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <cstdio>
#include <numbers>
#include <string>
#include <thread>

#include "trainkit/rl/replay_buffer.h"
#include "trainkit/rl/weights_publisher.h"
#include "trainkit/trainkit.h"

using namespace trainkit;
using namespace std::chrono_literals;

/// A cart with a motor that answers to commands in [-1, 1], the wrong way round and with friction. The pilot does not
/// know this.
struct Motor {
  double place = 0, speed = 0;
  void tick(double command) {
    speed += 0.5 * (-std::tanh(2 * command) - 0.3 * speed - 0.2 * std::tanh(5 * speed));
    place += 0.1 * speed;
  }
};

/// Where the cart should be at a tick.
double wanted_place(int64_t tick) { return std::sin(2 * std::numbers::pi * static_cast<double>(tick) / 200); }

/// Predicts the change of place and speed in the next tick.
struct MotorModelImpl : torch::nn::Module {
  at::Tensor forward(const at::Tensor& state, const at::Tensor& command) {
    return out(hidden(at::cat({state, command}, 1)).tanh());
  }
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(3, 32));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(32, 2));
};
TORCH_MODULE(MotorModel);

/// What the threads tell each other.
struct Board {
  std::atomic<int64_t> tick{0};
  std::atomic<double> place{0}, speed{0}, command{0};
  std::atomic<bool> ends{false};
};

/// Moves the cart on time and appends a row per tick. Returns the mean distance from the wanted place in each second.
std::vector<double> host(Board& board, ReplayBuffer& replay, int64_t seconds) {
  constexpr int64_t kTicks = 200;  // per second
  Motor motor;
  std::vector<double> distances(seconds, 0);
  auto next = std::chrono::steady_clock::now();
  for (int64_t tick = 0; tick < seconds * kTicks; ++tick) {
    const double command = board.command;
    const Motor before = motor;
    motor.tick(command);
    auto row = replay.reserve(1);
    if (!row.ok()) break;
    row->row<float>(0, 0)[0] = static_cast<float>(before.place);
    row->row<float>(0, 0)[1] = static_cast<float>(before.speed);
    *row->row<float>(1, 0) = static_cast<float>(command);
    row->row<float>(2, 0)[0] = static_cast<float>(motor.place - before.place);
    row->row<float>(2, 0)[1] = static_cast<float>(motor.speed - before.speed);
    row->commit();
    board.place = motor.place;
    board.speed = motor.speed;
    board.tick = tick + 1;
    distances[tick / kTicks] += std::abs(motor.place - wanted_place(tick)) / kTicks;
    std::this_thread::sleep_until(next += 5ms);
  }
  board.ends = true;
  return distances;
}

/// Tries 64 commands in the model, each held for four ticks, and gives the best one; now and then a random one.
void pilot(Board& board, const WeightsPublisher& weights) {
  at::set_num_threads(1);
  const at::NoGradGuard no_grad;
  ActorModel<MotorModel> actor([] { return MotorModel(); }, weights);
  const at::Tensor commands = torch::linspace(-1, 1, 64).unsqueeze(1);
  RandomStream random(1);
  for (int64_t seen = 0; !board.ends; seen = board.tick) {
    while (board.tick == seen && !board.ends) std::this_thread::sleep_for(500us);
    MotorModel& model = actor.refresh();
    if (actor.version() == 0 || random.uniform() < 0.05) {
      board.command = 2 * random.uniform() - 1;
      continue;
    }
    at::Tensor state = torch::tensor({board.place.load(), board.speed.load()}, at::kFloat).repeat({64, 1});
    at::Tensor cost = torch::zeros({64});
    for (int64_t ahead = 0; ahead < 4; ++ahead) {
      state = state + model->forward(state, commands);
      cost += (state.select(1, 0) - wanted_place(board.tick + ahead)).square();
    }
    board.command = commands[cost.argmin().item<int64_t>()].item<double>();
  }
}

int main(int argc, char** argv) {
  const int64_t seconds = argc > 1 ? std::stoll(argv[1]) : 8;
  at::set_num_threads(1);
  torch::manual_seed(0);
  auto devices = DeviceReplicator::create([] { return MotorModel(); }, {.device = at::kCPU}).value();
  const auto replay =
      ReplayBuffer::create({{"state", at::kFloat, {2}}, {"command", at::kFloat, {1}}, {"change", at::kFloat, {2}}},
                           {.capacity = 10'000, .batch_size = 64, .min_size = 64})
          .value();
  WeightsPublisher weights(*devices->module());
  auto trainer = Trainer::create(*devices, Adam({.lr = 3e-3}), {.log_every = 10}).value();
  const auto loss = [](MotorModel& model, const Batch& batch) {
    return at::mse_loss(model->forward(batch["state"], batch["command"]), batch["change"]);
  };
  Session session = trainer.begin(*replay, loss).value();

  Board board;
  std::vector<double> distances;
  std::thread host_thread([&] { distances = host(board, *replay, seconds); });
  std::thread pilot_thread([&] { pilot(board, weights); });
  while (!board.ends) {
    if (!session.step().value()) break;
    if (session.progress().step % 10 == 0) weights.publish(session.progress().step);
    std::this_thread::sleep_for(1ms);  // leaves the processor to the host and the pilot
  }
  host_thread.join();
  pilot_thread.join();
  const TrainerResult result = session.finish().value();
  for (int64_t second = 0; second < seconds; ++second) {
    std::printf("second %ld  mean distance %.3f\n", static_cast<long>(second + 1), distances[second]);
  }
  std::printf("%ld rows, %ld steps, loss %.1e\n", static_cast<long>(replay->rows()), static_cast<long>(result.steps),
              result.loss);
  // The best second of the later half: a busy machine may hold up one of them.
  return *std::min_element(distances.begin() + seconds / 2, distances.end()) < 0.15 ? 0 : 1;
}
