// --cache_dir of trainkit-emotion: clips are decoded once and give the same rows as decoding them each time.
#include <torch/torch.h>

#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <fstream>
#include <thread>

#include "apps/emotion/emotion_place.h"
#include "data/datasets/remembered_rows.h"
#include "emotion_recognition/clip_cache.h"
#include "trainkit/data/prefetcher.h"

using namespace trainkit;
using namespace trainkit::emotion;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

std::shared_ptr<const ClipDataset> clips_of(const EmotionPlace& place, const std::string& split,
                                            const ClipDatasetOptions& options) {
  const SplitFiles files = find_split(place.data, split).value();
  return std::make_shared<ClipDataset>(read_clips(files, {}, meld_emotions()).value(), options);
}

ClipDatasetOptions small_clips() { return {.frames = 2, .image_size = 32, .samples = 8000}; }

std::vector<std::string> with_cache(const EmotionPlace& place, std::vector<std::string> more = {}) {
  more.insert(more.end(), {"--cache_dir", place.dir / "cache"});
  return more;
}

/// The cache file of a split; there must be exactly one.
std::string rows_of(const EmotionPlace& place, const std::string& part) {
  std::string found;
  for (const auto& entry : fs::directory_iterator(place.dir / "cache")) {
    if (!entry.path().filename().string().starts_with(part + "-")) continue;
    CHECK(found.empty());
    found = entry.path().string() + "/rows";
  }
  REQUIRE(fs::exists(found));
  return found;
}

void damage_clips(const EmotionPlace& place) {
  fs::remove(place.data + "/train_splits/dia0_utt0.mp4");
  fs::resize_file(place.data + "/train_splits/dia1_utt3.mp4", 700);
  std::ofstream(place.data + "/output_repeated_splits_test/dia0_utt2.mp4") << "no clip";
}

/// The results of a run: its weights, scores and list of bad clips.
std::string results(const EmotionPlace& place, const std::string& name, const std::string& step) {
  const std::string folder = place.dir / name;
  return read_text(folder + "/checkpoints/step-" + step + "/model.safetensors") +
         read_text(folder + "/results/scores.json") +
         (fs::exists(folder + "/bad_samples.csv") ? read_text(folder + "/bad_samples.csv") : "");
}

void wait_for_file(const std::string& folder, const std::string& name) {
  const auto start = std::chrono::steady_clock::now();
  for (;;) {
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
    std::error_code ignored;
    for (const auto& entry : fs::recursive_directory_iterator(folder, ignored)) {
      if (entry.path().filename() == name) return;
    }
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
}

}  // namespace

TEST_CASE("Cached batches equal decoded ones bit for bit, including replaced and bad rows", "[apps][emotion][cache]") {
  const EmotionPlace place;
  damage_clips(place);
  for (const Modality modality : {Modality::kBoth, Modality::kVisual, Modality::kAudio}) {
    ClipDatasetOptions options = small_clips();
    options.modality = modality;
    const auto clips = clips_of(place, "train", options);
    const auto batches = [&](const std::shared_ptr<const Dataset>& rows, int workers) {
      const RandomSampler order(rows->size(), {.seed = 5});
      auto loader =
          Prefetcher::create(rows, order, {.batch_size = 5, .num_workers = workers, .on_error = OnError::kReplace});
      std::string bytes;
      for (;;) {
        const auto batch = (*loader)->next().value();
        if (!batch) break;
        for (const at::Tensor& tensor : batch->tensors()) {
          bytes.append(static_cast<const char*>(tensor.const_data_ptr()), tensor.nbytes());
        }
      }
      for (const BadSample& bad : (*loader)->bad_samples()) bytes += bad.name + bad.cause;
      return bytes;
    };
    const std::string decoded = batches(clips, 0);
    CHECK_THAT(decoded, Catch::Contains("dia0_utt0.mp4") && Catch::Contains("dia1_utt3.mp4"));
    const auto open = [&] {
      return cache_rows(to_cache({{"train", clips}}),
                        {.folder = place.dir / "cache", .num_threads = 3, .is_lasting = is_lasting})
          .value()[0];
    };
    CHECK(batches(open(), 0) == decoded);
    CHECK(batches(open(), 2) == decoded);
  }
}

