#include <fcntl.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <fstream>
#include <limits>
#include <sstream>

#include "read_text.h"
#include "test_util.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

namespace {

constexpr double kNan = std::numeric_limits<double>::quiet_NaN();
constexpr double kInf = std::numeric_limits<double>::infinity();

void write(const std::string& path, const std::string& bytes) { std::ofstream(path) << bytes; }

std::string rewound(const std::string& path, int64_t step) {
  auto logger = JsonlLogger::open(path).value();
  REQUIRE(logger->rewind(step).ok());
  return test::read_text(path);
}

}  // namespace

TEST_CASE("A record is one JSON object with the documented fields in order", "[logging][jsonl]") {
  CHECK(to_json({.step = 20,
                 .epoch = 0.25,
                 .values = {{"loss", 2.3125}, {"grad_norm", 0.1}, {"samples_per_second", 812}},
                 .lr = {1e-3, 5e-4},
                 .gpu_memory_bytes = {1073741824, 0},
                 .gpu_utilisation = {0.5, -1}}) ==
        R"({"step":20,"epoch":0.25,"split":"train","loss":2.3125,"grad_norm":0.1,"samples_per_second":812,)"
        R"("lr":[0.001,5e-04],"gpu_memory_bytes":[1073741824,0],"gpu_utilisation":[0.5,-1]})");
  CHECK(to_json({.step = 20, .epoch = 1, .split = "val"}) == R"({"step":20,"epoch":1,"split":"val"})");
}

TEST_CASE("NaN and infinity are strings, because JSON has no literal for them", "[logging][jsonl]") {
  CHECK(to_json({.values = {{"a", kNan}, {"b", kInf}, {"c", -kInf}}, .lr = {kNan}}) ==
        R"({"step":0,"epoch":0,"split":"train","a":"NaN","b":"Infinity","c":"-Infinity","lr":["NaN"]})");
}

TEST_CASE("Control bytes, quotes and invalid UTF-8 in a name are escaped", "[logging][jsonl]") {
  CHECK(to_json({.split = "a\nb", .values = {{"x\x1b\"\xff", 1}}}) ==
        R"({"step":0,"epoch":0,"split":"a\\x0ab","x\\x1b\"\\xff":1})");
}

TEST_CASE("A value cannot take the name of a fixed field or of another value", "[logging][jsonl]") {
  CHECK(to_json({.step = 3, .values = {{"step", 9}, {"lr", 8}, {"loss", 1}, {"loss", 2}}}) ==
        R"({"step":3,"epoch":0,"split":"train","step_":9,"lr_":8,"loss":1})");
  CHECK(to_json({.step = 3, .values = {{"step", 9}, {"step_", 8}, {"a\x7f", 1}, {"a\\x7f", 2}}}) ==
        R"({"step":3,"epoch":0,"split":"train","step_":9,"a\\x7f":1})");
}

TEST_CASE("Each line has the Unix time at which it was written, which no value can take", "[logging][jsonl]") {
  test::TempDir dir;
  const auto now = [] {
    return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
  };
  const double before = now();
  {
    auto logger = JsonlLogger::open(dir / "m.jsonl").value();
    logger->log({.step = 1, .values = {{"time", 5}}});
    CHECK(logger->flush().ok());
  }
  const auto records = read_jsonl(dir / "m.jsonl").value();
  REQUIRE(records.size() == 1);
  CHECK(*records[0].find("time_") == 5);
  CHECK(*records[0].find("time") >= before - 0.001);
  CHECK(*records[0].find("time") <= now());
}

TEST_CASE("Long names stay complete and distinct", "[logging][jsonl]") {
  const std::string begin(150, 'n');
  CHECK(to_json({.step = 3, .values = {{begin + "1", 1}, {begin + "2", 2}}}) ==
        "{\"step\":3,\"epoch\":0,\"split\":\"train\",\"" + begin + "1\":1,\"" + begin + "2\":2}");
}

