#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "emotion_recognition/clips.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::emotion;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

const std::string kHeader = "Sr No.,Utterance,Emotion,Dialogue_ID,Utterance_ID\n";

void write(const fs::path& path, const std::string& text) {
  fs::create_directories(path.parent_path());
  std::ofstream(path, std::ios::binary) << text;
}

/// Creates a folder with one clip, dia0_utt0.mp4, and a csv file with `rows`, and reads it.
absl::StatusOr<ClipList> read(const TempDir& dir, const std::string& rows, const ClipColumns& columns = {},
                              const std::vector<std::string>& labels = meld_emotions()) {
  write(dir / "clips/dia0_utt0.mp4", "x");
  write(dir / "train.csv", kHeader + rows);
  return read_clips({dir / "train.csv", dir / "clips"}, columns, labels);
}

std::string problem_of(const std::string& rows, const ClipColumns& columns = {}) {
  const TempDir dir;
  const auto list = read(dir, rows, columns);
  REQUIRE_FALSE(list.ok());
  CHECK(exit_code(list.status()) == ExitCode::kData);
  const std::string line = error_line(list.status());
  return line.substr(std::min(line.find("train.csv"), line.size()));
}

}  // namespace

TEST_CASE("A split has the rows of its csv file in order, and clips without a file are counted", "[apps][emotion]") {
  const TempDir dir;
  const ClipList list = read(dir, "1,\"a, b\",joy,0,0\n2,c,anger,0,1\n3,d,joy,12,3\n").value();
  REQUIRE(list.size() == 3);
  CHECK(list.clips[0].path == dir / "clips/dia0_utt0.mp4");
  CHECK(list.clips[2].path == dir / "clips/dia12_utt3.mp4");
  CHECK(list.labels[static_cast<size_t>(list.clips[1].label)] == "anger");
  CHECK(list.clips[2].line == 4);
  CHECK(list.missing == 2);
  CHECK(list.counts() == std::vector<int64_t>{0, 0, 0, 0, 2, 0, 1});
  CHECK(missing_classes(list).find("neutral, surprise, fear, sadness, disgust") != std::string::npos);
}

TEST_CASE("A table of clips may be JSON lines", "[apps][emotion]") {
  const TempDir dir;
  write(dir / "clips/a.mp4", "x");
  write(dir / "train.jsonl", "{\"file\": \"a.mp4\", \"mood\": \"joy\"}\n{\"file\": \"b.mp4\", \"mood\": \"calm\"}\n");
  const ClipList list = read_clips({dir / "train.jsonl", dir / "clips"}, {.label = "mood", .path = "file"}, {}).value();
  REQUIRE(list.size() == 2);
  CHECK(list.labels == std::vector<std::string>{"calm", "joy"});
  CHECK(list.clips[0].path == dir / "clips/a.mp4");
  CHECK((list.missing == 1 && list.clips[1].is_absent && list.clips[1].line == 2));
}

TEST_CASE("Absent clips up to a share are listed, more are an error", "[apps][emotion]") {
  const TempDir dir;
  const ClipList list = read(dir, "1,a,joy,0,0\n2,c,anger,0,1\n").value();
  CHECK(check_absent(list, 0.5).ok());
  const auto absent = list.absent();
  REQUIRE(absent.size() == 1);
  CHECK(absent[0].index == 1);
  CHECK(absent[0].name == dir / "clips/dia0_utt1.mp4");
  const absl::Status status = check_absent(list, 0.4);
  CHECK(exit_code(status) == ExitCode::kData);
  CHECK_THAT(error_line(status), Catch::Contains("train.csv: 1 of 2 clips have no file") &&
                                     Catch::Contains("got '50.0%', expected at most 40%"));
}

TEST_CASE("The column of the groups is found in any case, and must have values", "[apps][emotion]") {
  const TempDir dir;
  const ClipColumns columns{.group = "utterance"};
  const ClipList list = read(dir, "1,a,joy,0,0\n2,\"c, d\",anger,0,1\n", columns).value();
  CHECK(list.clips[0].group == "a");
  CHECK(list.clips[1].group == "c, d");
  CHECK(problem_of("1,,joy,0,0\n", columns).starts_with("train.csv:2: Utterance: empty"));
}

