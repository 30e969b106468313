#include <algorithm>
#include <fstream>
#include <map>
#include <sstream>

#include "logging/tf_event.h"
#include "read_text.h"
#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

namespace {

std::vector<std::filesystem::path> files_of(const std::string& folder) {
  std::vector<std::filesystem::path> files;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) files.push_back(entry.path());
  std::sort(files.begin(), files.end());
  return files;
}

/// Steps of the complete events of all files, without file version events (step 0).
std::vector<int64_t> logged_steps(const std::string& folder) {
  std::vector<int64_t> steps;
  for (const auto& file : files_of(folder)) {
    const std::string bytes = test::read_text(file);
    size_t offset = 0;
    while (const auto event = trainkit::detail::next_record(bytes, offset)) {
      if (const int64_t step = trainkit::detail::event_step(*event).value(); step > 0) steps.push_back(step);
    }
  }
  return steps;
}

void log_steps(TensorBoardLogger& logger, int64_t first, int64_t last) {
  for (int64_t step = first; step <= last; ++step) logger.log({.step = step, .values = {{"loss", 1.0 / step}}});
}

}  // namespace

TEST_CASE("CRC-32C gives the results of RFC 3720's examples", "[logging][tensorboard]") {
  CHECK(trainkit::detail::crc32c(std::string(32, '\0')) == 0x8a9136aau);
  CHECK(trainkit::detail::crc32c(std::string(32, '\xff')) == 0x62a8ab43u);
  CHECK(trainkit::detail::crc32c("123456789") == 0xe3069283u);
}

TEST_CASE("A record is read back, but not with a changed bit or a missing end", "[logging][tensorboard]") {
  const std::string record = trainkit::detail::frame_record("some event");
  size_t offset = 0;
  CHECK(trainkit::detail::next_record(record, offset) == "some event");
  CHECK(offset == record.size());
  for (size_t size = 0; size < record.size(); ++size) {
    offset = 0;
    REQUIRE_FALSE(trainkit::detail::next_record(record.substr(0, size), offset));
  }
  for (size_t bit = 0; bit < record.size() * 8; ++bit) {
    std::string changed = record;
    changed[bit / 8] = static_cast<char>(changed[bit / 8] ^ (1 << bit % 8));
    offset = 0;
    REQUIRE_FALSE(trainkit::detail::next_record(changed, offset));
    REQUIRE(offset == 0);
  }
}

TEST_CASE("The step of an event is found after any other fields, and malformed events have none",
          "[logging][tensorboard]") {
  trainkit::detail::EventBuilder event(1.5, 123456789012);
  event.scalar("loss", 1);
  event.text("text", "x");
  CHECK(trainkit::detail::event_step(event.finish()) == 123456789012);
  CHECK(trainkit::detail::event_step("") == 0);
  CHECK_FALSE(trainkit::detail::event_step("\x10\xff"));                // a varint without an end
  CHECK_FALSE(trainkit::detail::event_step("\x2a\x7f"));                // a string longer than the event
  CHECK_FALSE(trainkit::detail::event_step(std::string("\x09\0", 2)));  // a truncated double
  CHECK_FALSE(trainkit::detail::event_step("\x0b"));                    // an unknown wire type
}

TEST_CASE("The file is created with the first record, and its name sorts last", "[logging][tensorboard]") {
  test::TempDir dir;
  std::ofstream(dir / "events.out.tfevents.4000000000.other.1") << "";  // the clock was once wrong
  {
    auto logger = TensorBoardLogger::open(dir.path()).value();
    CHECK(files_of(dir.path()).size() == 1);
    log_steps(*logger, 1, 1);
  }
  log_steps(*TensorBoardLogger::open(dir.path()).value(), 2, 2);
  const auto files = files_of(dir.path());
  REQUIRE(files.size() == 3);
  CHECK(files[1].filename().string().starts_with("events.out.tfevents.4000000001."));
  CHECK(files[2].filename().string().starts_with("events.out.tfevents.4000000002."));
  CHECK(files[2].extension() == ".trainkit");
  CHECK(logged_steps(dir.path()) == std::vector<int64_t>{1, 2});
}

