#include "trainkit/train/checkpoint.h"

#include <sys/stat.h>

#include <atomic>
#include <bit>
#include <filesystem>
#include <fstream>
#include <functional>
#include <limits>
#include <random>
#include <thread>

#include "test_util.h"

using namespace trainkit;
namespace stdfs = std::filesystem;

namespace {

CheckpointContents contents_of(int64_t step) {
  const auto value = static_cast<double>(step);
  return {.model = {{"w", torch::full({3, 2}, value)}},
          .optimizer = {{"state.w.exp_avg", torch::full({3, 2}, value / 2)}},
          .state = {{"step", step}, {"generator", torch::arange(16, torch::kByte)}}};
}

std::string name_of(int64_t step) { return (step < 10 ? "step-0000000" : "step-000000") + std::to_string(step); }

std::string read(const std::string& path) { return Fs::posix().read_file(path, 1 << 20).value(); }
void write(const std::string& path, const std::string& bytes) { std::ofstream(path, std::ios::binary) << bytes; }

void flip(const std::string& path, double where = 0.5) {
  std::string bytes = read(path);
  bytes.at(static_cast<size_t>(where * static_cast<double>(bytes.size()))) ^= 1;
  write(path, bytes);
}

/// A run folder with checkpoints of steps 10, 20 and 30.
class Run {
 public:
  Run() {
    auto store = open();
    for (const int64_t step : {10, 20, 30}) REQUIRE(store.save(step, contents_of(step)) == absl::OkStatus());
  }
  CheckpointStore open(int keep_last = 0) const {
    return CheckpointStore::open(output(), {.keep_last = keep_last}).value();
  }
  std::string output() const { return dir_ / "run"; }
  std::string folder() const { return dir_ / "run/checkpoints"; }
  std::string path(int64_t step, const std::string& file = {}) const {
    return folder() + "/" + name_of(step) + (file.empty() ? "" : "/" + file);
  }
  const test::TempDir& dir() const { return dir_; }

 private:
  test::TempDir dir_;
};

/// Bitwise equality: NaN equals itself, and -0.0 differs from 0.0.
template <class T>
bool same(const T& a, const T& b) {
  if constexpr (std::is_same_v<T, double>) {
    return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b);
  } else if constexpr (std::is_same_v<T, std::vector<double>>) {
    return std::equal(a.begin(), a.end(), b.begin(), b.end(), same<double>);
  } else if constexpr (std::is_same_v<T, at::Tensor>) {
    return a.dtype() == b.dtype() && torch::equal(a, b);
  } else {
    return a == b;
  }
}

/// Replaces `from` by `to` in a checkpoint's manifest and updates the digest.
void edit_manifest(const std::string& path, const std::string& from, const std::string& to) {
  std::string text = read(path);
  text.replace(text.find(from), from.size(), to);
  text.resize(text.rfind("\"digest\""));
  write(path, text + "\"digest\": \"" + Digest::of(text) + "\"\n}\n");
}

}  // namespace

TEST_CASE("A checkpoint is loaded as it was saved", "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run").value();
  CHECK(absl::IsNotFound(store.latest().status()));
  CHECK(store.steps()->empty());
  REQUIRE(store.save(7, contents_of(7)) == absl::OkStatus());
  CHECK(store.latest().value() == 7);
  const auto back = store.load(7).value();
  CHECK(torch::equal(back.model.at(0).second, contents_of(7).model.at(0).second));
  CHECK(torch::equal(back.optimizer.at(0).second, contents_of(7).optimizer.at(0).second));
  CHECK(get_state<int64_t>(back.state, "step").value() == 7);
  CHECK(stdfs::exists(dir / "run/checkpoints/step-00000007/manifest.json"));
  CHECK(read(dir / "run/checkpoints/latest") == "step-00000007\n");
}

