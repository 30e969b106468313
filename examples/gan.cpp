// DCGAN: a generator and a discriminator, with an optimizer each, learn to draw discs. Run it twice with the same
// folder, or kill it in between: it continues where it was.
//   example_gan [steps] [folder]
#include <torch/torch.h>

#include <cstdio>
#include <filesystem>
#include <string>

#include "dcgan.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

/// Discs of radius 3 to 5 at random places, white (1) on black (-1).
at::Tensor discs(int64_t count) {
  const at::Tensor row = torch::arange(kSide).view({1, kSide, 1}), column = torch::arange(kSide).view({1, 1, kSide});
  const at::Tensor radius = torch::rand({count, 1, 1}) * 2 + 3;
  const at::Tensor y = torch::rand({count, 1, 1}) * 5 + 5.5, x = torch::rand({count, 1, 1}) * 5 + 5.5;
  const at::Tensor distance = ((row - y).square() + (column - x).square()).sqrt();
  return (radius - distance).clamp(-1, 1).unsqueeze(1);
}

/// Mean distance of pictures to their nearest picture of the data.
double distance(const at::Tensor& pictures, const at::Tensor& data) {
  return torch::cdist(pictures.flatten(1), data.flatten(1)).amin(1).mean().item<double>();
}

/// Prints the losses of both players now and then.
struct Report final : Events {
  absl::Status on_step(int64_t step, const StepMetrics& metrics) override {
    if (step % 100 != 0) return absl::OkStatus();
    std::printf("step %4ld", static_cast<long>(step));
    for (const auto& [name, value] : metrics.metrics) std::printf("  %s %.3f", name.c_str(), value.item<double>());
    std::printf("\n");
    return absl::OkStatus();
  }
};

int main(int argc, char** argv) {
  const int64_t steps = argc > 1 ? std::stoll(argv[1]) : 300;
  const std::string folder = argc > 2 ? argv[2] : "";
  torch::manual_seed(0);
  const at::Tensor pictures = discs(2048);
  const auto dataset = std::make_shared<TensorDataset>(NamedTensors{{"picture", pictures}});
  auto loader =
      Prefetcher::create(dataset, RandomSampler(dataset->size(), {.seed = 1}), {.batch_size = 64, .drop_last = true})
          .value();
  auto devices = DeviceReplicator::create([] { return Gan(); }).value();

  const AdamOptions adam{.lr = 1e-3, .betas = {0.5, 0.999}};
  const auto players = gan_players(std::make_shared<Adam>(adam), std::make_shared<Adam>(adam));
  const auto fake = [](Gan& gan, const Batch& batch) -> Shared {
    const at::Tensor noise = torch::randn({batch.size(), kNoise, 1, 1}).to(batch["picture"].device());
    return {{"fake", gan->generator->forward(noise)}};
  };

  TrainerOptions options{.max_steps = steps};
  options.output_dir = folder;
  if (!folder.empty()) options.save_every = 50;
  if (std::filesystem::exists(folder + "/checkpoints/latest")) options.resume = "latest";
  auto trainer = Trainer::create(*devices, players, fake, options).value();
  Report report;
  const TrainerResult result = trainer.fit(*loader, {.events = &report}).value();
  std::printf("%ld steps, %ld of them in this start\n", static_cast<long>(result.steps),
              static_cast<long>(result.steps_run));

  Gan gan(std::dynamic_pointer_cast<GanImpl>(devices->module()));
  gan->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor drawn = gan->generator->forward(torch::randn({256, kNoise, 1, 1}).to(devices->device())).cpu();
  const double to_data = distance(drawn, pictures), of_data = distance(discs(256), pictures);
  std::printf("distance to the nearest disc: %.2f, of new discs %.2f\n", to_data, of_data);
  if (!folder.empty()) {
    const at::Tensor grid = drawn.slice(0, 0, 64).view({8, 8, kSide, kSide}).permute({0, 2, 1, 3}).reshape({128, 128});
    const at::Tensor grey = ((grid + 1) * 127.5).round().to(at::kByte).unsqueeze(2).expand({128, 128, 3});
    if (!write_png(folder + "/drawn.png", grey.contiguous()).ok()) return 1;
  }
  return steps < 300 || to_data < 2.5 * of_data ? 0 : 1;
}
