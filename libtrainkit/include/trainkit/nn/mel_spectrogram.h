#pragma once
/// Sound as a picture of its pitch over time.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trainkit {

/// Names and defaults of torchaudio.transforms.MelSpectrogram; 0 stands for its None.
struct MelSpectrogramOptions {
  int64_t sample_rate = 16'000;
  /// Samples of one Fourier transform.
  int64_t n_fft = 400;
  /// Samples under the window, at most n_fft. 0: n_fft.
  int64_t win_length = 0;
  /// Samples from one column to the next. 0: win_length / 2.
  int64_t hop_length = 0;
  /// Hertz of the lowest and the highest filter's ends. f_max 0: half of sample_rate.
  double f_min = 0, f_max = 0;
  int64_t n_mels = 128;
  /// The logarithm of the power, but of no less than this. 0: the power itself, as torchaudio gives it.
  double log_floor = 0;
};

/// Power of the short-time Fourier transform, summed by triangular filters that are evenly spaced on the mel scale.
///
///   MelSpectrogram mel(MelSpectrogramOptions{.hop_length = 160, .n_mels = 64, .log_floor = 1e-6});
///   mel->to(device);
///   at::Tensor picture = mel->forward(samples);   // (N, 48000) to (N, 64, 301), on the device, float32
///
/// Periodic Hann window, reflected at the ends (center = true), HTK's mel scale, filters not normalised. Computed in
/// float32 under autocast too: half cannot hold powers. Window and filters are buffers ("window", "fb"): they move with
/// the module and have no gradient.
/// Source: torchaudio 2.11, transforms.MelSpectrogram and functional.melscale_fbanks.
class MelSpectrogramImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError that names the option which is out of range.
  explicit MelSpectrogramImpl(const MelSpectrogramOptions& options = {});

  /// (..., samples) float32, more than n_fft / 2 of them, to (..., n_mels, samples / hop_length + 1).
  at::Tensor forward(const at::Tensor& samples);

  /// With the defaults filled in.
  const MelSpectrogramOptions& options() const { return options_; }

 private:
  MelSpectrogramOptions options_;
  at::Tensor window_;
  at::Tensor fb_;  // (n_fft / 2 + 1, n_mels)
};
TORCH_MODULE(MelSpectrogram);

}  // namespace trainkit