TEST_CASE("A cache build that was stopped resumes, and changed clips are decoded again", "[apps][emotion][cache]") {
  const EmotionPlace place;
  const auto clips = clips_of(place, "train", small_clips());
  std::vector<std::string> lines;
  int64_t asked = 0, stop_after = 15;
  const auto fill = [&] {
    lines.clear();
    asked = 0;
    return cache_rows(to_cache({{"train", clips_of(place, "train", small_clips())}}),
                      {.folder = place.dir / "cache",
                       .num_threads = 2,
                       .say = [&](const std::string& line) { lines.push_back(line); },
                       .stop = [&] { return ++asked > stop_after; },
                       .is_lasting = is_lasting,
                       .noun = "clips"})
        .status();
  };
  CHECK(absl::IsCancelled(fill()));
  stop_after = 1000;
  REQUIRE(fill() == absl::OkStatus());
  CHECK_THAT(lines.back(), Catch::Contains(" cached before") && !Catch::Contains(" 42 clips decoded") &&
                               !Catch::Contains(" 0 cached before"));
  REQUIRE(fill() == absl::OkStatus());
  CHECK(lines == std::vector<std::string>{"cache      train: 42 clips cached, 0 cannot be read"});
  CHECK(asked == 0);
  // Another modification time, another size, one more file, other options.
  const std::string clip = clips->list().clips[7].path;
  fs::last_write_time(clip, fs::file_time_type::clock::now());
  REQUIRE(fill() == absl::OkStatus());
  CHECK_THAT(lines.back(), Catch::Contains("42 clips decoded"));
  fs::resize_file(clip, 900);
  REQUIRE(fill() == absl::OkStatus());
  CHECK_THAT(lines.back(), Catch::Contains("41 clips decoded") && Catch::Contains("1 cannot be read"));
  fs::remove(clip);
  REQUIRE(fill() == absl::OkStatus());
  CHECK_THAT(lines.back(), Catch::Contains("41 clips decoded") && Catch::Contains("1 cannot be read"));
  ClipDatasetOptions other = small_clips();
  other.frames = 3;
  CHECK(origin_of(*clips_of(place, "train", other)) != origin_of(*clips));
}

TEST_CASE("The list of bad clips is loaded again, and a damaged list or one of other clips is ignored",
          "[apps][emotion][cache]") {
  const EmotionPlace place;
  damage_clips(place);
  const auto clips = clips_of(place, "train", small_clips());
  trainkit::detail::RememberedRows first(clips, is_lasting);
  const auto cause = [&](const Dataset& rows, int64_t index) {
    const auto loader = Prefetcher::create(std::shared_ptr<const Dataset>(&rows, [](const Dataset*) {}),
                                           SequentialSampler(rows.size()), {.batch_size = 1})
                            .value();
    for (int64_t i = 0; i < index; ++i) REQUIRE(loader->next().ok());
    return error_line(loader->next().status());
  };
  const std::string said = cause(first, 0);
  CHECK_THAT(said, Catch::Contains("dia0_utt0.mp4"));
  CHECK(first.bad() == 1);
  const std::string json = first.to_json("one");
  trainkit::detail::RememberedRows second(clips, is_lasting);
  second.read_json(json, "two");
  CHECK(second.bad() == 0);
  for (size_t size = 0; size + 2 < json.size(); size += 3) second.read_json(json.substr(0, size), "one");
  for (const char* text : {"[]", "{}", "null", R"({"origin":7,"rows":{}})"}) second.read_json(text, "one");
  CHECK(second.bad() == 0);
  // A bad clip that exists again is not opened: the list is used.
  fs::copy(place.data + "/train_splits/dia0_utt1.mp4", place.data + "/train_splits/dia0_utt0.mp4");
  second.read_json(json, "one");
  CHECK(second.bad() == 1);
  CHECK(cause(second, 0) == said);
  CHECK(second.to_json("one") == json);
}