TEST_CASE("Every value of a state is restored exactly", "[train][checkpoint]") {
  test::TempDir dir;
  const double nan_with_payload = std::bit_cast<double>(uint64_t{0xfff8dead0000beef});
  const StateDict state = {
      {"true", true},
      {"false", false},
      {"zero", int64_t{0}},
      {"least", std::numeric_limits<int64_t>::min()},
      {"most", std::numeric_limits<int64_t>::max()},
      {"one", 1.0},
      {"tenth", 0.1},
      {"large", 1.7976931348623157e308},
      {"denormal", 4.9406564584124654e-324},
      {"whole", 1e15},
      {"negative zero", -0.0},
      {"nan", std::numeric_limits<double>::quiet_NaN()},
      {"nan with payload", nan_with_payload},
      {"infinity", INFINITY},
      {"-infinity", -INFINITY},
      {"empty text", std::string()},
      {"text", std::string("größe\n\"漢字\"\0end", 21)},
      {"bytes", std::string("\xff\x00\x80", 3)},
      {"looks like bits", std::string("0x7ff0000000000000")},
      {"no int64s", std::vector<int64_t>{}},
      {"int64s", std::vector<int64_t>{1, -1, std::numeric_limits<int64_t>::min()}},
      {"no doubles", std::vector<double>{}},
      {"doubles", std::vector<double>{1.0, -0.0, INFINITY, nan_with_payload, 0.1}},
      {"bytes tensor", torch::arange(256, torch::kInt).to(torch::kByte)},
      {"scalar tensor", torch::tensor(2.5)},
      {"bool tensor", torch::tensor({true, false})},
      {"view", torch::arange(6, torch::kLong).view({2, 3}).t()},
      {"no elements", torch::empty({0, 4}, torch::kHalf)},
      {"", int64_t{1}},
  };
  auto store = CheckpointStore::open(dir / "run").value();
  REQUIRE(store.save(1, {.model = {}, .optimizer = {}, .state = state}) == absl::OkStatus());
  const StateDict back = store.load(1)->state;
  REQUIRE(back.size() == state.size());
  for (const auto& [name, value] : state) {
    CAPTURE(name);
    const StateValue& found = back.at(name);
    REQUIRE(found.index() == value.index());
    CHECK(std::visit(
        [&](const auto& written) { return same(written, std::get<std::decay_t<decltype(written)>>(found)); }, value));
  }
}

TEST_CASE("A state that cannot be written is reported by name and nothing is saved", "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run").value();
  for (const StateValue& value : {StateValue(at::Tensor()), StateValue(torch::ones({2}, torch::kMeta)),
                                  StateValue(torch::ones({2}, torch::kComplexFloat))}) {
    const absl::Status status = store.save(1, {.model = {}, .optimizer = {}, .state = {{"the entry", value}}});
    CHECK(absl::IsInvalidArgument(status));
    CHECK(status.message().find("the entry") != absl::string_view::npos);
  }
  CHECK(absl::IsInvalidArgument(store.save(1, {.model = {}, .optimizer = {}, .state = {{"\xff", true}}})));
  CHECK(stdfs::is_empty(dir / "run/checkpoints"));
  CHECK_THROWS_AS(store.save(-1, {}), c10::ValueError);
}

/// Writes `bytes` as the state of step 30 and makes the manifest match, so that only the state can be refused.
static void replace_state(const Run& run, const std::string& bytes) {
  write(run.path(30, "state.json"), bytes);
  std::string manifest = read(run.path(30, "manifest.json"));
  const size_t at = manifest.find("\"state.json\"");
  const size_t number = manifest.find("\"bytes\": ", at) + 9;
  manifest.replace(number, manifest.find_first_not_of("0123456789", number) - number, std::to_string(bytes.size()));
  const size_t hex = manifest.find("\"xxh3_128\": \"", at) + 13;
  manifest.replace(hex, 32, Digest::of(bytes));
  manifest.resize(manifest.rfind("\"digest\""));
  write(run.path(30, "manifest.json"), manifest + "\"digest\": \"" + Digest::of(manifest) + "\"\n}\n");
}

