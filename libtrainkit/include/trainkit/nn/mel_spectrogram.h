#pragma once
/// Mel spectrogram of audio.

#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace trainkit {

/// Uses names and defaults of torchaudio.transforms.MelSpectrogram; 0 stands for its None.
struct MelSpectrogramOptions {
  int64_t sample_rate = 16'000;
  /// Samples per Fourier transform.
  int64_t n_fft = 400;
  /// Window length in samples, at most n_fft. 0 means n_fft.
  int64_t win_length = 0;
  /// Samples between columns. 0 means win_length / 2.
  int64_t hop_length = 0;
  /// Lowest and highest frequency of the filters in hertz. f_max 0 means half of sample_rate.
  double f_min = 0, f_max = 0;
  int64_t n_mels = 128;
  /// Take the logarithm of the power, clamped to this minimum. 0 returns the power, as torchaudio does.
  double log_floor = 0;
};

/// Computes the power of the short-time Fourier transform, summed by triangular filters evenly spaced on the mel scale.
///
///   MelSpectrogram mel(MelSpectrogramOptions{.hop_length = 160, .n_mels = 64, .log_floor = 1e-6});
///   mel->to(device);
///   at::Tensor picture = mel->forward(samples);   // (N, 48000) to (N, 64, 301), on the device, float32
///
/// Periodic Hann window, reflection padding (center = true), HTK mel scale, filters not normalised. Computes in float32
/// under autocast too, because float16 cannot represent the power. Window and filters are buffers ("window", "fb"):
/// they move with the module and have no gradient. Source: torchaudio 2.11, transforms.MelSpectrogram and
/// functional.melscale_fbanks.
class MelSpectrogramImpl : public torch::nn::Module {
 public:
  /// Throws c10::ValueError, which names the option that is out of range.
  explicit MelSpectrogramImpl(const MelSpectrogramOptions& options = {});

  /// Maps (..., samples) float32, with more than n_fft / 2 samples, to (..., n_mels, columns). columns is
  /// samples / hop_length + 1, and (samples - 1) / hop_length + 1 if n_fft is odd.
  at::Tensor forward(const at::Tensor& samples);

  /// Options with the defaults filled in.
  const MelSpectrogramOptions& options() const { return options_; }

 private:
  MelSpectrogramOptions options_;
  at::Tensor window_;
  at::Tensor fb_;  // (n_fft / 2 + 1, n_mels)
};
TORCH_MODULE(MelSpectrogram);

}  // namespace trainkit
