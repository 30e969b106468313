// DCGAN: a generator and a discriminator, with an optimizer each, learn to draw discs. Run it twice with the same
// folder, or kill it in between: it continues where it was.
//   example_gan [steps] [folder]
#include <torch/torch.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <string>

#include "trainkit/arrays/array_file.h"
#include "trainkit/trainkit.h"

using namespace trainkit;

constexpr int64_t kSide = 16, kNoise = 16;

/// Discs of radius 3 to 5 at random places, white (1) on black (-1).
at::Tensor discs(int64_t count) {
  const at::Tensor row = torch::arange(kSide).view({1, kSide, 1}), column = torch::arange(kSide).view({1, 1, kSide});
  const at::Tensor radius = torch::rand({count, 1, 1}) * 2 + 3;
  const at::Tensor y = torch::rand({count, 1, 1}) * 5 + 5.5, x = torch::rand({count, 1, 1}) * 5 + 5.5;
  const at::Tensor distance = ((row - y).square() + (column - x).square()).sqrt();
  return (radius - distance).clamp(-1, 1).unsqueeze(1);
}

struct GanImpl : torch::nn::Module {
  using Conv = torch::nn::Conv2dOptions;
  using ConvTranspose = torch::nn::ConvTranspose2dOptions;
  torch::nn::Sequential generator = register_module(
      "generator",
      torch::nn::Sequential(
          torch::nn::ConvTranspose2d(ConvTranspose(kNoise, 48, 4).bias(false)), torch::nn::BatchNorm2d(48),
          torch::nn::ReLU(), torch::nn::ConvTranspose2d(ConvTranspose(48, 24, 4).stride(2).padding(1).bias(false)),
          torch::nn::BatchNorm2d(24), torch::nn::ReLU(),
          torch::nn::ConvTranspose2d(ConvTranspose(24, 1, 4).stride(2).padding(1)), torch::nn::Tanh()));
  torch::nn::Sequential discriminator = register_module(
      "discriminator", torch::nn::Sequential(torch::nn::Conv2d(Conv(1, 24, 4).stride(2).padding(1)),
                                             torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                                             torch::nn::Conv2d(Conv(24, 48, 4).stride(2).padding(1).bias(false)),
                                             torch::nn::BatchNorm2d(48),
                                             torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2)),
                                             torch::nn::Conv2d(Conv(48, 1, 4))));
};
TORCH_MODULE(Gan);

at::Tensor bce(const at::Tensor& logits, double label) {
  return at::binary_cross_entropy_with_logits(logits, at::full_like(logits, label));
}

/// White pixels of each picture, and whether all of them are connected.
std::pair<double, bool> blob(const at::Tensor& picture) {
  const at::Tensor white = picture.gt(0).cpu().contiguous();
  const bool* at_pixel = white.const_data_ptr<bool>();
  std::vector<bool> seen(kSide * kSide);
  const auto area = white.sum().item<int64_t>();
  const int64_t first = std::find(at_pixel, at_pixel + kSide * kSide, true) - at_pixel;
  std::vector<int64_t> open;
  if (area > 0) open.push_back(first);
  int64_t reached = 0;
  while (!open.empty()) {
    const int64_t pixel = open.back(), y = pixel / kSide, x = pixel % kSide;
    open.pop_back();
    if (seen[pixel] || !at_pixel[pixel]) continue;
    seen[pixel] = true;
    ++reached;
    if (y > 0) open.push_back(pixel - kSide);
    if (y + 1 < kSide) open.push_back(pixel + kSide);
    if (x > 0) open.push_back(pixel - 1);
    if (x + 1 < kSide) open.push_back(pixel + 1);
  }
  return {static_cast<double>(area), area > 0 && reached == area};
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
  const std::vector<Player> players = {{.name = "d",
                                        .parameters = {"discriminator.*"},
                                        .optimizer = std::make_shared<Adam>(adam),
                                        .loss =
                                            [](Gan& gan, const Batch& batch, const Shared& shared) {
                                              return bce(gan->discriminator->forward(batch["picture"]), 0.9) +
                                                     bce(gan->discriminator->forward(shared.at("fake").detach()), 0);
                                            }},
                                       {.name = "g",
                                        .parameters = {"generator.*"},
                                        .optimizer = std::make_shared<Adam>(adam),
                                        .loss = [](Gan& gan, const Batch&, const Shared& shared) {
                                          return bce(gan->discriminator->forward(shared.at("fake")), 1);
                                        }}};
  // Computed once: the discriminator sees it detached, the generator learns through it.
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
  trainer.fit(*loader, {.events = &report}).value();

  Gan gan(std::dynamic_pointer_cast<GanImpl>(devices->module()));
  gan->eval();
  const at::NoGradGuard no_grad;
  const at::Tensor drawn = gan->generator->forward(torch::randn({256, kNoise, 1, 1}).to(devices->device())).cpu();
  double area = 0, connected = 0, area_of_data = 0;
  for (int64_t i = 0; i < 256; ++i) {
    const auto [pixels, is_one] = blob(drawn[i][0]);
    area += pixels / 256;
    connected += (is_one ? 1.0 : 0.0) / 256;
    area_of_data += blob(pictures[i][0]).first / 256;
  }
  std::printf("mean area %.1f pixels, of the data %.1f; %.0f%% are one blob\n", area, area_of_data, 100 * connected);
  if (!folder.empty()) {
    const at::Tensor grid = drawn.slice(0, 0, 64).view({8, 8, kSide, kSide}).permute({0, 2, 1, 3}).reshape({128, 128});
    const at::Tensor grey = ((grid + 1) * 127.5).round().to(at::kByte).unsqueeze(2).expand({128, 128, 3});
    if (!write_png(folder + "/drawn.png", grey.contiguous()).ok()) return 1;
  }
  return steps < 300 || (connected >= 0.6 && std::abs(area - area_of_data) < 0.25 * area_of_data) ? 0 : 1;
}