TEST_CASE("A state with a number or sizes beyond 64 bits is refused", "[train][checkpoint]") {
  Run run;
  const std::string whole = read(run.path(30, "state.json"));
  const auto load_with = [&](const std::string& value) {
    std::string bytes = whole;
    bytes.insert(bytes.find('{', 1) + 1, "\"a\": " + value + ",");  // of "entries"
    replace_state(run, bytes);
    return load_checkpoint({.folder = run.folder(), .step = 30}).status();
  };
  REQUIRE(load_with("9223372036854775807").ok());
  REQUIRE(load_with(R"({"int64s": [9223372036854775807]})").ok());
  REQUIRE(load_with(R"({"tensor": {"dtype": "U8", "shape": [0, 1048576], "data": ""}})").ok());
  for (const char* value : {"9223372036854775808", R"({"int64s": [9223372036854775808]})",
                            R"({"tensor": {"dtype": "U8", "shape": [0, 9223372036854775808], "data": ""}})",
                            R"({"tensor": {"dtype": "U8", "shape": [0, 1099511627776, 1099511627776], "data": ""}})"}) {
    const absl::Status status = load_with(value);
    INFO(value << ": " << status);
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status).value_or(Error{}).field == "a");
  }
}

TEST_CASE("Random bytes as a state give an error or a state, never a crash", "[train][checkpoint]") {
  Run run;
  std::mt19937 random(1);
  const std::string whole = read(run.path(30, "state.json"));
  int accepted = 0;
  for (int i = 0; i < 300; ++i) {
    std::string bytes = whole;
    for (int flips = 0; flips < 3; ++flips) bytes[random() % bytes.size()] = static_cast<char>(random() % 128);
    if (i % 3 == 0) bytes.resize(random() % bytes.size());
    replace_state(run, bytes);
    const auto loaded = load_checkpoint({.folder = run.folder(), .step = 30});
    CAPTURE(bytes, loaded.status().ToString());
    accepted += loaded.ok();
    if (!loaded.ok()) {
      REQUIRE(exit_code(loaded.status()) == ExitCode::kWeights);
      REQUIRE(error_of(loaded.status())->where.starts_with(run.path(30, "state.json")));
    }
  }
  CHECK(accepted < 200);
}

