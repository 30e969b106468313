// Writes clips in MELD's layout for demonstrations and tests: drawn faces that speak in vowels.
#include <ATen/Parallel.h>
#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>
#include <ATen/ops/full.h>
#include <ATen/ops/rand.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cmath>
#include <cstdio>
#include <numbers>

#include "emotion_recognition/session.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"
#include "trainkit/media/media.h"

namespace trainkit::emotion {
namespace {

constexpr int64_t kSide = 128, kFrames = 36, kRate = 16'000;
constexpr double kFrameRate = 24, kSeconds = static_cast<double>(kFrames) / kFrameRate;

/// Look and sound of a label.
struct Expression {
  double mouth;  // curvature; positive: corners up
  double open;   // opening of the mouth while speaking
  double brow;   // slope; positive: inner ends up
  double eyes;   // height
  double pitch;  // hertz
  double vibrato;
  double syllables;  // per second
};
constexpr Expression kExpressions[] = {
    {0.0, 0.3, 0.0, 1.0, 120, 0.01, 3},    // neutral
    {0.2, 1.0, 0.8, 1.6, 240, 0.02, 2},    // surprise
    {-0.5, 0.5, 0.8, 1.4, 260, 0.10, 6},   // fear
    {-1.0, 0.2, 0.5, 0.6, 100, 0.04, 2},   // sadness
    {1.0, 0.6, 0.2, 0.9, 200, 0.05, 5},    // joy
    {-0.6, 0.2, -0.5, 0.5, 90, 0.00, 3},   // disgust
    {-0.4, 0.8, -1.0, 1.1, 170, 0.00, 7},  // anger
};

struct Person {
  double x, y, radius, sway;
  float skin[3], wall[3];
  double voice;  // factor of the pitch
};

Person draw_person(RandomStream& random) {
  const auto between = [&](double low, double high) { return low + (high - low) * random.uniform(); };
  Person person{between(0.4, 0.6), between(0.45, 0.55), between(0.28, 0.36), between(0.0, 0.03), {}, {}, 1};
  const auto tone = static_cast<float>(between(120, 235));
  person.skin[0] = tone, person.skin[1] = tone * 0.8F, person.skin[2] = tone * 0.65F;
  for (float& part : person.wall) part = static_cast<float>(between(20, 200));
  person.voice = between(0.9, 1.12);
  return person;
}

/// Draws a frame (3, kSide, kSide) float32, 0 to 255.
at::Tensor draw_face(const Person& person, const Expression& expression, double seconds) {
  const at::Tensor at = (at::arange(kSide, at::kFloat) + 0.5F) / kSide;
  const double sway = person.sway * std::sin(2 * std::numbers::pi * seconds);
  const at::Tensor x = ((at - (person.x + sway)) / person.radius).unsqueeze(0);
  const at::Tensor y = ((at - person.y) / person.radius).unsqueeze(1);
  const at::Tensor face = x.square() + (y / 1.2).square() < 1;
  const at::Tensor side = x.abs();
  const at::Tensor eyes = ((side - 0.4) / 0.16).square() + ((y + 0.3) / (0.1 * expression.eyes)).square() < 1;
  const at::Tensor brow_line = y + 0.6 + 0.25 * expression.brow * (0.4 - side);
  const at::Tensor brows = (brow_line.abs() < 0.045).logical_and((side - 0.4).abs() < 0.22);
  const double open = expression.open * std::abs(std::sin(std::numbers::pi * expression.syllables * seconds));
  const at::Tensor lips = y - 0.5 + 0.5 * expression.mouth * (x.square() - 0.1);
  const at::Tensor mouth = (lips.abs() < 0.05 + 0.12 * open).logical_and(side < 0.45);
  std::vector<at::Tensor> colours;
  const float mouth_colour[] = {150, 30, 40};
  for (int c = 0; c < 3; ++c) {
    at::Tensor colour = at::full({kSide, kSide}, person.wall[c], at::kFloat);
    colour = at::where(face, at::full({}, person.skin[c], at::kFloat), colour);
    colour = at::where(eyes.logical_or(brows), at::full({}, 25.0F, at::kFloat), colour);
    colours.push_back(at::where(mouth, at::full({}, mouth_colour[c], at::kFloat), colour));
  }
  return at::stack(colours);
}

/// Synthesises sound (1, samples) float32: six harmonics, louder in each syllable, with a little noise.
at::Tensor speak(const Person& person, const Expression& expression, RandomStream& random) {
  const auto count = static_cast<int64_t>(kSeconds * static_cast<double>(kRate));
  at::Tensor samples = at::zeros({1, count}, at::kFloat);
  float* const out = samples.mutable_data_ptr<float>();
  double phase = 0;
  for (int64_t i = 0; i < count; ++i) {
    const double t = static_cast<double>(i) / static_cast<double>(kRate);
    const double pitch =
        person.voice * expression.pitch * (1 + expression.vibrato * std::sin(2 * std::numbers::pi * 6 * t));
    phase += 2 * std::numbers::pi * pitch / static_cast<double>(kRate);
    double value = 0;
    for (int harmonic = 1; harmonic <= 6; ++harmonic) value += std::sin(harmonic * phase) / harmonic;
    const double loud = 0.25 + 0.75 * std::abs(std::sin(std::numbers::pi * expression.syllables * t));
    out[i] = static_cast<float>(0.2 * loud * value + 0.01 * (random.uniform() - 0.5));
  }
  return samples;
}

absl::Status write_clip(const std::string& path, size_t label, uint64_t key) {
  RandomStream random(key);
  const Person person = draw_person(random);
  const Expression& expression = kExpressions[label];
  std::vector<at::Tensor> frames;
  for (int64_t i = 0; i < kFrames; ++i) {
    frames.push_back(draw_face(person, expression, static_cast<double>(i) / kFrameRate));
  }
  const at::Tensor video = at::stack(frames).clamp(0, 255).to(at::kByte);
  return write_media(path, video, speak(person, expression, random),
                     {.frame_rate = kFrameRate, .sample_rate = kRate, .preset = "veryfast"});
}

/// LibTorch computes in the calling thread in the scope. The images are small: where other processes use the
/// processors, its threads wait for each other for most of the time.
class OneThread {
 public:
  OneThread() : threads_(at::get_num_threads()) { at::set_num_threads(1); }
  ~OneThread() { at::set_num_threads(threads_); }
  OneThread(const OneThread&) = delete;
  OneThread& operator=(const OneThread&) = delete;