TEST_CASE("Written values are read back as the same doubles", "[logging][jsonl]") {
  test::TempDir dir;
  const LogRecord written{
      .step = int64_t{1} << 53,
      .epoch = 1.0 / 3,
      .split = "val",
      .values = {{"loss", 0.1 + 0.2}, {"tiny", 5e-324}, {"nan", kNan}, {"inf", -kInf}, {"zero", -0.0}},
      .lr = {1e-3 / 3},
      .gpu_memory_bytes = {int64_t{1} << 40},
      .gpu_utilisation = {1.0 / 3, -1}};
  {
    auto logger = JsonlLogger::open(dir / "m.jsonl").value();
    logger->log(written);
    CHECK(logger->flush().ok());
  }
  const auto records = read_jsonl(dir / "m.jsonl").value();
  REQUIRE(records.size() == 1);
  CHECK(records[0].step == written.step);
  CHECK(records[0].epoch == written.epoch);
  CHECK(records[0].split == "val");
  CHECK(records[0].lr == written.lr);
  CHECK(records[0].gpu_memory_bytes == written.gpu_memory_bytes);
  CHECK(records[0].gpu_utilisation == written.gpu_utilisation);
  REQUIRE(records[0].values.size() == 6);
  CHECK(records[0].values[5].first == "time");
  CHECK(records[0].values[0] == written.values[0]);
  CHECK(records[0].values[1] == written.values[1]);
  CHECK(std::isnan(records[0].values[2].second));
  CHECK(records[0].values[3].second == -kInf);
  CHECK(records[0].values[4].second == 0);
  CHECK(std::signbit(records[0].values[4].second));
}

TEST_CASE("After a rewind every step occurs once, wherever the file was cut", "[logging][jsonl]") {
  test::TempDir dir;
  std::string whole, kept;
  for (int step = 1; step <= 4; ++step) {
    const std::string line = to_json({.step = step, .values = {{"loss", 1.0 / step}}}) + "\n" +
                             to_json({.step = step, .split = "val", .values = {{"loss", 2.0 / step}}}) + "\n";
    whole += line;
    if (step <= 2) kept += line;
  }
  for (size_t size = kept.size(); size <= whole.size(); ++size) {
    write(dir / "m.jsonl", whole.substr(0, size));
    REQUIRE(rewound(dir / "m.jsonl", 2) == kept);
  }
  for (size_t size = 0; size < kept.size(); ++size) {  // torn before the step: only whole lines stay
    write(dir / "m.jsonl", whole.substr(0, size));
    const std::string left = rewound(dir / "m.jsonl", 2);
    REQUIRE(left == whole.substr(0, left.size()));
    REQUIRE((left.empty() || left.back() == '\n'));
    REQUIRE(whole.find('\n', left.size()) >= size);
  }
  write(dir / "m.jsonl", whole);
  CHECK(rewound(dir / "m.jsonl", -1).empty());
  write(dir / "m.jsonl", kept + std::string(100, '\0') + "\n");  // as after a power loss
  CHECK(rewound(dir / "m.jsonl", 2) == kept);
}

TEST_CASE("A rewind to the last step removes the test record after it, which is evaluated again", "[logging][jsonl]") {
  test::TempDir dir;
  auto logger = JsonlLogger::open(dir / "m.jsonl").value();
  for (const char* split : {"train", "val", "test"}) logger->log({.step = 4, .split = split});
  CHECK(logger->rewind(4).ok());
  logger->log({.step = 4, .split = "test"});
  CHECK(logger->flush().ok());
  const auto records = read_jsonl(dir / "m.jsonl").value();
  REQUIRE(records.size() == 3);
  CHECK(records[1].split == "val");
  CHECK(records[2].split == "test");
}