TEST_CASE("A broken checkpoint is refused with the damaged file and an older checkpoint that verifies",
          "[train][checkpoint]") {
  struct Row {
    const char* name;
    std::function<void(const Run&)> damage;
    const char* where;
    const char* problem;
  };
  const auto in = [](const char* file) { return [=](const Run& run) { flip(run.path(30, file)); }; };
  const Row rows[] = {
      {"folder is empty",
       [](const Run& run) {
         stdfs::remove_all(run.path(30));
         stdfs::create_directory(run.path(30));
       },
       "manifest.json", "cannot open: No such file"},
      {"no manifest", [](const Run& run) { stdfs::remove(run.path(30, "manifest.json")); }, "manifest.json",
       "cannot open: No such file"},
      {"manifest is empty", [](const Run& run) { write(run.path(30, "manifest.json"), ""); }, "manifest.json",
       "it is truncated or was changed"},
      {"manifest is cut", [](const Run& run) { stdfs::resize_file(run.path(30, "manifest.json"), 40); },
       "manifest.json", "it is truncated or was changed"},
      {"manifest changed", in("manifest.json"), "manifest.json", "it is truncated or was changed"},
      {"model changed", in("model.safetensors"), "model.safetensors", "digest mismatch (got '"},
      {"optimizer changed", in("optimizer.safetensors"), "optimizer.safetensors", "digest mismatch"},
      {"state changed", in("state.json"), "state.json", "digest mismatch"},
      {"last byte of the model changed", [](const Run& run) { flip(run.path(30, "model.safetensors"), 0.9999); },
       "model.safetensors", "digest mismatch"},
      {"file missing", [](const Run& run) { stdfs::remove(run.path(30, "optimizer.safetensors")); },
       "optimizer.safetensors", "cannot open: No such file"},
      {"file surplus", [](const Run& run) { write(run.path(30, "notes.txt"), "x"); }, "notes.txt",
       "is not in the checkpoint's manifest"},
      {"file longer", [](const Run& run) { write(run.path(30, "state.json"), read(run.path(30, "state.json")) + " "); },
       "state.json", "size differs from the manifest"},
      {"file is a link",
       [](const Run& run) {
         stdfs::rename(run.path(30, "state.json"), run.dir() / "elsewhere");
         stdfs::create_symlink(run.dir() / "elsewhere", run.path(30, "state.json"));
       },
       "state.json", "Too many levels of symbolic links"},
      {"folder is a link",
       [](const Run& run) {
         stdfs::rename(run.path(30), run.dir() / "elsewhere");
         stdfs::create_directory_symlink(run.dir() / "elsewhere", run.path(30));
       },
       "step-00000030", "Not a directory"},
      {"folder was renamed",
       [](const Run& run) {
         stdfs::remove_all(run.path(30));
         stdfs::copy(run.path(20), run.path(30));
       },
       "step-00000030", "the manifest belongs to another step (got '20')"},
      {"newer schema",
       [](const Run& run) { edit_manifest(run.path(30, "manifest.json"), "\"schema\": 1", "\"schema\": 2"); },
       "manifest.json", "was written by another version of the library (got '2', expected 1)"},
      {"older schema",
       [](const Run& run) { edit_manifest(run.path(30, "manifest.json"), "\"schema\": 1", "\"schema\": 0"); },
       "manifest.json", "was written by another version of the library (got '0', expected 1)"},
      {"a step beyond 64 bits",
       [](const Run& run) {
         edit_manifest(run.path(30, "manifest.json"), "\"step\": 30", "\"step\": 18446744073709551615");
       },
       "manifest.json", "step: is missing or malformed"},
      {"manifest without files",
       [](const Run& run) { edit_manifest(run.path(30, "manifest.json"), "\"files\"", "\"filez\""); }, "manifest.json",
       "files: is missing or malformed"},
      {"manifest names a path",
       [](const Run& run) { edit_manifest(run.path(30, "manifest.json"), "\"state.json\"", "\"../state.json\""); },
       "step-00000030", "is not in the checkpoint's manifest"},
      {"manifest names no state",
       [](const Run& run) {
         edit_manifest(run.path(30, "manifest.json"), "\"state.json\"", "\"other.json\"");
         stdfs::rename(run.path(30, "state.json"), run.path(30, "other.json"));
       },
       "step-00000030", "the manifest does not list state.json"},
  };
  for (const Row& row : rows) {
    const Run run;
    row.damage(run);
    CheckpointStore store = run.open();
    const absl::Status status = store.load(30).status();
    CAPTURE(row.name, error_text(status));
    CHECK(exit_code(status) == ExitCode::kWeights);
    const auto error = error_of(status);
    REQUIRE(error);
    CHECK(error->where.find(row.where) != std::string::npos);
    CHECK(error_line(status).find(row.problem) != std::string::npos);
    CHECK(error->hint == "step-00000020 is valid: --resume " + run.path(20));
    // No automatic fallback; a caller may request the older checkpoint.
    if (stdfs::is_directory(stdfs::symlink_status(run.path(30)))) CHECK(store.latest().value() == 30);
    CHECK(store.newest_valid().value() == 20);
    CHECK(store.load(20).status() == absl::OkStatus());
    CHECK(exit_code(verify_checkpoint({.folder = run.folder(), .step = 30})) == ExitCode::kWeights);
    // The run can continue to save.
    CHECK(store.save(40, contents_of(40)) == absl::OkStatus());
    CHECK(store.latest().value() == 40);
  }
}

