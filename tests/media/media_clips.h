#pragma once
/// Video and audio clips made by tests.

#include <torch/types.h>

#include <cmath>
#include <numbers>

#include "test_util.h"
#include "trainkit/media/media.h"

namespace trainkit::test {

/// Frames (count, 3, height, width) of a disc that moves over a noisy gradient.
inline at::Tensor moving_disc(int64_t count, int64_t height, int64_t width) {
  const at::Tensor y = torch::arange(height).view({-1, 1}).expand({height, width}).to(at::kFloat);
  const at::Tensor x = torch::arange(width).view({1, -1}).expand({height, width}).to(at::kFloat);
  torch::manual_seed(5);
  const at::Tensor grain = torch::randn({height, width}) * 6;
  std::vector<at::Tensor> frames;
  for (int64_t i = 0; i < count; ++i) {
    const double angle = 2 * std::numbers::pi * static_cast<double>(i) / 40;
    const at::Tensor inside = ((x - width * (0.5 + 0.3 * std::cos(angle))).square() +
                               (y - height * (0.5 + 0.3 * std::sin(angle))).square()) < height * height / 36.0;
    const at::Tensor base = x * 200 / width + grain.roll(i, 1) + 20;
    frames.push_back(torch::stack({torch::where(inside, base * 0 + 230, base), base * 0.7 + y * 60 / height,
                                   torch::where(inside, base * 0 + 30, 240 - base)}));
  }
  return torch::stack(frames).clamp(0, 255).to(at::kByte);
}

/// A sine tone of shape (1, count).
inline at::Tensor tone(double hertz, int64_t count, double sample_rate) {
  return (torch::arange(count, at::kDouble) * (2 * std::numbers::pi * hertz / sample_rate))
      .sin()
      .mul(0.5)
      .to(at::kFloat)
      .unsqueeze(0);
}

}  // namespace trainkit::test
