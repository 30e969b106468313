// TensorBoard's own reader on our files.
#include <ATen/ATen.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;
using nlohmann::json;

extern char** environ;

namespace {

/// The output of Python's EventAccumulator; null without Python or tensorboard.
json accumulate(const std::string& folder) {
  if (!test::python_has("tensorboard")) return nullptr;
  test::TempDir dir;
  const std::string command = test::python() + " " TRAINKIT_REFERENCE_DIR "/tensorboard_events.py " +
                              (dir / "out.json") + " " + folder + " 2> " + (dir / "err");
  INFO(command);
  if (std::system(command.c_str()) != 0) {
    std::system(("cat " + (dir / "err")).c_str());
    FAIL("the reference failed");
  }
  return json::parse(std::ifstream(dir / "out.json")).at(folder);
}

}  // namespace

TEST_CASE("EventAccumulator reads the logged tags, steps, values and texts", "[logging][tensorboard]") {
  test::TempDir dir;
  {
    auto logger = TensorBoardLogger::open(dir.path()).value();
    logger->log({.step = 10,
                 .epoch = 0.5,
                 .values = {{"loss", 2.25}, {"a\nb", 1}, {"queue_depth", 3}},
                 .lr = {1e-3, 1e-3, 5e-4},
                 .gpu_memory_bytes = {1 << 30}});
    logger->log({.step = 10, .epoch = 0.5, .split = "val", .values = {{"loss", 2.5}}, .lr = {1e-3}});
    logger->log_text({.step = 10, .tag = "sample", .text = "To be, or not\n| a | b |\x1b"});
    logger->log({.step = 5'000'000'000, .epoch = 1, .values = {{"loss", std::numeric_limits<double>::quiet_NaN()}}});
    REQUIRE(logger->flush().ok());
  }
  const json found = accumulate(dir.path());
  if (found.is_null()) TRAINKIT_SKIP("no Python with tensorboard");
  const json& scalars = found.at("scalars");
  CHECK(scalars.at("train/loss")[0] == json({10, 2.25}));
  CHECK(scalars.at("train/loss")[1][0] == 5'000'000'000);
  CHECK(scalars.at("train/loss")[1][1] == "nan");
  CHECK(scalars.at("train/a\\x0ab") == json({{10, 1.0}}));
  // A learning rate that several parameter groups have is one series.
  CHECK(scalars.at("train/lr") == json({{10, double{1e-3f}}}));
  CHECK_FALSE(scalars.contains("train/lr/1"));
  CHECK(scalars.at("train/lr/2") == json({{10, double{5e-4f}}}));
  CHECK(scalars.at("machine/queue_depth") == json({{10, 3.0}}));
  CHECK(scalars.at("machine/gpu_memory_bytes/0") == json({{10, 1073741824.0}}));
  CHECK(scalars.at("train/epoch")[0] == json({10, 0.5}));
  CHECK(scalars.at("val/loss") == json({{10, 2.5}}));
  CHECK(scalars.at("val/lr") == json({{10, double{1e-3f}}}));
  CHECK(found.at("texts").at("sample") == json({{10, "To be, or not\n| a | b |\\x1b"}}));
}

TEST_CASE("EventAccumulator reads every complete event of a file that was cut anywhere", "[logging][tensorboard]") {
  test::TempDir whole;
  {
    auto logger = TensorBoardLogger::open(whole.path()).value();
    for (int step = 1; step <= 3; ++step) logger->log({.step = step, .values = {{"loss", 1.0 / step}}});
  }
  const auto file = std::filesystem::directory_iterator(whole.path())->path();
  const auto size = std::filesystem::file_size(file);
  const auto event_size = (size - std::min<uintmax_t>(size, 40)) / 3;  // the event with the file version has 40 bytes
  REQUIRE(40 + 3 * event_size == size);
  test::TempDir cut;
  for (uintmax_t bytes : {size, size - 1, size - event_size / 2, size - event_size + 1, size - event_size}) {
    std::filesystem::copy_file(file, cut.path() / "events.out.tfevents.1.cut",
                               std::filesystem::copy_options::overwrite_existing);
    std::filesystem::resize_file(cut.path() / "events.out.tfevents.1.cut", bytes);
    const json found = accumulate(cut.path());
    if (found.is_null()) TRAINKIT_SKIP("no Python with tensorboard");
    CHECK(found.at("scalars").at("train/loss").size() == (bytes == size ? 3 : 2));
  }
}

TEST_CASE("TensorBoard reads the hyperparameters of a run, its end, and charts of loss, scores and throughput",
          "[logging][tensorboard]") {
  test::TempDir dir;
  const std::map<std::string, std::string> settings = {
      {"lr", "0.001"}, {"augment", "true"}, {"model", "cnn2d"}, {"gpu_ids", "[0, 1]"}, {"eval_every", "null"}};
  {
    auto logger = TensorBoardLogger::open(dir.path(), settings).value();
    for (int step = 1; step <= 3; ++step) logger->log({.step = step, .values = {{"loss", 1.0}}});
    REQUIRE(logger->flush().ok());
  }
  json found = accumulate(dir.path());
  if (found.is_null()) TRAINKIT_SKIP("no Python with tensorboard");
  const json expected = {{"lr", 0.001}, {"augment", true}, {"model", "cnn2d"}, {"gpu_ids", "[0, 1]"}};
  CHECK(found.at("hparams") == expected);
  CHECK(found.at("finished") == false);  // as a run that was killed
  CHECK(found.at("texts").empty());
  CHECK(found.at("charts").at("loss") == "[^/]+/loss$");
  CHECK(found.at("charts").size() == 3);

  // A resumed run keeps each step once and ends. TensorBoard shows the settings of the first start.
  {
    auto logger = TensorBoardLogger::open(dir.path(), {{"lr", "0.01"}}).value();
    REQUIRE(logger->rewind(2).ok());
    logger->log({.step = 3, .values = {{"loss", 0.5}}});
    REQUIRE(logger->close().ok());
  }
  found = accumulate(dir.path());
  CHECK(found.at("hparams") == expected);
  CHECK(found.at("finished") == true);
  CHECK(found.at("scalars").at("train/loss") == json({{1, 1.0}, {2, 1.0}, {3, 0.5}}));

  // Resumed from its last step, a finished run is not finished any more until it ends again.
  {
    auto logger = TensorBoardLogger::open(dir.path(), settings).value();
    REQUIRE(logger->rewind(3).ok());
  }
  CHECK(accumulate(dir.path()).at("finished") == false);
}

// 100 times with TRAINKIT_TEST_FULL (./dev test --full).
TEST_CASE("A run killed at random times and resumed has every step once, also for stock TensorBoard",
          "[logging][tensorboard]") {
  test::TempDir dir;
  const int kills = test::is_full() ? 100 : 15;
  std::string program = LOG_UNTIL_KILLED, folder = dir.path(), steps = "1000000";
  char* arguments[] = {program.data(), folder.data(), steps.data(), nullptr};
  std::mt19937 random(7);
  const auto start = [&] {  // returns when the child is about to rewind
    int ends[2];
    REQUIRE(pipe2(ends, O_CLOEXEC) == 0);
    posix_spawn_file_actions_t actions;
    posix_spawn_file_actions_init(&actions);
    posix_spawn_file_actions_adddup2(&actions, ends[1], 1);
    pid_t child = 0;
    REQUIRE(posix_spawn(&child, program.c_str(), &actions, nullptr, arguments, environ) == 0);
    posix_spawn_file_actions_destroy(&actions);
    close(ends[1]);
    char byte = 0;
    REQUIRE(read(ends[0], &byte, 1) == 1);
    close(ends[0]);
    return child;
  };
  int killed = 0;
  for (int i = 0; i < kills; ++i) {
    const pid_t child = start();
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60'000));
    kill(child, SIGKILL);
    int status = 0;
    waitpid(child, &status, 0);
    killed += WIFSIGNALED(status);
  }
  CHECK(killed == kills);
  int64_t saved = 0;
  std::ifstream(dir / "saved") >> saved;
  REQUIRE(saved > 0);
  steps = std::to_string(saved + 30);  // the last run passes the checkpoint and ends normally
  arguments[2] = steps.data();
  int status = 0;
  waitpid(start(), &status, 0);
  REQUIRE(status == 0);
  const int64_t last = saved + 30;

  int64_t train = 0, val = 0;
  const std::vector<LogRecord> records = read_jsonl(dir / "metrics.jsonl").value();
  for (const LogRecord& record : records) {
    if (record.split == "train") REQUIRE(record.step == ++train);
    if (record.split == "val") REQUIRE(record.step == (val += 20));
    REQUIRE(record.values[0].second == (record.split == "train" ? 1.0 : 2.0) / record.step);
  }
  CHECK(train == last);
  CHECK(val == last / 20 * 20);

  const json found = accumulate(dir / "tensorboard");
  if (found.is_null()) TRAINKIT_SKIP("no Python with tensorboard");
  const json& losses = found.at("scalars").at("train/loss");
  REQUIRE(losses.size() == static_cast<size_t>(last));
  for (int64_t step = 1; step <= last; ++step)
    REQUIRE(losses[step - 1] == json({step, double{static_cast<float>(1.0 / step)}}));
  CHECK(found.at("scalars").at("val/loss").size() == static_cast<size_t>(last / 20));
}

TEST_CASE("EventAccumulator reads logged pictures and histograms, and none after a rewind", "[logging][tensorboard]") {
  if (!test::python_has("tensorboard")) TRAINKIT_SKIP("no Python with tensorboard");
  test::TempDir dir;
  auto logger = TensorBoardLogger::open(dir.path()).value();
  std::vector<std::string> bytes;
  for (const int64_t step : {10, 20, 30}) {
    const at::Tensor picture = at::full({3, 4, 6}, step, at::kByte);
    logger->image("val/picture", step, picture);
    std::string hex;
    const std::string png = encode_png(picture.permute({1, 2, 0}).contiguous()).value();
    for (const char byte : png) {
      hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
    }
    bytes.push_back(hex);
    logger->histogram("weights", step, at::arange(2 * step, at::kDouble));
  }
  REQUIRE(logger->rewind(20).ok());
  logger->histogram("constant", 30, at::ones({7}));
  REQUIRE(logger->close().ok());
  const json found = accumulate(dir.path());
  CHECK(found.at("images").at("val/picture") == json({{10, 4, 6, bytes[0]}, {20, 4, 6, bytes[1]}}));
  const json& weights = found.at("histograms").at("weights");
  REQUIRE(weights.size() == 2);
  const json& second = weights[1];
  CHECK(second[0] == 20);
  CHECK(second[1] == 0.0);
  CHECK(second[2] == 39.0);
  CHECK(second[3] == 40.0);
  CHECK(second[4] == 39.0 * 20);
  CHECK(second[5] == 39.0 * 40 * 79 / 6);
  CHECK(second[6].size() == 64);
  CHECK(second[6].back() == 39.0);
  double all = 0;
  for (const json& count : second[7]) all += count.get<double>();
  CHECK(all == 40);
  CHECK(found.at("histograms").at("constant")[0][7] == json({7.0}));
}