TEST_CASE("The error reports that no checkpoint verifies", "[train][checkpoint]") {
  const Run run;
  for (const int64_t step : {10, 20, 30}) flip(run.path(step, "model.safetensors"));
  const CheckpointStore store = run.open();
  CHECK(error_of(store.load(30).status())->hint == "no older checkpoint is valid");
  CHECK(absl::IsNotFound(store.newest_valid().status()));
}

TEST_CASE("A `latest` without its target is an error with exit code 5", "[train][checkpoint]") {
  const Run run;
  const CheckpointStore store = run.open();
  const std::string latest = run.folder() + "/latest";
  const auto line_for = [&](const std::string& text) {
    write(latest, text);
    CHECK(exit_code(store.latest().status()) == ExitCode::kWeights);
    return error_text(store.latest().status());
  };
  CHECK(line_for("step-00000040\n")
            .find("names a checkpoint that does not exist (got 'step-00000040')\n  hint: step-00000030 is valid") !=
        std::string::npos);
  for (const char* text :
       {"", "\n", "step-00000030", "../../elsewhere\n", "step-30\n", "step-00000030\nstep-00000020\n",
        "step--0000030\n", "step-000000000000000000000030\n", "step-99999999999999999999\n", " step-00000030\n"}) {
    CAPTURE(text);
    CHECK(line_for(text).find("does not name a checkpoint") != std::string::npos);
  }
  CHECK(exit_code(store.latest().status()) == ExitCode::kWeights);
  stdfs::remove(latest);
  write(run.dir() / "elsewhere", "step-00000010\n");
  stdfs::create_symlink(run.dir() / "elsewhere", latest);
  CHECK(exit_code(store.latest().status()) == ExitCode::kWeights);
  stdfs::remove(latest);
  CHECK(store.latest().value() == 30);  // without the file, the newest
}

TEST_CASE("Only real folders with valid names are checkpoints", "[train][checkpoint]") {
  const Run run;
  stdfs::create_directory_symlink(run.path(10), run.folder() + "/step-00000040");
  write(run.folder() + "/step-00000050", "a file");
  for (const char* name : {"step-60", "step-000000070", "step-0000008x", "Step-00000090", "step-00000010.bak"}) {
    stdfs::create_directory(run.folder() + "/" + name);
  }
  CheckpointStore store = run.open(1);
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
  CHECK(exit_code(store.load(40).status()) == ExitCode::kWeights);
  CHECK(absl::IsNotFound(store.load(60).status()));
  // Retention does not delete other entries and does not follow links.
  REQUIRE(store.save(31, contents_of(31)) == absl::OkStatus());
  CHECK(store.retention_status() == absl::OkStatus());
  CHECK(store.steps().value() == std::vector<int64_t>{31});
  for (const char* name : {"step-00000040", "step-00000050", "step-60", "step-000000070", "step-0000008x",
                           "Step-00000090", "step-00000010.bak"}) {
    CAPTURE(name);
    CHECK(stdfs::exists(stdfs::symlink_status(run.folder() + "/" + name)));
  }
  // A save fails if a link or a file has its name, and leaves both unchanged.
  for (const int64_t step : {40, 50}) CHECK(exit_code(store.save(step, contents_of(step))) == ExitCode::kStorage);
  CHECK(store.latest().value() == 31);
  CHECK(read(run.folder() + "/step-00000050") == "a file");
}

