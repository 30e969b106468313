// A video or audio file in any container: decoded data has the promised size.
#include "trainkit/media/media.h"

#include <ATen/Functions.h>

#include "target.h"
#include "trainkit/media/media.h"

namespace trainkit::fuzz::media {

namespace {

std::string wav() {
  using namespace std::string_literals;
  const std::string samples(400, '\x11');
  return "RIFF\xb4\1\0\0WAVEfmt \x10\0\0\0\1\0\1\0\x40\x1f\0\0\x80\x3e\0\0\2\0\x10\0data\x90\1\0\0"s + samples;
}

}  // namespace

std::vector<std::string> seeds() {
  const at::Tensor frames = at::arange(4 * 3 * 32 * 32, at::kInt).remainder(251).to(at::kByte).view({4, 3, 32, 32});
  const at::Tensor sound = at::arange(1600, at::kFloat).div(400).sin().unsqueeze(0);
  std::vector<std::string> files = {wav()};
  const std::string path = folder() + "/seed.mp4";
  if (write_media(path, frames, sound, {.sample_rate = 16000}).ok()) files.push_back(read_bytes(path));
  if (write_media(path, frames, {}, {.rotation = 90}).ok()) files.push_back(read_bytes(path));
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const std::vector<std::string> known = {"data."};
  const auto file = MediaFile::open(memory.write(as_text(data, size)), {.max_pixels = 1 << 16, .max_seconds = 60});
  if (!file.ok()) return require_named(file.status(), known), 0;
  if (file->video()) {
    const auto frames = file->spread_frames(3, {.height = 8, .width = 16});
    if (frames.ok()) {
      require(frames->data.sizes() == at::IntArrayRef({3, 3, 8, 16}), "three frames");
      require(frames->pts_seconds.isfinite().all().item<bool>(), "times are numbers");
    } else {
      require_named(frames.status(), known);
    }
  }
  if (file->audio()) {
    const auto sound = file->samples({.sample_rate = 8000});
    if (sound.ok()) {
      require(sound->data.size(0) == 1 && sound->data.isfinite().all().item<bool>(), "one channel of numbers");
    } else {
      require_named(sound.status(), known);
    }
  }
  return 0;
}

const Registered target("media", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::media
