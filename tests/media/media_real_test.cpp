// Clips from other sources, valid and unusual.
#include <numeric>
#include <random>

#include "test_util.h"
#include "trainkit/media/media.h"

using namespace trainkit;

namespace {

std::vector<int64_t> all_of(int64_t count) {
  std::vector<int64_t> all(static_cast<size_t>(count));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

}  // namespace

TEST_CASE("Real clips give the same frames one by one as together", "[io][media]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  for (const char* name : {"clips/chaplin.mp4", "clips/fire2.mp4", "clips/nasa_13013.mp4", "clips/realshort.mp4",
                           "faces/d18.mp4", "clips/flipping_a_pancake.mkv", "odd/h265_video.mp4",
                           "clips/big_buck_bunny_432_433.webm", "odd/test_non_zero_start.mp4"}) {
    CAPTURE(name);
    const auto clip = MediaFile::open(test::data_dir() + "/media/" + name);
    REQUIRE(clip.status() == absl::OkStatus());
    const int64_t count = clip->video()->num_frames;
    const auto all = clip->frames_at(all_of(count), {.height = 96, .width = 96});
    REQUIRE(all.status() == absl::OkStatus());
    std::mt19937 random(4);
    for (int round = 0; round < 4; ++round) {
      std::vector<int64_t> wanted(1 + random() % 5);
      for (auto& index : wanted) index = static_cast<int64_t>(random() % static_cast<uint64_t>(count));
      const auto some = clip->frames_at(wanted, {.height = 96, .width = 96});
      REQUIRE(some.status() == absl::OkStatus());
      for (size_t i = 0; i < wanted.size(); ++i) CHECK(at::equal(some->data[i], all->data[wanted[i]]));
    }
  }
}

TEST_CASE("Each file has its expected result", "[io][media]") {
  if (test::data_dir().empty()) TRAINKIT_SKIP("no TRAINKIT_TEST_DATA");
  const struct {
    const char *name, *video, *audio;  // the expected text; "" for frames or samples, "-" if there is no such stream
    int64_t height = 0, width = 0, frames = 0;
    int rotation = 0;
  } rows[] = {
      {"odd/corrupted.mp4", "video is damaged at 3.000 s", "-"},
      {"odd/h265_video.mp4", "", "-", 128, 128, 10},
      {"odd/nasa_13013_rotated.mp4", "", "-", 480, 270, 17, 90},
      {"odd/no_duration.webm", "", "", 720, 1280, 74},
      {"odd/sine_stereo_mp2.mpg", "container is not allowed (got 'mpeg'", ""},
      {"odd/test_non_zero_start.mp4", "", "-", 112, 200, 12},
      {"odd/testsrc2_mpeg4.avi", "", "-", 720, 1280, 30},
      {"odd/testsrc2_odd_height_and_width_444.mp4", "", "-", 241, 321, 25},
      {"odd/zero_bytes.webm", "is empty", ""},
      {"clips/cockatoo.mp4", "", "", 720, 1280, 280},  // silent: zeros
      {"clips/fire2.mp4", "", "", 720, 1280, 25, 180},
      {"audio/common_voice_clip.wav", "-", ""},
      {"audio/sine_16ch_s16.wav", "-", ""},
      {"clips/nasa_13013.mp4.audio.mp3", "-", ""},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    const auto clip = MediaFile::open(test::data_dir() + "/media/" + row.name);
    if (!clip.ok()) {
      CHECK(exit_code(clip.status()) == ExitCode::kData);
      CHECK_THAT(error_line(clip.status()), Catch::Contains(row.name) && Catch::Contains(row.video));
      CHECK(*row.video != 0);
      continue;
    }
    const auto frames = clip->spread_frames(8, {.height = 64, .width = 64});
    const auto sound = clip->samples();
    for (const auto& [said, status] : {std::pair(row.video, frames.status()), std::pair(row.audio, sound.status())}) {
      const std::string text = std::string(said) == "-" ? "has no " : said;
      CHECK(status.ok() == text.empty());
      if (!status.ok()) CHECK_THAT(error_line(status), Catch::Contains("error[data.media]") && Catch::Contains(text));
    }
    if (row.frames == 0) continue;
    CHECK(clip->video()->num_frames == row.frames);
    CHECK(clip->video()->rotation == row.rotation);
    const auto whole = clip->spread_frames(1);
    INFO(whole.status());
    REQUIRE(whole.ok());
    CHECK(whole->data.sizes() == at::IntArrayRef({1, 3, row.height, row.width}));
  }
}