TEST_CASE("A wrong row is reported with file, line and column", "[apps][emotion]") {
  CHECK(problem_of("1,a,joy,0,0\n2,a,hapiness,0,1\n")
            .starts_with("train.csv:3: Emotion: unknown label (got 'hapiness', expected one of 7)"));
  CHECK(problem_of("1,a,Joy,0,0\n").find("unknown label (got 'Joy'") != std::string::npos);
  CHECK(problem_of("1,a,,0,0\n").starts_with("train.csv:2: Emotion: empty"));
  CHECK(problem_of("1,a,joy,x,0\n").starts_with("train.csv:2: Dialogue_ID: not a whole number (got 'x'"));
  CHECK(problem_of("1,a,joy,0,-1\n").starts_with("train.csv:2: Utterance_ID: negative (got '-1'"));
  CHECK(problem_of("1,a,joy,99999999999999999999,0\n").starts_with("train.csv:2: Dialogue_ID: out of range"));
  CHECK(problem_of("1,a,joy,0,0\n2,a,joy,0,0\n")
            .starts_with("train.csv:3: Utterance_ID: dia0_utt0.mp4: duplicate of line 2"));
  CHECK(problem_of("1,a,joy,0\n").starts_with("train.csv:2: 4 fields (got"));
  CHECK(problem_of("1,a,joy,0,0\n", {.label = "emotion"}).starts_with("train.csv: emotion: no such column"));
  for (const char* path : {"../x.mp4", "/etc/passwd", "a/../../x.mp4", ""}) {
    INFO(path);
    CHECK(problem_of(std::string("1,") + path + ",joy,0,0\n", {.path = "Utterance"})
              .starts_with("train.csv:2: Utterance: "));
  }
}

TEST_CASE("A clip must not be a link out of its folder", "[apps][emotion]") {
  const TempDir dir;
  write(dir / "outside.mp4", "x");
  fs::create_directories(dir / "clips");
  fs::create_symlink(dir / "outside.mp4", dir / "clips/dia0_utt1.mp4");
  const auto list = read(dir, "1,a,joy,0,0\n2,a,joy,0,1\n");
  REQUIRE_FALSE(list.ok());
  CHECK(error_line(list.status()).find("train.csv:3") != std::string::npos);
  // The folder itself may be a link.
  fs::remove(dir / "clips/dia0_utt1.mp4");
  fs::create_directory_symlink(dir / "clips", dir / "link");
  CHECK(read_clips({dir / "train.csv", dir / "link"}, {}, meld_emotions()).value().missing == 1);
}

TEST_CASE("A list without any existing clip is an error that names one", "[apps][emotion]") {
  const TempDir dir;
  const auto list = read(dir, "1,a,joy,7,7\n");
  CHECK(exit_code(list.status()) == ExitCode::kData);
  CHECK(error_line(list.status()).find("dia7_utt7.mp4") != std::string::npos);
}

TEST_CASE("Other csv files have their own paths and labels", "[apps][emotion]") {
  const TempDir dir;
  write(dir / "clips/b/one.mp4", "x");
  write(dir / "list.csv", "file;mood\nb/./one.mp4;glad\nb/two.mp4;calm\n");
  const ClipList list =
      read_clips({dir / "list.csv", dir / "clips"}, {.label = "mood", .path = "file", .delimiter = ';'}, {}).value();
  CHECK(list.labels == std::vector<std::string>{"calm", "glad"});
  CHECK(list.clips[0].path == dir / "clips/b/one.mp4");
  CHECK(list.missing == 1);
}

TEST_CASE("A clip in two splits is reported by name", "[apps][emotion]") {
  const TempDir dir;
  const ClipList train = read(dir, "1,a,joy,0,0\n2,a,joy,0,1\n").value();
  ClipList test = train;
  CHECK(error_of(check_disjoint(train, test))->id == "data.split");
  test.clips[0].path = dir / "other.mp4";
  test.clips[1].path = dir / "another.mp4";
  CHECK(check_disjoint(train, test).ok());
}

TEST_CASE("Splits are found under their names in MELD's archives", "[apps][emotion]") {
  for (const std::string folder : {"train_splits", "train/train_splits", "train", "output_repeated_splits_train"}) {
    for (const std::string csv : {"train_sent_emo.csv", "train/train_sent_emo.csv"}) {
      const TempDir dir;
      write(dir / csv, kHeader);
      write(fs::path(dir / folder) / "dia0_utt0.mp4", "x");
      INFO(folder << " " << csv);
      const SplitFiles files = find_split(dir.path().string(), "train").value();
      CHECK(files.csv == dir / csv);
      CHECK(files.folder == dir / folder);
    }
  }
  const TempDir empty;
  CHECK(exit_code(find_split(empty.path().string(), "dev").status()) == ExitCode::kData);
  write(empty / "dev_sent_emo.csv", kHeader);
  CHECK(error_line(find_split(empty.path().string(), "dev").status()).find("dev_splits_complete") != std::string::npos);
  CHECK(exit_code(find_split(empty / "none", "dev").status()) == ExitCode::kData);
}

TEST_CASE("Selected clips keep their labels, groups and the number of absent files", "[apps][emotion]") {
  const ClipList list{.csv = "clips.csv",
                      .folder = ".",
                      .labels = {"a"},
                      .clips = {{.path = "0", .is_absent = true, .group = "x"},
                                {.path = "1", .group = "y"},
                                {.path = "2", .is_absent = true}},
                      .missing = 2};
  const ClipList some = select(list, {2, 1});
  CHECK((some.clips[0].path == "2" && some.clips[1].group == "y" && some.missing == 1 && some.csv == "clips.csv"));
}