TEST_CASE("keep_last keeps the newest checkpoints, and after a rollback first drops the later ones",
          "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run", {.keep_last = 2}).value();
  for (const int64_t step : {10, 20, 30}) REQUIRE(store.save(step, contents_of(step)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{20, 30});
  REQUIRE(store.save(5, contents_of(5)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{5, 30});
  CHECK(store.latest().value() == 5);
  REQUIRE(store.save(6, contents_of(6)).ok());
  CHECK(store.steps().value() == std::vector<int64_t>{5, 6});
  CHECK(store.retention_status() == absl::OkStatus());
}

TEST_CASE("Milestones are kept beyond keep_last, except those dropped by a rollback", "[train][checkpoint]") {
  test::TempDir dir;
  auto store = CheckpointStore::open(dir / "run", {.keep_last = 2, .keep_every = 20}).value();
  const auto steps_after = [&](int64_t step) {
    REQUIRE(store.save(step, contents_of(step)).ok());
    REQUIRE(store.retention_status().ok());
    return store.steps().value();
  };
  steps_after(10);
  CHECK(steps_after(20) == std::vector<int64_t>{10, 20});
  CHECK(steps_after(30) == std::vector<int64_t>{10, 20, 30});
  CHECK(steps_after(40) == std::vector<int64_t>{20, 30, 40});
  steps_after(50);
  CHECK(steps_after(60) == std::vector<int64_t>{20, 40, 50, 60});
  // After a rollback to 20 the later checkpoints are dropped first, milestone or not.
  CHECK(steps_after(25) == std::vector<int64_t>{20, 25, 60});
  CHECK(steps_after(30) == std::vector<int64_t>{20, 25, 30});
  CHECK(exit_code(CheckpointStore::open(dir / "other", {.keep_every = -1}).status()) == ExitCode::kUsage);
}

TEST_CASE("keep_last 0 keeps all checkpoints; a negative value is an error with exit code 2", "[train][checkpoint]") {
  test::TempDir dir;
  {
    auto store = CheckpointStore::open(dir / "run", {.keep_last = 0}).value();
    for (int64_t step = 1; step <= 8; ++step) REQUIRE(store.save(step, contents_of(step)).ok());
    CHECK(store.steps()->size() == 8);
  }
  CHECK(exit_code(CheckpointStore::open(dir / "run", {.keep_last = -1}).status()) == ExitCode::kUsage);
}

TEST_CASE("Saving a step again replaces its checkpoint", "[train][checkpoint]") {
  const Run run;
  auto store = run.open();
  REQUIRE(store.save(30, contents_of(99)) == absl::OkStatus());
  CHECK(get_state<int64_t>(store.load(30)->state, "step").value() == 99);
  REQUIRE(store.save(10, contents_of(98)) == absl::OkStatus());
  CHECK(get_state<int64_t>(store.load(10)->state, "step").value() == 98);
  CHECK(store.latest().value() == 10);
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
}

TEST_CASE("A thousand leftovers of killed saves are ignored and removed", "[train][checkpoint]") {
  const Run run;
  for (int i = 0; i < 1000; ++i) {
    const std::string left = run.folder() + "/.tmp-step-00000031-" + std::to_string(i);
    stdfs::create_directory(left);
    if (i % 100 == 0) write(left + "/model.safetensors", "half");
  }
  CHECK(resolve_checkpoint("latest", run.output())->step == 30);
  const CheckpointStore store = run.open();
  CHECK(store.steps().value() == std::vector<int64_t>{10, 20, 30});
  CHECK(std::distance(stdfs::directory_iterator(run.folder()), stdfs::directory_iterator()) == 4);
}

TEST_CASE("A second writer in the same folder is refused with exit code 2; a reader is not", "[train][checkpoint]") {
  const Run run;
  const CheckpointStore store = run.open();
  const absl::Status second = CheckpointStore::open(run.output()).status();
  CHECK(exit_code(second) == ExitCode::kUsage);
  CHECK(error_line(second).find("another run is writing checkpoints there") != std::string::npos);
  CHECK(load_checkpoint({.folder = run.folder(), .step = 20}).ok());
}

TEST_CASE("A checkpoint folder that is a link, a file or world-writable is refused", "[train][checkpoint]") {
  test::TempDir dir;
  stdfs::create_directories(dir / "victim");
  for (const char* name : {"a", "b", "c"}) stdfs::create_directory(dir / name);
  stdfs::create_directory_symlink(dir / "victim", dir / "a/checkpoints");
  write(dir / "b/checkpoints", "x");
  stdfs::create_directory(dir / "c/checkpoints");
  stdfs::permissions(dir / "c/checkpoints", stdfs::perms::others_write, stdfs::perm_options::add);
  for (const char* name : {"a", "b", "c"}) {
    CAPTURE(name);
    CHECK(exit_code(CheckpointStore::open(dir / name).status()) == ExitCode::kStorage);
  }
  CHECK(stdfs::is_empty(dir / "victim"));
  write(dir / "file", "x");
  CHECK(exit_code(CheckpointStore::open(dir / "file").status()) == ExitCode::kStorage);
  CHECK(exit_code(CheckpointStore::open(dir / std::string(300, 'n')).status()) == ExitCode::kStorage);
}

TEST_CASE("Deleting the run folder during a run is an error, not a crash", "[train][checkpoint]") {
  const Run run;
  auto store = run.open();
  stdfs::remove_all(run.output());
  const absl::Status status = store.save(40, contents_of(40));
  CHECK(exit_code(status) == ExitCode::kStorage);
  CHECK(exit_code(store.load(30).status()) == ExitCode::kWeights);
  CHECK(absl::IsNotFound(store.latest().status()));
}

TEST_CASE("Deleting a checkpoint while it is loaded gives an error or a complete checkpoint", "[train][checkpoint]") {
  int whole = 0, failed = 0;
  for (int i = 0; i < 20; ++i) {
    const Run run;
    const CheckpointStore store = run.open();
    std::thread deleter([&] { stdfs::remove_all(run.path(30)); });
    const auto loaded = store.load(30);
    deleter.join();
    ++(loaded.ok() ? whole : failed);
    if (!loaded.ok()) CHECK(exit_code(loaded.status()) == ExitCode::kWeights);
    if (loaded.ok()) CHECK(get_state<int64_t>(loaded->state, "step").value() == 30);
  }
  CHECK(whole + failed == 20);
}

TEST_CASE("--resume accepts latest, a run, a folder, a path or a name", "[train][checkpoint]") {
  const Run run;
  const auto found = [&](const std::string& spec, const std::string& output) {
    const auto path = resolve_checkpoint(spec, output);
    return path.ok() ? path->path() : error_line(path.status());
  };
  const std::string other = run.dir() / "other";
  CHECK(found("latest", run.output()) == run.path(30));
  CHECK(found(run.output(), other) == run.path(30));
  CHECK(found(run.output() + "/", other).ends_with("step-00000030"));
  CHECK(found(run.folder(), other) == run.path(30));
  CHECK(found(run.folder() + "/latest", other) == run.path(30));
  CHECK(found(run.path(20), other) == run.path(20));
  CHECK(found(run.path(20) + "/", other) == run.path(20));
  CHECK(found("step-00000010", run.output()) == run.path(10));
  for (const std::string& spec : {run.output(), run.folder() + "/", run.path(20)}) {
    CHECK(resolve_checkpoint(spec, other)->run_folder() == run.output());
  }
  write(run.folder() + "/latest", "step-00000020\n");
  CHECK(found("latest", run.output()) == run.path(20));
  CHECK(load_checkpoint(resolve_checkpoint("latest", run.output()).value()).ok());

  for (const std::string& spec :
       {std::string("latest"), std::string("step-00000040"), run.path(40), run.dir().path().string(),
        run.dir() / "none", run.path(20, "state.json"), std::string()}) {
    CAPTURE(spec);
    const absl::Status status = resolve_checkpoint(spec, other).status();
    CHECK(absl::IsNotFound(status));
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status)->field == "--resume");
  }
}

