// Mel spectrograms compared with torchaudio's.
#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/mel_spectrogram.h"

using namespace trainkit;

TEST_CASE("Mel spectrograms equal torchaudio's", "[nn][mel_spectrogram]") {
  if (!test::python_has("torchaudio")) TRAINKIT_SKIP("no Python with torchaudio");
  const struct {
    MelSpectrogramOptions options;
    const char* json;
  } rows[] = {
      {{}, "{}"},
      {{.hop_length = 160, .n_mels = 64}, R"({"hop_length": 160, "n_mels": 64})"},
      {{.n_fft = 1024, .win_length = 640, .hop_length = 256, .f_min = 60, .f_max = 7600, .n_mels = 80},
       R"({"n_fft": 1024, "win_length": 640, "hop_length": 256, "f_min": 60, "f_max": 7600, "n_mels": 80})"},
      {{.sample_rate = 22050, .n_fft = 512, .n_mels = 40}, R"({"sample_rate": 22050, "n_fft": 512, "n_mels": 40})"},
  };
  const test::TempDir folder;
  std::string arguments = folder / "out";
  for (const auto& row : rows) arguments += " '" + std::string(row.json) + "'";
  test::run_reference("mel_spectrogram.py", arguments);
  const auto theirs = SafetensorsFile::open(folder / "out");
  REQUIRE(theirs.status() == absl::OkStatus());
  const at::Tensor samples = theirs->tensor("samples").value();
  for (int i = 0; const auto& row : rows) {
    CAPTURE(row.json);
    const at::Tensor mel = theirs->tensor("mel" + std::to_string(i++)).value();
    const at::Tensor ours = MelSpectrogram(row.options)->forward(samples);
    REQUIRE(ours.sizes() == mel.sizes());
    CHECK((ours - mel).abs().max().item<double>() <= 1e-4 * std::max(1.0, mel.max().item<double>()));
    MelSpectrogramOptions with_log = row.options;
    with_log.log_floor = 1e-6;
    const at::Tensor log_mel = MelSpectrogram(with_log)->forward(samples);
    CHECK((log_mel - mel.clamp_min(1e-6).log()).abs().max().item<double>() <= 1e-4);
  }
}