 private:
  int threads_;
};

}  // namespace

absl::StatusOr<int> write_demo_data(const std::string& folder, uint64_t seed) {
  const OneThread one_thread;
  const struct {
    const char* split;
    const char* clips;
    int64_t dialogues;  // with one clip per label
  } parts[] = {
      {"train", "train_splits", 6}, {"dev", "dev_splits_complete", 1}, {"test", "output_repeated_splits_test", 2}};
  const bool shows = ::isatty(STDERR_FILENO) == 1;
  int64_t total = 0, written = 0;
  for (const auto& part : parts) total += part.dialogues * static_cast<int64_t>(meld_emotions().size());
  for (const auto& part : parts) {
    const std::string place = folder + "/" + part.clips;
    TRAINKIT_RETURN_IF_ERROR(Fs::posix().create_directories(place).status());
    std::string table =
        "Sr No.,Utterance,Speaker,Emotion,Sentiment,Dialogue_ID,Utterance_ID,Season,Episode,StartTime,EndTime\n";
    for (int64_t dialogue = 0; dialogue < part.dialogues; ++dialogue) {
      for (size_t label = 0; label < meld_emotions().size(); ++label, ++written) {
        const std::string name = fmt::format("dia{}_utt{}.mp4", dialogue, label);
        TRAINKIT_RETURN_IF_ERROR(
            write_clip(place + "/" + name, label, hash_key(seed, 0, static_cast<uint64_t>(written))));
        table += fmt::format("{},\"Aah, ooh.\",Speaker {},{},neutral,{},{},1,1,\"00:00:00,000\",\"00:00:01,500\"\n",
                             written + 1, dialogue + 1, meld_emotions()[label], dialogue, label);
        if (shows) std::fputs(fmt::format("\r{} of {} clips", written + 1, total).c_str(), stderr);
      }
    }
    TRAINKIT_RETURN_IF_ERROR(
        write_file_atomically(Fs::posix(), fmt::format("{}/{}_sent_emo.csv", folder, part.split), table));
  }
  if (shows) std::fputs("\n", stderr);
  std::fputs(fmt::format(
                 "wrote {0} clips and 3 tables to {1}\n"
                 "try: trainkit-emotion --data_dir {1} --model_size simple --frames 4 --image_size 64 --lr_visual 1e-3 "
                 "--lr_audio 1e-3 --epochs 30\n",
                 written, folder)
                 .c_str(),
             stdout);
  return 0;
}

}  // namespace trainkit::emotion
