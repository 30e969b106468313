// Pictures and histograms of a run: their files, their rewind, and all sinks that show them.
#include "logging/media.h"

#include <ATen/ATen.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "logging/run_log.h"
#include "read_text.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using trainkit::detail::media_file_name;
using trainkit::detail::read_histograms;
using trainkit::detail::read_media_name;

namespace {

/// Keeps what it is given.
struct Keeper final : Logger {
  void log(const LogRecord&) override {}
  void log_image(const LogImage& image) override { images.push_back(image); }
  void log_histogram(const LogHistogram& histogram) override { histograms.push_back(histogram); }
  absl::Status flush() override { return absl::OkStatus(); }
  std::vector<LogImage> images;
  std::vector<LogHistogram> histograms;
};

std::vector<std::string> media_files(const std::string& folder) {
  std::vector<std::string> names;
  std::error_code none;
  for (const auto& entry : std::filesystem::directory_iterator(folder, none)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

LogHistogram counted(const at::Tensor& values) {
  Keeper keeper;
  keeper.histogram("h", 1, values);
  return keeper.histograms.at(0);
}

}  // namespace

TEST_CASE("A picture of any layout and dtype becomes pixels", "[logging][media]") {
  Keeper keeper;
  const at::Tensor bytes = at::arange(3 * 4 * 5, at::kInt).to(at::kByte).view({3, 4, 5});
  keeper.image("a", 7, bytes);
  CHECK(keeper.images[0].step == 7);
  CHECK(keeper.images[0].pixels.equal(bytes.permute({1, 2, 0})));
  for (const at::ScalarType dtype : {at::kFloat, at::kDouble, at::kBFloat16}) {
    keeper.image("a", 7, at::tensor({0.0, 0.5, 1.0, -3.0, 9.0, NAN}, at::kDouble).to(dtype).view({2, 3}));
    const at::Tensor pixels = keeper.images.back().pixels;
    CHECK(pixels.sizes() == at::IntArrayRef({2, 3, 3}));
    CHECK(pixels.select(2, 1).flatten().equal(at::tensor({0, 128, 255, 0, 255, 0}, at::kByte)));
    CHECK(pixels.select(2, 0).equal(pixels.select(2, 2)));
  }
  keeper.image("a", 7, at::zeros({1, 2, 2}));
  // Later changes of the tensor do not change the picture.
  at::Tensor changed = at::zeros({3, 2, 2}, at::kByte);
  keeper.image("a", 7, changed);
  changed.fill_(9);
  CHECK(keeper.images.back().pixels.sum().item<int64_t>() == 0);
  for (const at::Tensor& bad : {at::zeros({2, 4, 4}), at::zeros({4}), at::zeros({3, 4, 4}, at::kLong),
                                at::zeros({3, 0, 4}), at::zeros({1, 3, 4, 4})}) {
    CHECK_THROWS_AS(keeper.image("a", 1, bad), c10::ValueError);
  }
}

TEST_CASE("A histogram counts the finite values of any dtype", "[logging][media]") {
  const LogHistogram h = counted(at::arange(128, at::kDouble));
  CHECK(h.min == 0);
  CHECK(h.max == 127);
  CHECK(h.sum == 127 * 64);
  CHECK(h.sum_of_squares == Approx(127.0 * 128 * 255 / 6));
  REQUIRE(h.counts.size() == 64);
  for (const int64_t count : h.counts) CHECK(count == 2);
  const LogHistogram some = counted(at::tensor({1.0F, NAN, 3.0F, INFINITY, -INFINITY}));
  CHECK(some.non_finite == 3);
  CHECK(some.min == 1);
  CHECK(some.max == 3);
  CHECK(some.counts.front() == 1);
  CHECK(some.counts.back() == 1);
  CHECK(counted(at::full({5}, 2)).counts == std::vector<int64_t>{5});
  CHECK(counted(at::full({2, 2}, NAN)).counts.empty());
  CHECK(counted(at::full({2, 2}, NAN)).non_finite == 4);
  CHECK(counted(at::zeros({0})).counts.empty());
  CHECK(counted(at::ones({2}, at::kBool)).sum == 2);
  CHECK(counted(at::ones({3}, at::kBFloat16)).max == 1);
}

TEST_CASE("Names of pictures hold any tag and are read back", "[logging][media]") {
  for (const std::string tag : {"a", "val/samples", "100 %.step-3.png", "\xc3\xa4\n", ""}) {
    for (const int64_t step : {0L, 120L, 5'000'000'000L}) {
      const std::string name = media_file_name(tag, step);
      CHECK(name.find('/') == name.npos);
      CHECK(read_media_name(name).tag == tag);
      CHECK(read_media_name(name).step == step);
    }
  }
  CHECK(media_file_name("val/a-b_c", 20) == "val%2Fa-b_c.step-00000020.png");
  for (const char* foreign : {"a.png", "a.step-1.png", "a.step-00000001.jpg", "a b.step-00000001.png",
                              "%2.step-00000001.png", "a.step-0000000x.png", "histograms.jsonl"}) {
    CHECK(read_media_name(foreign).step == -1);
  }
}

TEST_CASE("A run keeps its pictures and histograms, and a resumed one those up to its checkpoint", "[logging][media]") {
  const test::TempDir dir;
  const std::string media = dir / "media";
  const auto log = [&](int64_t first, int64_t last, int64_t resume_step) {
    auto run = open_run_log({.output_dir = dir.path(), .resume_step = resume_step}).value();
    for (int64_t step = first; step <= last; ++step) {
      run->image("val/x", step, at::full({3, 2, 2}, step, at::kByte));
      run->image("test/x", step, at::zeros({2, 2}));
      run->histogram("w", step, at::arange(step + 2));
      run->histogram("test/w", step, at::arange(2));
    }
    REQUIRE(run->close().ok());
  };
  {
    auto without = open_run_log({.output_dir = dir.path()}).value();
    without->log({.step = 1});
    REQUIRE(without->close().ok());
    CHECK(!std::filesystem::exists(media));
  }
  log(1, 3, -1);
  std::ofstream(media + "/note.png") << "of the user";
  const std::vector<std::string> all = media_files(media);
  CHECK(all.size() == 8);
  CHECK(read_png(media + "/val%2Fx.step-00000003.png").value().equal(at::full({2, 2, 3}, 3, at::kByte)));
  CHECK(read_histograms(media + "/histograms.jsonl").size() == 6);
  CHECK(read_histograms(media + "/histograms.jsonl")[4].max == 4);
  std::ofstream(media + "/histograms.jsonl", std::ios::app) << "{\"step\":4,\"ta";  // torn
  log(4, 3, 2);  // resumes after step 2 and logs nothing
  CHECK(media_files(media) == std::vector<std::string>{"histograms.jsonl", "note.png", "test%2Fx.step-00000001.png",
                                                       "val%2Fx.step-00000001.png", "val%2Fx.step-00000002.png"});
  const auto kept = read_histograms(media + "/histograms.jsonl");
  REQUIRE(kept.size() == 3);  // "test/w" of step 2 goes with what follows it
  CHECK(kept.back().tag == "w");
  CHECK(kept.back().step == 2);
  log(3, 3, 2);
  CHECK(media_files(media).size() == 7);
  log(1, 1, -1);
  CHECK(media_files(media).size() == 4);
  CHECK(read_histograms(media + "/histograms.jsonl").size() == 2);
}

TEST_CASE("A long file of histograms is rewound from its end", "[logging][media]") {
  const test::TempDir dir;
  MediaLogger logger(dir.path());
  LogHistogram h{.tag = "w", .min = 0, .max = 1, .counts = std::vector<int64_t>(64, 123456)};
  for (h.step = 1; h.step <= 6000; ++h.step) logger.log_histogram(h);
  REQUIRE(logger.flush().ok());
  REQUIRE(std::filesystem::file_size(dir / "histograms.jsonl") > (2 << 20));
  for (const int64_t step : {5990, 3000, 1, 0}) {
    REQUIRE(logger.rewind(step).ok());
    const auto kept = read_histograms(dir / "histograms.jsonl");
    CHECK(static_cast<int64_t>(kept.size()) == step);
    if (step > 0) CHECK(kept.back().step == step);
  }
}

TEST_CASE("A picture that cannot be written is an error of the run", "[logging][media]") {
  const test::TempDir dir;
  std::ofstream(dir / "media") << "a file";
  auto run = open_run_log({.output_dir = dir.path(), .use_tensorboard = false}).value();
  run->image("x", 1, at::zeros({2, 2}));
  CHECK(exit_code(run->close()) == ExitCode::kStorage);
}

TEST_CASE("A picture with other pixels than Logger::image makes is an error of the run", "[logging][media]") {
  const test::TempDir dir;
  auto run = open_run_log({.output_dir = dir.path()}).value();
  run->log_image({.step = 1, .tag = "x", .pixels = at::zeros({2, 2})});
  run->log({.step = 2});
  CHECK(!run->close().ok());
  CHECK(read_jsonl(dir / "metrics.jsonl").value().size() == 1);
}

TEST_CASE("W&B's client gets the path of each picture and the edges of each histogram", "[logging][media][wandb]") {
  const test::TempDir dir;
  const std::string script = dir / "client.sh";
  std::ofstream(script)
      << "#!/bin/sh\necho '{\"ready\": true}' >&0\nwhile read -r line; do printf '%s\\n' \"$line\" >> " +
             (dir / "got") + "; case $line in *finish*) break;; esac; done\necho '{\"done\": true}' >&0\n";
  std::filesystem::permissions(script, std::filesystem::perms::owner_all);
  auto run = open_run_log({.output_dir = dir.path(),
                           .use_tensorboard = false,
                           .use_wandb = true,
                           .wandb = {.mode = "offline", .python = script}})
                 .value();
  run->image("val/x", 3, at::zeros({2, 2}));
  run->histogram("w", 3, at::tensor({1.0, 1.0}));
  CHECK(run->close().ok());
  const std::string got = test::read_text(dir / "got");
  CHECK_THAT(got, Catch::Contains("{\"picture\":\"" + (dir / "media/val%2Fx.step-00000003.png") +
                                  "\",\"step\":3,\"tag\":\"val/x\"}"));
  CHECK_THAT(got, Catch::Contains(R"({"counts":[2],"edges":[1.0,1.0],"step":3,"tag":"w"})"));
}
