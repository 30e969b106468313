// Checkpoints are loaded as they were saved; broken ones are refused.
#include "trainkit/train/checkpoint.h"

#include <bit>
#include <filesystem>
#include <functional>
#include <limits>
#include <random>

#include "optim/optimizer_parts.h"
#include "peak_memory.h"
#include "sanitizers.h"
#include "test_util.h"
#include "train/checkpoint/checkpoint_folder.h"
#include "train/checkpoint/checkpoint_run.h"
#include "trainkit/optim/adam.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
namespace stdfs = std::filesystem;

namespace {

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
      {"negated view", at::_neg_view(torch::arange(3.))},
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

TEST_CASE("A state of 50,000 tensors is loaded as it was saved", "[train][checkpoint]") {
  test::TempDir dir;
  CheckpointContents contents = contents_of(1);
  for (int i = 0; i < 50'000; ++i) contents.state.emplace("t" + std::to_string(i), at::scalar_tensor(i, at::kLong));
  auto store = CheckpointStore::open(dir / "run").value();
  REQUIRE(store.save(1, contents) == absl::OkStatus());
  const auto back = store.load(1);  // hours, if each tensor costs a visit of all others
  REQUIRE(back.ok());
  CHECK(back->state.size() == contents.state.size());
  CHECK(std::get<at::Tensor>(back->state.at("t49999")).item<int64_t>() == 49'999);
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
    CHECK(error->hint == "step-00000020 is valid: use " + run.path(20));
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

TEST_CASE("A checkpoint is copied into a model and an optimizer without being in memory", "[train][checkpoint]") {
  if (kSanitized) return;
  test::TempDir dir;
  struct Table final : torch::nn::Module {
    at::Tensor weight = register_parameter("weight", torch::randn({16 << 10, 1024}));  // 64 MiB
  } model;
  AdamW optimizer({.lr = 1e-2});
  optimizer.add_param_groups(default_param_groups(model));
  CheckpointContents saved{.model = named_tensors(model), .optimizer = {}, .state = {}};
  StateDict scalars;
  for (auto& [name, value] : optimizer.state_dict()) {
    if (const auto* tensor = std::get_if<at::Tensor>(&value)) {
      if (tensor->numel() > 1) tensor->fill_(0.5);
      saved.optimizer.emplace_back(name, *tensor);
    } else {
      scalars[name] = value;
    }
  }
  auto store = CheckpointStore::open(dir / "run").value();
  REQUIRE(store.save(1, saved) == absl::OkStatus());
  const at::Tensor probe = model.weight.detach()[123].clone();
  {
    const at::NoGradGuard no_grad;
    model.weight.zero_();
    for (const auto& [name, tensor] : saved.optimizer) tensor.zero_();
  }
  reset_peak_memory();
  const int64_t before = peak_memory();
  trainkit::detail::StoredTensors stored;
  const auto contents = trainkit::detail::list_checkpoint({.folder = dir / "run/checkpoints", .step = 1}, stored);
  REQUIRE(contents.ok());
  REQUIRE(stored.copy_all(contents->model, named_tensors(model), "") == absl::OkStatus());
  StateDict state = scalars;
  for (const auto& [name, tensor] : contents->optimizer) state[name] = tensor;
  REQUIRE(trainkit::detail::OptimizerParts::load(
              optimizer, state,
              {.read = [&](const at::Tensor& tensor) { return stored.read(tensor); },
               .copy = [&](const at::Tensor& from, const at::Tensor& to) { return stored.copy(from, to); }}) ==
          absl::OkStatus());
  CHECK(peak_memory() - before < 24 << 20);
  CHECK(model.weight.detach()[123].equal(probe));
  CHECK(std::get<at::Tensor>(optimizer.state_dict().at("state.weight.exp_avg_sq"))[9][9].item<float>() == 0.5f);
}