TEST_CASE("A rewind reads the end of a long file only", "[logging][jsonl]") {
  test::TempDir dir;
  std::string text = "damaged, which a reader from the start would notice\n";
  for (int step = 1; text.size() < (20 << 20); ++step) text += to_json({.step = step, .values = {{"loss", 2}}}) + "\n";
  const size_t last = text.rfind('\n', text.size() - 2) + 1;
  write(dir / "m.jsonl", text + "{\"step\":99");
  const int64_t step = std::stoll(text.substr(text.rfind("\"step\":") + 7));
  CHECK((rewound(dir / "m.jsonl", step) == text));
  CHECK((rewound(dir / "m.jsonl", step - 1) == text.substr(0, last)));
  CHECK(rewound(dir / "m.jsonl", 2).empty());  // far from the end
}

TEST_CASE("Lines of other writers are read as those of this one", "[logging][jsonl]") {
  test::TempDir dir;
  const std::string plain =
      R"({"step":3,"epoch":0.5,"split":"train","loss":1e-3,"x":-0,"y":-0.0,"big":12345678901234567890,"n":"NaN","lr":[1,0.5]})";
  const std::string other =
      R"({ "step":3, "epoch":0.5, "split":"tr\u0061in", "loss":0.001, "x":-0, "y":-0.0, "big":12345678901234567890,)"
      R"( "n":"NaN", "text":"a", "flag":true, "lr":[1, 0.5] })";
  for (const std::string& line : {plain, other}) {
    write(dir / "m.jsonl", line + "\n");
    const auto records = read_jsonl(dir / "m.jsonl").value();
    REQUIRE(records.size() == 1);
    CHECK(to_json(records[0]) == R"({"step":3,"epoch":0.5,"split":"train","loss":0.001,"x":0,"y":-0.0,)"
                                 R"("big":12345678901234567168,"n":"NaN","lr":[1,0.5]})");
  }
  for (const char* bad : {R"({"step":01})", R"({"step":1.})", R"({"step":1,"loss":.5})", R"({"step":1,"loss":inf})",
                          R"({"step":1,"loss":1e})", R"({"step":1,"loss":+1})", R"({"step":1}})", R"({"step":1,})",
                          R"({"epoch":1})", R"({"step":"1"})", R"({"step":1,"lr":[1,]})", R"({"step":1,"a":"\x"})"}) {
    write(dir / "m.jsonl", std::string(bad) + "\n");
    CAPTURE(bad);
    CHECK(read_jsonl(dir / "m.jsonl").value().empty());
  }
}

TEST_CASE("A line with a NUL byte is not a record, even if its start is valid", "[logging][jsonl]") {
  test::TempDir dir;
  const std::string line = to_json({.step = 1, .values = {{"loss", 2}}});
  write(dir / "m.jsonl", line + "\n" + line + '\0' + "garbage\n" + line + "\n");
  CHECK(read_jsonl(dir / "m.jsonl").value().size() == 1);
  CHECK(rewound(dir / "m.jsonl", 2) == line + "\n");
}

TEST_CASE("Integers beyond 64 bits are neither steps nor byte counts", "[logging][jsonl]") {
  test::TempDir dir;
  write(dir / "m.jsonl", R"({"step":1,"gpu_memory_bytes":[7,44444444444073741824,9223372036854775808,1e30,1.5,-1]}
{"step":18446744073709551615}
)");
  const auto records = read_jsonl(dir / "m.jsonl").value();
  REQUIRE(records.size() == 1);
  CHECK(records[0].gpu_memory_bytes == std::vector<int64_t>{7, 0, 0, 0, 0, -1});
}

TEST_CASE("Logging continues after the records that a rewind kept", "[logging][jsonl]") {
  test::TempDir dir;
  auto logger = JsonlLogger::open(dir / "m.jsonl").value();
  for (int step = 1; step <= 5; ++step) logger->log({.step = step});
  CHECK(logger->rewind(3).ok());
  logger->log({.step = 4});
  CHECK(logger->flush().ok());
  const auto records = read_jsonl(dir / "m.jsonl").value();
  REQUIRE(records.size() == 4);
  for (int i = 0; i < 4; ++i) CHECK(records[i].step == i + 1);
}

