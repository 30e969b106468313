#include "trainkit/nn/mel_spectrogram.h"

#include <ATen/Functions.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/Exception.h>

#include <cmath>

namespace trainkit {
namespace {

MelSpectrogramOptions completed(MelSpectrogramOptions options) {
  TORCH_CHECK_VALUE(options.sample_rate >= 1, "sample_rate must be at least 1, got ", options.sample_rate);
  TORCH_CHECK_VALUE(options.n_fft >= 2, "n_fft must be at least 2, got ", options.n_fft);
  if (options.win_length == 0) options.win_length = options.n_fft;
  TORCH_CHECK_VALUE(options.win_length >= 2 && options.win_length <= options.n_fft,
                    "win_length must be in 2..n_fft, got ", options.win_length);
  if (options.hop_length == 0) options.hop_length = options.win_length / 2;
  TORCH_CHECK_VALUE(options.hop_length >= 1, "hop_length must be at least 1, got ", options.hop_length);
  const int64_t nyquist = options.sample_rate / 2;  // rounded down, as torchaudio does
  if (options.f_max == 0) options.f_max = static_cast<double>(nyquist);
  TORCH_CHECK_VALUE(options.f_min >= 0 && options.f_min < options.f_max, "f_min must be in [0, f_max), got ",
                    options.f_min);
  TORCH_CHECK_VALUE(options.n_mels >= 1, "n_mels must be at least 1, got ", options.n_mels);
  TORCH_CHECK_VALUE(options.log_floor >= 0, "log_floor must not be negative, got ", options.log_floor);
  return options;
}

double mel_of(double hertz) { return 2595.0 * std::log10(1.0 + hertz / 700.0); }

/// Returns the filters' weights, (n_fft / 2 + 1, n_mels). Computed in float32 as torchaudio does: the rounding of the
/// slopes is visible in the logarithm of quiet sounds.
at::Tensor filter_bank(const MelSpectrogramOptions& options) {
  const int64_t nyquist = options.sample_rate / 2;
  const at::Tensor frequencies = at::linspace(0, static_cast<double>(nyquist), options.n_fft / 2 + 1, at::kFloat);
  const at::Tensor mels = at::linspace(mel_of(options.f_min), mel_of(options.f_max), options.n_mels + 2, at::kFloat);
  const at::Tensor corners = (at::pow(10.0, mels / 2595.0) - 1.0) * 700.0;
  const at::Tensor apart = corners.slice(0, 1) - corners.slice(0, 0, -1);
  const at::Tensor slopes = corners.unsqueeze(0) - frequencies.unsqueeze(1);
  const at::Tensor rising = -slopes.slice(1, 0, -2) / apart.slice(0, 0, -1);
  const at::Tensor falling = slopes.slice(1, 2) / apart.slice(0, 1);
  return at::minimum(rising, falling).clamp_min(0);
}

}  // namespace

MelSpectrogramImpl::MelSpectrogramImpl(const MelSpectrogramOptions& options) : options_(completed(options)) {
  window_ = register_buffer("window", at::hann_window(options_.win_length, at::kFloat));
  fb_ = register_buffer("fb", filter_bank(options_));
}

at::Tensor MelSpectrogramImpl::forward(const at::Tensor& samples) {
  TORCH_CHECK_VALUE(samples.dim() >= 1 && samples.scalar_type() == at::kFloat, "samples must be (..., T) float32, got ",
                    samples.sizes(), " ", samples.scalar_type());
  TORCH_CHECK_VALUE(samples.size(-1) > options_.n_fft / 2, "expected more than n_fft / 2 = ", options_.n_fft / 2,
                    " samples, got ", samples.size(-1));
  const c10::impl::ExcludeDispatchKeyGuard no_autocast(c10::autocast_dispatch_keyset);
  const at::Tensor rows = samples.reshape({-1, samples.size(-1)});
  const at::Tensor spectrum =
      at::stft(rows, options_.n_fft, options_.hop_length, options_.win_length, window_, /*center=*/true, "reflect",
               /*normalized=*/false, /*onesided=*/true, /*return_complex=*/true);
  const at::Tensor power = at::view_as_real(spectrum).square().sum(-1);  // (rows, frequencies, columns)
  at::Tensor mel = at::matmul(fb_.t(), power);
  if (options_.log_floor > 0) mel = mel.clamp_min(options_.log_floor).log();
  std::vector<int64_t> shape = samples.sizes().vec();
  shape.back() = options_.n_mels;
  shape.push_back(mel.size(-1));
  return mel.view(shape);
}

}  // namespace trainkit
