// A simulation that trains from its own loop: it predicts a pendulum that it observes, and draws its progress. The
// program holds each batch itself and calls Session::step(batch). With a folder it can be killed and resumed.
//   example_online [folder]
#include <torch/torch.h>

#include <cmath>
#include <cstdio>
#include <filesystem>
#include <string>

#include "trainkit/trainkit.h"

using namespace trainkit;

/// 64 pendulums with friction. Each tick moves them by a twentieth of a second.
struct Pendulums {
  at::Tensor angle = torch::rand({64}) * 4 - 2, speed = torch::zeros({64});
  int64_t ticks = 0;

  at::Tensor state() const { return torch::stack({angle.sin(), angle.cos(), speed}, 1); }
  void tick() {
    for (int i = 0; i < 5; ++i) {
      speed = speed - 0.01 * (9.81 * angle.sin() + 0.2 * speed);
      angle = angle + 0.01 * speed;
    }
    if (++ticks % 100 == 50) speed = speed + torch::randn({64});  // a gust
  }

  // What a resumed run needs to see the same pendulums.
  StateDict state_dict() const { return {{"angle", angle}, {"speed", speed}, {"ticks", ticks}}; }
  absl::Status load_state_dict(const StateDict& state) {
    TRAINKIT_ASSIGN_OR_RETURN(angle, get_state<at::Tensor>(state, "angle"));
    TRAINKIT_ASSIGN_OR_RETURN(speed, get_state<at::Tensor>(state, "speed"));
    TRAINKIT_ASSIGN_OR_RETURN(ticks, get_state<int64_t>(state, "ticks"));
    return absl::OkStatus();
  }
};

struct NetImpl : torch::nn::Module {
  torch::nn::Linear hidden = register_module("hidden", torch::nn::Linear(3, 64));
  torch::nn::Linear out = register_module("out", torch::nn::Linear(64, 3));
  at::Tensor forward(const at::Tensor& x) { return x + out(hidden(x).tanh()); }
};
TORCH_MODULE(Net);

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "";
  torch::manual_seed(1);
  auto devices = DeviceReplicator::create([] { return Net(); }).value();
  TrainerOptions options{.log_every = 10, .output_dir = folder};
  if (!folder.empty()) options.save_every = 50;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, AdamW({.lr = 3e-3}), options).value();
  const auto loss = [](Net& net, const Batch& batch) {
    return at::mse_loss(net->forward(batch["now"]), batch["next"]);
  };
  Pendulums world;
  Session session = trainer.begin(loss, {.state = {{"world", world}}}).value();
  const auto fields = std::make_shared<const std::vector<FieldSpec>>(
      std::vector<FieldSpec>{{"now", at::kFloat, {3}}, {"next", at::kFloat, {3}}});
  double error = 0;
  for (int64_t frame = session.progress().step + 1; frame <= 600; ++frame) {  // a resumed run continues at its frame
    const at::Tensor now = world.state();
    world.tick();
    if (!session.step(Batch(fields, {now, world.state()})).value()) break;
    if (frame % 60 != 0) continue;
    error = session.progress().loss;
    const int bar = std::max(1, static_cast<int>(60 + 10 * std::log10(error)));
    std::printf("frame %3ld  error %.1e %.*s\n", static_cast<long>(frame), error, bar,
                "############################################################");
  }
  const TrainerResult result = session.finish().value();
  std::printf("%ld steps, %ld of them in this start\n", static_cast<long>(result.steps),
              static_cast<long>(result.steps_run));
  return error < 1e-3 ? 0 : 1;
}
