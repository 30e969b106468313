#include "trainkit/nn/mel_spectrogram.h"

#include <ATen/autocast_mode.h>

#include <numbers>

#include "test_util.h"

using namespace trainkit;

namespace {

at::Tensor tone(double hertz, int64_t count) {
  return (torch::arange(count, at::kDouble) * (2 * std::numbers::pi * hertz / 16'000)).sin().to(at::kFloat);
}

}  // namespace

TEST_CASE("The loudest row of a tone is the one of its frequency", "[nn][mel_spectrogram]") {
  MelSpectrogram mel(MelSpectrogramOptions{.n_fft = 1024, .n_mels = 64});
  int64_t before = -1;
  for (const double hertz : {150., 400., 1000., 2500., 6000.}) {
    const int64_t row = mel->forward(tone(hertz, 16'000)).mean(-1).argmax().item<int64_t>();
    const double centre = 700 * (std::pow(10, 2595 * std::log10(1 + 8000. / 700) * (row + 1) / 65 / 2595) - 1);
    CHECK(centre == Approx(hertz).epsilon(0.1).margin(40));
    CHECK(row > before);
    before = row;
  }
}

TEST_CASE("Each row of a batch equals the row computed alone", "[nn][mel_spectrogram]") {
  MelSpectrogram mel(MelSpectrogramOptions{.hop_length = 160, .n_mels = 64, .log_floor = 1e-6});
  const at::Tensor batch = torch::randn({2, 3, 8000}) * 0.1;
  const at::Tensor all = mel->forward(batch);
  CHECK(all.sizes() == at::IntArrayRef({2, 3, 64, 51}));
  CHECK(at::allclose(all[1][2], mel->forward(batch[1][2]), 1e-5, 1e-5));
  CHECK(mel->forward(torch::zeros(8000)).sub(std::log(1e-6)).abs().max().item<double>() < 1e-4);
}

TEST_CASE("Autocast does not affect powers beyond the range of float16", "[nn][mel_spectrogram]") {
  MelSpectrogram mel;
  const at::Tensor loud = tone(500, 16'000) * 100;
  const at::Tensor plain = mel->forward(loud);
  REQUIRE(plain.max().item<double>() > 65'504);
  at::autocast::set_autocast_enabled(at::kCPU, true);
  at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
  const at::Tensor under = mel->forward(loud);
  at::autocast::clear_cache();
  at::autocast::set_autocast_enabled(at::kCPU, false);
  at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
  CHECK(under.scalar_type() == at::kFloat);
  CHECK(at::equal(under, plain));
}

TEST_CASE("Options out of range and audio that is too short are refused", "[nn][mel_spectrogram]") {
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.sample_rate = 0}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.n_fft = 1}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.win_length = 401}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.hop_length = -1}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.f_min = 9000}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.n_mels = 0}), c10::ValueError);
  CHECK_THROWS_AS(MelSpectrogram(MelSpectrogramOptions{.log_floor = -1}), c10::ValueError);
  MelSpectrogram mel;
  CHECK_THROWS_AS(mel->forward(torch::zeros(200)), c10::ValueError);
  CHECK_THROWS_AS(mel->forward(torch::zeros({2, 4000}, at::kDouble)), c10::ValueError);
}
