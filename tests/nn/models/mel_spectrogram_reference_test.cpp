// Mel spectrograms compared with torchaudio's.
#include <array>
#include <numbers>

#include "test_util.h"
#include "trainkit/nn/mel_spectrogram.h"

using namespace trainkit;

namespace {

constexpr int64_t kChannels = 3, kSamples = 24000, kBands = 8;

/// Of one channel: the sum of its values, then those of 8 bands from the first to the last, each in the first frame,
/// after a third of the frames and in the last one.
using Values = std::array<double, 1 + kBands * 3>;

struct Row {
  MelSpectrogramOptions options;
  int64_t frames;
  Values channels[kChannels];
};

/// torchaudio 2.11.0, MelSpectrogram(**options)(samples()) with torch 2.11.0 on the CPU:
/// tests/reference/mel_spectrogram.py prints these numbers.
const Row kRows[] = {
    {{},
     121,
     {{290696.51,    0,           0,           0,           68.623253,  0.0018669714, 69.338707,   4.0741372,
       0.0022083609, 3.9766157,   0.47169244,  0.017841969, 0.27867869, 0.090686433,  0.024005309, 0.0041395007,
       0.08930371,   0.021888498, 0.001816742, 0.025962627, 0.05098176, 0.0055424534, 0.11710834,  0.01480596,
       0.13126628},
      {453678.84,
       0,
       0,
       0,
       44.37085,
       3.2200649e-05,
       0.080628984,
       0.57722998,
       0.00034576439,
       0.069972433,
       0.083113387,
       0.0058346624,
       0.18147074,
       0.017291768,
       1.3053633e-05,
       0.95322967,
       0.004425351,
       1.1390374e-05,
       1.8451332,
       0.0018824139,
       4.1661813e-05,
       0.14045322,
       0.0015148816,
       4.8986039e-05,
       0.075581484},
      {26654.369,  0,          0,          0,          0.31058887, 0.42078382, 0.012794329, 0.072114646, 1.3189241,
       0.18312742, 0.37798366, 0.09491007, 0.16323422, 1.6970696,  1.4931542,  1.2846159,   0.40642846,  0.40436375,
       5.8823709,  1.662246,   2.4319746,  3.330096,   2.9907928,  6.5274649,  2.647085}}},
    {{.hop_length = 160, .n_mels = 64},
     151,
     {{362757.31,   12.53021,     0.0030377242, 11.893153,   167.38617,   0.0022021539, 165.76144,
       9.6754818,   0.0088498844, 9.2239628,    0.97223908,  0.022962848, 0.49519897,   0.17456619,
       0.040633127, 0.044483345,  0.13986088,   0.057559639, 0.013821986, 0.050859604,  0.10321431,
       0.015630675, 0.12307815,   0.052048091,  0.11850739},
      {566179.89,     108.00819,    5.2961432e-06, 0.062135305,   54.682152,    5.2705236e-05, 0.11192347,
       1.4042417,     0.0013490315, 0.18908741,    0.15851015,    0.0082249548, 0.37026092,    0.035143707,
       2.4941954e-05, 2.1965914,    0.0090344166,  2.7319551e-05, 3.45434,      0.0036541875,  6.1270781e-05,
       0.27496535,    0.0036517042, 0.00012812912, 0.144154},
      {33008.935,  0.015745509, 0.1756798,  0.0026344149, 0.34141594, 1.2723794, 0.014089481, 0.21708752, 4.1229663,
       0.51134598, 1.85329,     0.62078035, 1.2940433,    2.3746383,  2.5035698, 2.0788248,   2.1490712,  1.9544443,
       9.9012947,  4.5832124,   4.2727699,  4.9998927,    3.1128316,  9.2096577, 4.5144582}}},
    {{.n_fft = 1024, .win_length = 640, .hop_length = 256, .f_min = 60, .f_max = 7600, .n_mels = 80},
     94,
     {{924869.18,  31.945181,  0.020053536, 3.9356408,  1432.12,    76.214241,  207.83072,   12.661944,  0.028445469,
       1.5756198,  2.220773,   0.042592447, 0.17472033, 0.33705679, 0.10123678, 0.063786156, 0.33708349, 0.41295937,
       0.29933479, 0.18722104, 0.21562043,  0.17875606, 0.21501338, 0.22803062, 0.20706326},
      {1443012.3,     353.15292,    3.9194831e-05, 0.019627586,   49.225098,    2.3235239e-05, 0.028607525,
       2.0898194,     0.0006013852, 0.044170801,   0.30198228,    0.0011555195, 0.088406138,   0.06647113,
       5.6427332e-05, 0.53968054,   0.018414218,   9.9103185e-05, 1.0808244,    0.0086139636,  0.00015321271,
       0.076209955,   0.0064111133, 0.00035941959, 0.034476019},
      {79647.935, 0.87556833, 1.0941924, 1.6322128, 2.0179965, 8.1320305, 0.98895657, 1.6489031, 17.768787,
       4.8427496, 7.4654121,  2.7763767, 4.8792815, 10.484483, 5.6422219, 7.8797016,  4.8664474, 4.8381052,
       15.436037, 15.250381,  25.597502, 8.8472929, 20.945927, 26.382116, 23.015965}}},
    {{.sample_rate = 22050, .n_fft = 512, .n_mels = 40},
     94,
     {{370000.81,   25.716604,  0.0070288158, 0.56370312, 84.366425,  0.012751047, 1.7298014,  47.879143,  0.026618158,
       1.1360948,   2.2385762,  0.088247597,  0.22018315, 0.33021533, 0.075518422, 0.10729495, 0.25340372, 0.10777169,
       0.066466533, 0.27159816, 0.15987068,   0.18856555, 0.23165178, 0.18822224,  0.26652905},
      {577435.69,     218.35606,     3.6786605e-06, 0.003028926,   1545.6464, 1.2646495e-05, 0.0042106025,
       4.7691078,     4.6559617e-05, 0.0074527659,  0.66496545,    4228.0322, 0.012997283,   0.1101668,
       6.9977774e-05, 0.05153387,    0.0358891,     0.00014992541, 3617.0046, 0.0097746169,  0.00028630774,
       0.019163322,   0.0076961042,  0.00029214047, 0.0075990944},
      {33132.814, 0.13137503, 0.47806382, 0.37744626, 0.23143916, 0.38388565, 0.42176932, 3.7815161, 1.6327876,
       7.1163802, 12.126457,  4.8413453,  3.4064131,  14.762773,  4.0716276,  1.9953747,  2.757952,  13.80651,
       12.649874, 17.115662,  26.868765,  13.413307,  16.190159,  23.602863,  23.623384}}},
};

/// Adds numbers of a linear congruential generator, from -scale / 2 to scale / 2.
void add_noise(double* samples, uint32_t seed, double scale) {
  for (int64_t i = 0; i < kSamples; ++i) {
    seed = 1664525 * seed + 1013904223;
    samples[i] += scale * (seed / 4294967296.0 - 0.5);
  }
}

/// Returns a tone with noise, a rising tone with little noise, and noise: (3, 24000), float32.
at::Tensor samples() {
  const at::Tensor all = torch::zeros({kChannels, kSamples}, at::kDouble);
  auto* values = all.mutable_data_ptr<double>();
  for (int64_t i = 0; i < kSamples; ++i) {
    const double time = static_cast<double>(i) / 16000;
    values[i] = 0.4 * std::sin(2 * std::numbers::pi * 440 * time);
    values[kSamples + i] = 0.5 * std::sin(2 * std::numbers::pi * (200 + 900 * time) * time);
  }
  add_noise(values, 1, 0.03);
  add_noise(values + kSamples, 2, 0.001);
  add_noise(values + 2 * kSamples, 3, 0.3);
  return all.to(at::kFloat);
}

/// Returns the numbers that torchaudio's are compared with, of a spectrogram (bands, frames).
Values values_of(const at::Tensor& mel) {
  const int64_t bands = mel.size(0), frames = mel.size(1);
  Values values{mel.to(at::kDouble).sum().item<double>()};
  size_t next = 1;
  for (int64_t band = 0; band < kBands; ++band) {
    for (const int64_t frame : {int64_t{0}, frames / 3, frames - 1}) {
      values[next++] = mel[band * (bands - 1) / (kBands - 1)][frame].item<double>();
    }
  }
  return values;
}

}  // namespace