TEST_CASE("A pipe in place of the file is refused without waiting for a reader", "[logging][jsonl]") {
  test::TempDir dir;
  REQUIRE(mkfifo((dir / "m.jsonl").c_str(), 0600) == 0);
  const absl::Status status = JsonlLogger::open(dir / "m.jsonl").status();
  CHECK(exit_code(status) == ExitCode::kStorage);
  CHECK_THAT(error_text(status), Catch::Contains("m.jsonl: is a pipe or a socket, expected a file"));
  const int reader = open((dir / "m.jsonl").c_str(), O_RDONLY | O_NONBLOCK);  // with a reader, writing could wait
  CHECK_FALSE(JsonlLogger::open(dir / "m.jsonl").ok());
  close(reader);
}

TEST_CASE("A full disk is exit code 6 and names the file", "[logging][jsonl]") {
  auto logger = JsonlLogger::open("/dev/full").value();
  logger->log({.step = 1});
  const absl::Status status = logger->flush();
  CHECK(exit_code(status) == ExitCode::kStorage);
  CHECK(error_text(status) ==
        "trainkit: error[log.write] /dev/full: cannot write: No space left on device\n"
        "  hint: free some space or choose another --output_dir\n");
}

TEST_CASE("A temporarily full disk leaves no partial line and loses no record", "[logging][jsonl]") {
  test::TempDir dir;
  auto logger = JsonlLogger::open(dir / "m.jsonl").value();
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limited = before;
  limited.rlim_cur = 200;  // in the middle of a line
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  for (int step = 1; step <= 10; ++step) logger->log({.step = step, .values = {{"loss", 0.5}}});
  const absl::Status full = logger->flush();
  const std::string at_limit = test::read_text(dir / "m.jsonl");
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, old_handler);
  CHECK(exit_code(full) == ExitCode::kStorage);
  CHECK(at_limit.size() > 100);
  CHECK(at_limit.back() == '\n');
  CHECK(logger->flush().ok());
  CHECK(read_jsonl(dir / "m.jsonl").value().size() == 10);
}

TEST_CASE("A half line that cannot be removed stays the last one", "[logging][jsonl]") {
  const int memory = memfd_create("metrics", MFD_ALLOW_SEALING);  // a file that can be sealed against truncation
  REQUIRE(memory >= 0);
  const std::string path = "/proc/self/fd/" + std::to_string(memory);
  auto logger = JsonlLogger::open(path).value();
  logger->log({.step = 1, .values = {{"loss", 0.5}}});
  const std::string whole = test::read_text(path);
  REQUIRE(whole.back() == '\n');
  REQUIRE(::fcntl(memory, F_ADD_SEALS, F_SEAL_SHRINK) == 0);
  const auto old_handler = std::signal(SIGXFSZ, SIG_IGN);
  rlimit before{};
  REQUIRE(getrlimit(RLIMIT_FSIZE, &before) == 0);
  rlimit limited = before;
  limited.rlim_cur = whole.size() + 10;
  REQUIRE(setrlimit(RLIMIT_FSIZE, &limited) == 0);
  logger->log({.step = 2, .values = {{"loss", 0.5}}});
  REQUIRE(setrlimit(RLIMIT_FSIZE, &before) == 0);
  std::signal(SIGXFSZ, old_handler);
  const std::string torn = test::read_text(path);
  REQUIRE(torn.size() == whole.size() + 10);
  logger->log({.step = 3, .values = {{"loss", 0.5}}});
  CHECK(exit_code(logger->flush()) == ExitCode::kStorage);
  CHECK(test::read_text(path) == torn);
  ::close(memory);
}

TEST_CASE("A path that cannot be written is exit code 6", "[logging][jsonl]") {
  test::TempDir dir;
  CHECK(exit_code(JsonlLogger::open(dir / "no/such/m.jsonl").status()) == ExitCode::kStorage);
  CHECK(absl::IsNotFound(read_jsonl(dir / "none.jsonl").status()));
}