TEST_CASE("Resuming from a file of PyTorch names --init_from", "[train][checkpoint]") {
  const TempDir dir;
  write(dir / "checkpoint-latest.pt", "PK");
  for (const std::string& file : {dir / "checkpoint-latest.pt", dir / "missing.pth"}) {
    const absl::Status status = resolve_checkpoint(file, dir / "run").status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_text(status), Catch::Contains("not a checkpoint of this library"));
    CHECK_THAT(error_text(status), Catch::Contains("hint: --init_from " + file + " "));
  }
}

TEST_CASE("A snapshot has the values and strides of all kinds of tensors and shares no memory with them",
          "[train][checkpoint]") {
  const at::Tensor big = at::arange(3 << 20, at::kFloat);  // 12 MiB
  const NamedTensors live = {{"big", big.clone()},
                             {"odd start", big.clone().narrow(0, 3, 1000)},
                             {"odd bytes", at::arange(13, at::kByte)},
                             {"scalar", at::tensor(2.5)},
                             {"empty", at::empty({0, 4})},
                             {"transposed", at::arange(12, at::kDouble).view({3, 4}).t()},
                             {"channels_last", at::rand({2, 3, 4, 5}).contiguous(at::MemoryFormat::ChannelsLast)},
                             {"every second", at::arange(20, at::kLong).slice(0, 0, 20, 2)},
                             {"expanded", at::arange(3, at::kInt).view({3, 1}).expand({3, 4})},
                             {"half", at::rand({7}).to(at::kHalf)},
                             {"flags", at::rand({9}).gt(0.5)}};
  std::vector<at::Tensor> expected;
  for (const auto& [name, tensor] : live) expected.push_back(tensor.clone());
  const CheckpointContents copy = snapshot({.model = live, .optimizer = live, .state = {{"t", big.narrow(0, 0, 5)}}});
  for (const auto& [name, tensor] : live) at::Tensor(tensor.dim() == 2 ? tensor.select(1, 0) : tensor).zero_();
  for (const NamedTensors* tensors : {&copy.model, &copy.optimizer}) {
    for (size_t i = 0; i < live.size(); ++i) {
      INFO(live[i].first);
      CHECK((*tensors)[i].first == live[i].first);
      CHECK((*tensors)[i].second.scalar_type() == expected[i].scalar_type());
      CHECK(at::equal((*tensors)[i].second, expected[i]));
      if (live[i].second.is_non_overlapping_and_dense()) {
        CHECK((*tensors)[i].second.strides() == live[i].second.strides());
      }
    }
  }
  CHECK(at::equal(std::get<at::Tensor>(copy.state.at("t")), at::arange(5, at::kFloat)));
}