TEST_CASE("Mel spectrograms equal torchaudio's", "[nn][mel_spectrogram]") {
  const at::Tensor sound = samples();
  for (const Row& row : kRows) {
    const at::Tensor mel = MelSpectrogram(row.options)->forward(sound);
    MelSpectrogramOptions with_log = row.options;
    with_log.log_floor = 1e-6;
    const at::Tensor log_mel = MelSpectrogram(with_log)->forward(sound);
    REQUIRE(mel.sizes() == at::IntArrayRef({kChannels, row.options.n_mels, row.frames}));
    REQUIRE(log_mel.sizes() == mel.sizes());
    for (int64_t channel = 0; channel < kChannels; ++channel) {
      const Values ours = values_of(mel[channel]), logs = values_of(log_mel[channel]);
      const Values& theirs = row.channels[channel];
      CHECK(ours[0] == Approx(theirs[0]).epsilon(1e-5));
      for (size_t i = 1; i < theirs.size(); ++i) {
        CAPTURE(row.options.n_mels, row.options.n_fft, channel, i);
        CHECK(std::abs(ours[i] - theirs[i]) <= 1e-4 * std::max(1.0, theirs[i]));
        // Each processor's FFT rounds in its own way, by 1e-7 of the loudest amplitude: this is visible in quiet bands.
        const double power = std::max(theirs[i], 1e-6);
        CHECK(std::abs(logs[i] - std::log(power)) <= 1e-4 + 2e-6 / std::sqrt(power));
      }
    }
  }
}