TEST_CASE("A run with --cache_dir has the weights, scores and bad clips of a run without it, and so has the next run",
          "[apps][emotion][cache]") {
  const EmotionPlace place;
  damage_clips(place);
  ::setenv("OMP_NUM_THREADS", "1", 1);  // the same number of threads, so the same order of summation, in all runs
  const std::vector<std::string> settings = {"--epochs", "2", "--num_workers", "2"};
  const auto result = [&](const std::string& name, const std::vector<std::string>& flags) {
    const Ended ended = run_emotion(place.dir, place.flags(name, flags));
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    CHECK_THAT(ended.output, Catch::Contains("unreadable clips: 1)"));
    const size_t cache = ended.output.find("cache  ");
    return std::make_pair(results(place, name, "00000004"),
                          cache == std::string::npos ? "" : ended.output.substr(cache));
  };
  const auto [decoded, none] = result("decoded", settings);
  CHECK(none.empty());
  const auto [built, first] = result("built", with_cache(place, settings));
  CHECK(built == decoded);
  CHECK_THAT(first, Catch::Contains(" for 63 clips in ") && Catch::Contains("train: 40 clips decoded in ") &&
                        Catch::Contains("2 cannot be read") && Catch::Contains("test: 13 clips decoded"));
  CHECK(first.find(" for 63 clips in ") < first.find("decoded in "));
  const auto [read, second] = result("read", with_cache(place, settings));
  CHECK(read == decoded);
  CHECK_THAT(second, Catch::Contains("train: 40 clips cached, 2 cannot be read"));

  // The disk changed a byte: its row is decoded again and the file repaired.
  const std::string file = rows_of(place, "train"), whole = read_text(file);
  {
    std::fstream damaged(file, std::ios::binary | std::ios::in | std::ios::out);
    damaged.seekp(static_cast<std::streamoff>(whole.size() / 2));
    damaged.put(static_cast<char>(whole[whole.size() / 2] ^ 1));
  }
  CHECK(result("damaged", with_cache(place, settings)).first == decoded);
  CHECK(read_text(file) == whole);
  // A truncated file is rebuilt.
  fs::resize_file(file, whole.size() - 5000);
  CHECK(result("cut", with_cache(place, settings)).first == decoded);
  CHECK(read_text(file) == whole);
}

TEST_CASE("Clips may be deleted once they are decoded: no epoch of the run reads them", "[apps][emotion][cache]") {
  const EmotionPlace place;
  const std::vector<std::string> flags =
      place.flags("run", with_cache(place, {"--epochs", "20", "--on_error", "fail"}), /*sound=*/true);
  Program program("trainkit-emotion", flags, place.dir.path().string());
  const auto start = std::chrono::steady_clock::now();
  while (program.output().find("test: 14 clips decoded") == std::string::npos) {
    REQUIRE(std::chrono::steady_clock::now() - start < std::chrono::seconds(60));
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  for (const char* split : {"train_splits", "dev_splits_complete", "output_repeated_splits_test"}) {
    fs::remove_all(place.data + "/" + split);
  }
  CHECK_FALSE(fs::exists(place.dir / "run" + "/summary.json"));
  const int code = program.wait();
  INFO(program.output() << program.errors());
  CHECK(code == 0);
  CHECK(scored_clips(place.dir / "run") == 14);
}

TEST_CASE("Concurrent runs share one cache, and a run that is killed leaves its decoded rows",
          "[apps][emotion][cache]") {
  const EmotionPlace place;
  const auto flags = [&](const std::string& name) {
    return place.flags(name, with_cache(place, {"--num_workers", "1", "--frames", "8", "--max_steps", "1"}));
  };
  for (int round = 0; round < 4; ++round) {
    Program killed("trainkit-emotion", flags("killed" + std::to_string(round)), place.dir.path().string(),
                   {.stem = "killed-"});
    wait_for_file(place.dir.path().string(), "rows");
    std::this_thread::sleep_for(std::chrono::milliseconds(20 * round));
    killed.kill(SIGKILL);
    killed.wait();
  }
  Program one("trainkit-emotion", flags("one"), place.dir.path().string(), {.stem = "one-"});
  Program two("trainkit-emotion", flags("two"), place.dir.path().string(), {.stem = "two-"});
  const int codes[] = {one.wait(), two.wait()};
  INFO(one.output() << one.errors() << two.output() << two.errors());
  CHECK(codes[0] == 0);
  CHECK(codes[1] == 0);
  // At least one of them found all training clips in the cache.
  const bool found = one.output().find("train: 42 clips cached") != std::string::npos ||
                     two.output().find("train: 42 clips cached") != std::string::npos;
  CHECK(found);
  REQUIRE(run_emotion(place.dir, place.flags("decoded", {"--num_workers", "1", "--frames", "8", "--max_steps", "1"}))
              .code == 0);
  for (const char* name : {"one", "two"})
    CHECK(results(place, name, "00000001") == results(place, "decoded", "00000001"));
}
