// --cache_dir of trainkit-emotion on a disk that is too small. Needs permission to mount; skipped otherwise.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "apps/emotion/emotion_place.h"
#include "faults/tmpfs.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

TEST_CASE("A disk too small for the decoded clips ends the run before decoding, and the error gives the missing bytes",
          "[apps][emotion][cache]") {
  const Tmpfs disk("size=4m");
  if (!disk.mounted()) TRAINKIT_SKIP("this user cannot mount a tmpfs");
  const EmotionPlace place;
  const auto with_cache = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--cache_dir", disk / "cache"});
    return run_emotion(place.dir, place.flags(name, more, /*sound=*/true));
  };
  // 63 clips of half a second take 2 MB.
  const std::vector<std::string> small = {"--audio_seconds", "0.5"};
  REQUIRE(with_cache("small", small).code == 0);
  const Ended large = with_cache("large", {});
  INFO(large.output << large.errors);
  CHECK(large.code == 6);
  CHECK_THAT(large.output, Catch::Contains("cache      3.87 MiB for 63 clips in "));
  CHECK_THAT(large.errors, Catch::Contains("error[storage.cache] ") && Catch::Contains("not enough space for ") &&
                               Catch::Contains("of decoded clips") && Catch::Contains(" free'") &&
                               Catch::Contains(" more)"));
  // What was there is there.
  const Ended again = with_cache("again", small);
  CHECK(again.code == 0);
  CHECK_THAT(again.output, Catch::Contains("train: 42 clips cached"));

  // Changed clips need space in addition to the file that they replace; another file fills the disk.
  std::ofstream(disk / "other") << std::string(1 << 20, 'x');
  for (const auto& entry : fs::directory_iterator(place.data + "/train_splits")) {
    fs::last_write_time(entry, fs::file_time_type::clock::now());
  }
  const Ended full = with_cache("full", small);
  INFO(full.output << full.errors);
  CHECK(full.code == 6);
  CHECK_THAT(full.errors, Catch::Contains("not enough space for a cache of 1,3") && Catch::Contains(" more)"));
  CHECK_THAT(full.output, !Catch::Contains("decoded in"));
  CHECK(fs::remove(disk / "other"));
  const Ended retried = with_cache("retried", small);
  CHECK(retried.code == 0);
  CHECK_THAT(retried.output, Catch::Contains("train: 42 clips decoded") && Catch::Contains("test: 14 clips cached"));
}
