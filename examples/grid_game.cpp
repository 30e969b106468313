// Proximal policy optimisation (PPO) finds the way to a goal between walls, from pixels: a small convolutional network
// sees a picture of the board, and moves that are not possible are masked. Run it twice with the same folder, or kill
// it in between: it continues where it was, with the same bits.
//   example_grid_game [rollouts] [folder] [seed]
#include <ATen/CPUGeneratorImpl.h>
#include <torch/torch.h>

#include <bit>
#include <cstdio>
#include <filesystem>
#include <string>

#include "trainkit/rl/distributions.h"
#include "trainkit/rl/ppo_loss.h"
#include "trainkit/rl/rollout_buffer.h"
#include "trainkit/rl/simulator_pool.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

/// 8 x 8 squares, one bit each: bit 8 * row + column.
using Squares = uint64_t;

constexpr Squares kBorder = 0xff818181818181ff;

/// Moves by one square up, down, left or right.
Squares moved(Squares from, int64_t direction) {
  const int by = direction < 2 ? 8 : 1;
  return direction % 2 == 0 ? from >> by : from << by;
}

/// A room with five walls, a goal and a player at random places; the goal can be reached. An episode ends at the goal,
/// with a reward of 1, or is cut off after 40 moves. The observation has a picture of three colours, uint8 (3, 8, 8),
/// and the moves that are possible, bool (4).
class GridGame final : public Simulator {
 public:
  void reset(RandomStream& random, const BatchView& observation) override {
    do {
      walls_ = kBorder;
      while (std::popcount(walls_) < std::popcount(kBorder) + 5) walls_ |= square(random);
      goal_ = square(random) & ~walls_;
      player_ = square(random) & ~walls_ & ~goal_;
    } while (!is_possible());
    moves_ = 0;
    show(observation);
  }
  SimulatorStep step(const std::byte* action, RandomStream& /*random*/, const BatchView& observation) override {
    player_ = moved(player_, *reinterpret_cast<const int64_t*>(action));
    const bool is_there = player_ == goal_;
    show(observation);
    return {.reward = is_there ? 1.0f : 0.0f, .terminated = is_there, .truncated = ++moves_ >= 40};
  }
  std::optional<StateDict> save() const override {
    const auto number = [](Squares squares) { return static_cast<int64_t>(squares); };
    return StateDict{{"board", std::vector<int64_t>{number(walls_), number(goal_), number(player_), moves_}}};
  }
  absl::Status load(const StateDict& state, const BatchView& observation) override {
    TRAINKIT_ASSIGN_OR_RETURN(const auto board, get_state<std::vector<int64_t>>(state, "board"));
    if (board.size() != 4) return absl::InvalidArgumentError("board has another length");
    walls_ = static_cast<Squares>(board[0]), goal_ = static_cast<Squares>(board[1]);
    player_ = static_cast<Squares>(board[2]), moves_ = board[3];
    show(observation);
    return absl::OkStatus();
  }

 private:
  static Squares square(RandomStream& random) { return Squares{1} << random.below(64); }
  /// Whether there is a way from the player to the goal.
  bool is_possible() const {
    Squares reached = player_, before = 0;
    while (reached != before) {
      before = reached;
      for (int64_t direction = 0; direction < 4; ++direction) reached |= moved(before, direction) & ~walls_;
    }
    return (reached & goal_) != 0;
  }
  void show(const BatchView& observation) const {
    auto* pixel = observation.row<uint8_t>(0, 0);
    for (const Squares squares : {walls_, goal_, player_}) {
      for (int bit = 0; bit < 64; ++bit) *pixel++ = squares >> bit & 1 ? 255 : 0;
    }
    auto* possible = observation.row<bool>(1, 0);
    for (int64_t direction = 0; direction < 4; ++direction)
      possible[direction] = (moved(player_, direction) & ~walls_) != 0;
  }
  Squares walls_ = 0, goal_ = 0, player_ = 0;
  int64_t moves_ = 0;
};

const std::vector<FieldSpec> kObservation = {{"picture", at::kByte, {3, 8, 8}}, {"possible", at::kBool, {4}}};

/// A policy and a value function on the same convolutions.
struct AgentImpl : torch::nn::Module {
  static torch::nn::Conv2d conv(int64_t in, int64_t out) {
    return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).padding(1));
  }
  /// The policy and the values of observations, a batch with the fields of kObservation.
  std::pair<Categorical, at::Tensor> forward(const Batch& rows) {
    const at::Tensor seen = body->forward(rows["picture"].to(at::kFloat).div(255));
    return {Categorical(policy->forward(seen), rows["possible"]), value->forward(seen).squeeze(1)};
  }
  torch::nn::Sequential body =
      register_module("body", torch::nn::Sequential(conv(3, 16), torch::nn::ReLU(), conv(16, 16), torch::nn::ReLU(),
                                                    conv(16, 16), torch::nn::ReLU(), torch::nn::Flatten(),
                                                    torch::nn::Linear(16 * 64, 128), torch::nn::ReLU()));
  torch::nn::Linear policy = register_module("policy", torch::nn::Linear(128, 4));
  torch::nn::Linear value = register_module("value", torch::nn::Linear(128, 1));
};
TORCH_MODULE(Agent);