TEST_CASE("After a rewind every step occurs once, wherever the last file was cut", "[logging][tensorboard]") {
  test::TempDir first;
  log_steps(*TensorBoardLogger::open(first.path()).value(), 1, 4);
  const std::string whole = test::read_text(files_of(first.path()).at(0));
  for (size_t size = 0; size <= whole.size(); ++size) {
    test::TempDir dir;
    std::ofstream(dir / "events.out.tfevents.1000000000.h.1.trainkit") << whole.substr(0, size);
    const std::vector<int64_t> before = logged_steps(dir.path());
    auto logger = TensorBoardLogger::open(dir.path()).value();
    REQUIRE(logger->rewind(2).ok());
    const size_t kept = std::min<size_t>(before.size(), 2);
    REQUIRE(logged_steps(dir.path()) == std::vector<int64_t>(before.begin(), before.begin() + kept));
    REQUIRE(files_of(dir.path()).empty() == (kept == 0));
    log_steps(*logger, 3, 3);
    REQUIRE(logger->flush().ok());
    std::vector<int64_t> after(before.begin(), before.begin() + kept);
    after.insert(after.end(), {3, 3});  // the restart mark and the record
    REQUIRE(logged_steps(dir.path()) == after);
  }
}

TEST_CASE("A rewind reads the end of a long event file only", "[logging][tensorboard]") {
  test::TempDir dir;
  log_steps(*TensorBoardLogger::open(dir.path()).value(), 1, 100'000);
  const std::string path = files_of(dir.path()).at(0);
  const auto size = std::filesystem::file_size(path);
  REQUIRE(size > (6 << 20));
  std::fstream file(path, std::ios::in | std::ios::out);
  file.seekp(200);
  file << "damaged, which a reader from the start would notice";
  file.close();
  REQUIRE(TensorBoardLogger::open(dir.path()).value()->rewind(99'999).ok());
  CHECK(std::filesystem::file_size(path) < size);
  CHECK(std::filesystem::file_size(path) > size - 1000);
  REQUIRE(TensorBoardLogger::open(dir.path()).value()->rewind(2).ok());  // far from the end
  CHECK(std::filesystem::file_size(path) < 200);
}

TEST_CASE("A rewind to the last step removes the test's scalars and table, whichever of them a kill left",
          "[logging][tensorboard]") {
  const auto log_test_of = [](Logger& logger) {
    logger.log({.step = 4, .split = "test", .values = {{"accuracy", 0.5}}});
    logger.log_text({.step = 4, .tag = "test", .text = "| class | accuracy |"});
  };
  for (const int texts : {0, 1}) {  // a kill before or after the table was written
    test::TempDir dir;
    {
      auto logger = TensorBoardLogger::open(dir.path()).value();
      logger->log({.step = 4, .split = "val", .values = {{"loss", 1}}});
      logger->log_text({.step = 4, .tag = "testimony", .text = "of another tag"});
      logger->log({.step = 4, .split = "test", .values = {{"accuracy", 0.5}}});
      if (texts > 0) logger->log_text({.step = 4, .tag = "test", .text = "| class | accuracy |"});
      REQUIRE(logger->flush().ok());
    }
    auto logger = TensorBoardLogger::open(dir.path()).value();
    REQUIRE(logger->rewind(4).ok());
    log_test_of(*logger);
    REQUIRE(logger->flush().ok());
    CHECK(logged_steps(dir.path()) == std::vector<int64_t>{4, 4, 5, 4, 4});  // 5 is the restart mark
  }
}

TEST_CASE("A rewind to the step that a run resumed from keeps its evaluation", "[logging][tensorboard]") {
  test::TempDir dir;
  {
    auto logger = TensorBoardLogger::open(dir.path()).value();
    log_steps(*logger, 1, 4);  // and a signal before the evaluation of the last step
    REQUIRE(logger->flush().ok());
  }
  for (int restart = 0; restart < 3; ++restart) {
    auto logger = TensorBoardLogger::open(dir.path()).value();
    REQUIRE(logger->rewind(4).ok());
    if (restart == 0) logger->log({.step = 4, .split = "val", .values = {{"loss", 1}}});
    logger->log({.step = 4, .split = "test", .values = {{"accuracy", 0.5}}});
    REQUIRE(logger->flush().ok());
    // 5 is the restart mark: one before the evaluation, and one before the test if that is in another file
    const std::vector<int64_t> steps =
        restart == 0 ? std::vector<int64_t>{1, 2, 3, 4, 5, 4, 4} : std::vector<int64_t>{1, 2, 3, 4, 5, 4, 5, 4};
    CHECK(logged_steps(dir.path()) == steps);
  }
}

TEST_CASE("A rewind in the middle of a run truncates its own file and continues in a new one",
          "[logging][tensorboard]") {
  test::TempDir dir;
  auto logger = TensorBoardLogger::open(dir.path()).value();
  log_steps(*logger, 1, 5);
  CHECK(logger->rewind(2).ok());
  log_steps(*logger, 3, 4);
  CHECK(logger->rewind(3).ok());
  log_steps(*logger, 4, 4);
  CHECK(logged_steps(dir.path()) ==
        std::vector<int64_t>{1, 2, 3, 3, 4, 4});  // each of the later files begins with a mark
  CHECK(files_of(dir.path()).size() == 3);
}

TEST_CASE("A run changes its own event files alone, in a folder that other runs use", "[logging][tensorboard]") {
  test::TempDir dir;
  const std::string first(16, 'a'), second(16, 'b');
  const auto open = [&](const std::string& run) { return TensorBoardLogger::open(dir.path(), {}, run).value(); };
  for (const std::string& run : {std::string(), first, second}) log_steps(*open(run), 1, 4);
  const auto others = [&](const std::string& run) {
    std::string contents;
    for (const auto& file : files_of(dir.path())) {
      if (file.string().find("run-" + run) == std::string::npos) contents += file.string() + test::read_text(file);
    }
    return contents;
  };
  const std::string before = others(first);
  CHECK(open(first)->rewind(2).ok());
  CHECK(files_of(dir.path()).size() == 3);
  CHECK(logged_steps(dir.path()).size() == 10);
  CHECK(open(first)->rewind(-1).ok());
  CHECK(files_of(dir.path()).size() == 2);
  CHECK(others(first) == before);
  CHECK(open(std::string(16, 'c'))->rewind(-1).ok());  // a new run
  CHECK(others(first) == before);
  CHECK(open("")->rewind(-1).ok());
  REQUIRE(files_of(dir.path()).size() == 1);
  CHECK_THAT(files_of(dir.path())[0].string(), Catch::EndsWith(".run-" + second + ".trainkit"));
}

TEST_CASE("Files of other programs are left unchanged", "[logging][tensorboard]") {
  test::TempDir dir;
  std::ofstream(dir / "events.out.tfevents.1000000000.host.7.0") << "torn";
  std::ofstream(dir / "notes.trainkit") << "mine";
  CHECK(TensorBoardLogger::open(dir.path()).value()->rewind(-1).ok());
  CHECK(files_of(dir.path()).size() == 2);
}

TEST_CASE("A folder that cannot be created or written is exit code 6", "[logging][tensorboard]") {
  test::TempDir dir;
  std::ofstream(dir / "file") << "";
  CHECK(exit_code(TensorBoardLogger::open(dir / "file").status()) == ExitCode::kStorage);
  CHECK(exit_code(TensorBoardLogger::open(dir / "file/folder").status()) == ExitCode::kStorage);
}

TEST_CASE("A folder that disappears is an error of flush, not of log", "[logging][tensorboard]") {
  test::TempDir dir;
  auto logger = TensorBoardLogger::open(dir / "tensorboard").value();
  std::filesystem::remove(dir / "tensorboard");
  log_steps(*logger, 1, 1);
  CHECK(exit_code(logger->flush()) == ExitCode::kStorage);
}