TEST_CASE("A snapshot shares nothing with the live tensors", "[train][checkpoint]") {
  const CheckpointContents live = contents_of(1);
  const CheckpointContents copy = snapshot(live);
  live.model[0].second.fill_(9);
  live.optimizer[0].second.fill_(9);
  std::get<at::Tensor>(live.state.at("generator")).fill_(9);
  CHECK(torch::equal(copy.model[0].second, contents_of(1).model[0].second));
  CHECK(torch::equal(copy.optimizer[0].second, contents_of(1).optimizer[0].second));
  CHECK(torch::equal(std::get<at::Tensor>(copy.state.at("generator")), torch::arange(16, torch::kByte)));
}

TEST_CASE("Another thread may save a snapshot while readers load checkpoints", "[train][checkpoint]") {
  const Run run;
  auto store = run.open(2);
  std::atomic<int> failed{0};
  std::thread writer([&, copy = snapshot(contents_of(31))] {
    for (int64_t step = 31; step < 60; ++step) failed += !store.save(step, copy).ok();
  });
  int loads = 0;
  while (loads < 30) {
    const auto latest = store.latest();
    REQUIRE(latest.status() == absl::OkStatus());
    (void)store.load(*latest);  // may have been dropped meanwhile
    (void)store.steps();
    ++loads;
  }
  writer.join();
  CHECK(failed == 0);
  CHECK(store.load(59).status() == absl::OkStatus());
}