LossOutput loss(Agent& agent, const Batch& batch) {
  const auto [policy, value] = agent->forward(batch);
  return ppo_loss({.log_prob = policy.log_prob(batch["action"]),
                   .entropy = policy.entropy(),
                   .value = value,
                   .old_log_prob = batch["log_prob"],
                   .advantage = batch["advantage"],
                   .returns = batch["return"]},
                  {.entropy_weight = 0.01});
}

std::unique_ptr<SimulatorPool> make_pool(int64_t simulators, uint64_t seed) {
  return SimulatorPool::create([](int64_t) { return std::make_unique<GridGame>(); }, kObservation,
                               {"action", at::kLong, {}}, {.simulators = simulators, .threads = 2, .seed = seed})
      .value();
}

/// Share of 1,000 boards, others than those of the training, that are solved in 40 moves drawn from the policy.
double evaluate(Agent& agent) {
  const at::NoGradGuard no_grad;
  const at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  const auto pool = make_pool(1000, 1'000'000);
  at::Tensor is_solved = torch::zeros({1000}, at::kBool), is_over = is_solved.clone();
  while (!is_over.all().item<bool>()) {
    const PoolStep step = pool->step(agent->forward(pool->observation()).first.sample(generator)).value();
    is_solved |= step.terminated & ~is_over;
    is_over |= step.terminated | step.truncated;
  }
  return is_solved.to(at::kDouble).mean().item<double>();
}

/// Prints the mean return, which is the share of solved boards, of the episodes that ended in a rollout.
struct Report final : Events {
  explicit Report(const RolloutBuffer& rollout) : rollout(rollout) {}
  absl::Status on_epoch(int64_t epoch) override {
    if (epoch % 10 == 0) {
      std::printf("rollout %3ld  solved %4.1f %%\n", static_cast<long>(epoch),
                  100 * rollout.metrics().at("episode_return"));
    }
    return absl::OkStatus();
  }
  const RolloutBuffer& rollout;
};

int main(int argc, char** argv) {
  const int64_t rollouts = argc > 1 ? std::stoll(argv[1]) : 60;
  const std::string folder = argc > 2 ? argv[2] : "";
  const uint64_t seed = argc > 3 ? std::stoull(argv[3]) : 0;
  at::set_num_threads(2);
  torch::manual_seed(seed);
  auto devices = DeviceReplicator::create([] { return Agent(); }, {.device = at::kCPU}).value();
  Agent agent(std::dynamic_pointer_cast<AgentImpl>(devices->module()));
  const auto pool = make_pool(256, seed);
  std::vector<FieldSpec> fields = kObservation;
  fields.insert(fields.end(), {{"action", at::kLong, {}}, {"log_prob", at::kFloat, {}}});
  const auto rollout = RolloutBuffer::create(fields, {.horizon = 32,
                                                      .simulators = 256,
                                                      .batch_size = 512,
                                                      .epochs = 3,
                                                      .observations = {"picture", "possible"},
                                                      .gae = {.gamma = 0.95},  // so that short ways are better
                                                      .seed = seed})
                           .value();
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(0);
  rollout->collect_with([&](RolloutBuffer& rows) -> absl::Status {
    generator.set_current_seed(hash_key(seed, rows.epoch()));  // so that a resumed run draws the same actions
    while (!rows.is_full()) {
      const Batch now = pool->observation();
      const auto [policy, value] = agent->forward(now);
      const at::Tensor action = policy.sample(generator);
      rows.add({now["picture"], now["possible"], action, policy.log_prob(action)}, value);
      TRAINKIT_ASSIGN_OR_RETURN(const PoolStep step, pool->step(action));
      rows.add_outcome(step);
    }
    const auto value = [&](const Batch& batch) { return agent->forward(batch).second; };
    return rows.finish(pool->observation().tensors(), value);
  });

  const int64_t steps = rollouts * rollout->epoch_length().value();
  TrainerOptions options{.max_steps = steps, .grad_clip = 0.5, .schedule = linear_lr(steps)};
  if (!folder.empty()) options.output_dir = folder, options.save_every = 50;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, Adam({.lr = 1e-3, .eps = 1e-5}), options).value();
  Report report(*rollout);
  const auto result = trainer.fit(*rollout, loss, {.events = &report, .state = {{"simulators", *pool}}});
  if (!result.ok()) return std::fprintf(stderr, "%s\n", error_text(result.status()).c_str()), 1;
  const double solved = evaluate(agent);
  std::printf("solved %.1f %% of 1,000 boards after %ld moves\n", 100 * solved, static_cast<long>(rollouts * 32 * 256));
  return rollouts < 6 || solved >= (rollouts < 40 ? 0.7 : 0.95) ? 0 : 1;
}
