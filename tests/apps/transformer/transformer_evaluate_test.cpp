// trainkit-transformer evaluate and --prompt_file as a user runs them.
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/transformer/text_place.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run_text(const Place& place, const std::vector<std::string>& words) {
  return run_to_end("trainkit-transformer", words, place.dir.path().string());
}

void train_text(const Place& place) {
  const Ended ended = run_text(place, place.flags("run", {"--max_steps", "6"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
}

void write_text(const std::string& path, const std::string& text) { std::ofstream(path, std::ios::binary) << text; }

/// The number after `name` in the output of evaluate.
double number_after(const std::string& output, const std::string& name) {
  const size_t at = output.find(name);
  return at == std::string::npos ? -1 : std::stod(output.substr(at + name.size()));
}

}  // namespace

TEST_CASE("evaluate on the validation text gives the trainer's validation loss", "[apps][evaluate]") {
  const Place place;
  train_text(place);
  const std::string text = read_text(place.dir / "text.txt");
  write_text(place.dir / "validation.txt", text.substr(static_cast<size_t>(0.9 * static_cast<double>(text.size()))));
  const std::string before = folder_contents(place.dir / "run");
  const auto summary = nlohmann::json::parse(read_text(place.dir / "run" + "/summary.json"));
  const auto loss = summary.at("final").at("val_loss").get<double>();
  for (const std::string parallel : {"1", "2"}) {
    const Ended ended = run_text(
        place, {"evaluate", place.dir / "run", "--input", place.dir / "validation.txt", "--parallel", parallel});
    INFO(ended.errors + ended.output);
    REQUIRE(ended.code == 0);
    CHECK(number_after(ended.output, "\nloss ") == Approx(loss).margin(1e-6));
    CHECK(number_after(ended.output, "\nperplexity ") == Approx(std::exp(loss)).epsilon(1e-4));
    // A character of this text is a byte.
    CHECK(number_after(ended.output, "\nbits per byte ") == Approx(loss / std::log(2.0)).margin(1e-6));
    CHECK(ended.errors.find("weights of step 6, the best in validation") != std::string::npos);
  }
  CHECK(folder_contents(place.dir / "run") == before);
}

TEST_CASE("trainkit-transformer keeps and uses the best weights when training makes them worse", "[apps][evaluate]") {
  const Place place;
  const std::string text = read_text(place.dir / "text.txt"), run = place.dir / "run";
  write_text(place.dir / "validation.txt", text.substr(static_cast<size_t>(0.9 * static_cast<double>(text.size()))));
  const auto start = [&](const std::vector<std::string>& words) {
    const Ended ended = run_text(place, words);
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const auto sample_of = [](const std::string& output) { return output.substr(output.find("\n--- text generated")); };
  const auto summary = [&] { return nlohmann::json::parse(read_text(run + "/summary.json")); };
  const std::string first = start(place.flags(
      "run", {"--max_steps", "40", "--eval_every", "20", "--scheduler", "constant", "--warmup_steps", "0"}));
  const auto before = summary();
  const std::string second =
      start({"--output_dir", run, "--resume", "latest", "--max_steps", "42", "--eval_every", "1", "--lr", "5"});
  const auto after = summary();
  CHECK(after.at("steps") == 42);
  CHECK(after.at("best_step") == before.at("best_step"));
  CHECK(sample_of(second) == sample_of(first));  // the text at the end of a run is the best weights'
  const auto loss_of = [&](const std::string& weights) {
    const std::string output = start({"evaluate", weights, "--input", place.dir / "validation.txt", "--device", "cpu"});
    return number_after(output, "\nloss ");
  };
  CHECK(loss_of(run) == Approx(after.at("best").at("val_loss").get<double>()).margin(1e-6));
  CHECK(loss_of(run + "/checkpoints") == Approx(after.at("final").at("val_loss").get<double>()).epsilon(1e-4));
  CHECK(after.at("final").at("val_loss") > after.at("best").at("val_loss"));
}

TEST_CASE("evaluate counts the bytes of characters, and takes a folder of texts", "[apps][evaluate]") {
  const Place place;
  write_text(place.dir / "text.txt", read_text(place.dir / "text.txt") + std::string("\xc3\xa4\n"));
  train_text(place);
  const auto evaluate = [&](const std::string& input) {
    const Ended ended = run_text(place, {"evaluate", place.dir / "run", "--input", input});
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  write_text(place.dir / "two.txt", "a\xc3\xa4\xc3\xa4\xc3\xa4");
  const std::string two = evaluate(place.dir / "two.txt");
  CHECK(number_after(two, "bits per byte ") == Approx(number_after(two, "\nloss ") / std::log(2.0) / 2).epsilon(1e-5));
  fs::create_directory(place.dir / "texts");
  write_text(place.dir / "texts" + "/a.txt", "a\n");
  write_text(place.dir / "texts" + "/b.txt", "aa\n");
  CHECK(evaluate(place.dir / "texts").find("(2 files)") != std::string::npos);
}

TEST_CASE("--prompt_file continues the text of a file as --sample does", "[apps][evaluate]") {
  const Place place;
  train_text(place);
  write_text(place.dir / "prompt.txt", "the ");
  const auto sample = [&](const std::string& flag, const std::string& value) {
    const Ended ended = run_text(place, {"--output_dir", place.dir / "run", flag, value, "--sample_tokens", "10"});
    INFO(ended.errors);
    CHECK(ended.code == 0);
    return ended.output;
  };
  const std::string text = sample("--prompt_file", place.dir / "prompt.txt");
  CHECK(text.size() == 15);
  CHECK(text == sample("--sample", "the "));
}

TEST_CASE("evaluate names no step for weights that do not store theirs", "[apps][evaluate]") {
  const Place place;
  train_text(place);
  const std::string best = place.dir / "run" + "/best.safetensors", copy = place.dir / "copy.safetensors";
  REQUIRE(run_to_end("trainkit", {"export", best, copy}, place.dir.path().string()).code == 0);
  fs::rename(copy, best);
  const Ended ended = run_text(place, {"evaluate", place.dir / "run", "--input", place.dir / "text.txt"});
  CHECK(ended.code == 0);
  CHECK_THAT(ended.errors, Catch::StartsWith("weights of an unknown step, the best in validation ("));
}

TEST_CASE("evaluate and --prompt_file refuse bad input with one line", "[apps][evaluate]") {
  const Place place;
  train_text(place);
  const std::string good = place.dir / "run", text = place.dir / "text.txt";
  write_text(place.dir / "foreign.txt", "a \xc3\x9f\n");
  write_text(place.dir / "short.txt", "a");
  write_text(place.dir / "binary.txt", std::string("a\0b", 3));
  fs::create_directory(place.dir / "empty");
  fs::copy(good, place.dir / "old", fs::copy_options::recursive);
  fs::remove(place.dir / "old" + "/tokenizer.json");
  struct Case {
    std::vector<std::string> words;
    int code;
    std::string text;
  };
  const std::vector<Case> cases = {
      {{"evaluate", good}, 2, "--input: not given"},
      {{"evaluate", place.dir / "absent", "--input", text}, 5, "no such folder"},
      {{"evaluate", place.dir / "empty", "--input", text}, 5, "not the folder of a run"},
      {{"evaluate", place.dir / "old", "--input", text}, 5, "has not stored its tokenizer"},
      {{"evaluate", good, "--input", place.dir / "absent.txt"}, 4, "absent.txt: no such file"},
      {{"evaluate", good, "--input", place.dir / "empty"}, 4, "no file in this folder"},
      {{"evaluate", good, "--input", place.dir / "short.txt"}, 4, "too short (got '1 tokens', expected at least 2)"},
      {{"evaluate", good, "--input", place.dir / "foreign.txt"}, 4, "foreign.txt@0x2: character outside"},
      {{"evaluate", good, "--input", place.dir / "binary.txt"}, 4, "binary.txt@0x1: a NUL byte"},
      {{"evaluate", good, "--input", text, "--hidden_dim", "8"}, 2, "error[cli.unused] --hidden_dim: has no effect in"},
      {{"evaluate", good, "more", "--input", text}, 2, "error[cli.word] more: unexpected argument (expected RUN)"},
      {{"evaluate", good, "--config", good + "/config.yaml", "--input", text}, 2, "error[cli.unsupported] --config: "},
      {{"--output_dir", good, "--prompt_file", place.dir / "foreign.txt"}, 4, "foreign.txt@0x2: character outside"},
      {{"--output_dir", good, "--prompt_file", text, "--sample", "a"}, 2, "conflicts with --sample"}};
  for (const Case& bad : cases) {
    const Ended ended = run_text(place, bad.words);
    INFO(ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.output.empty());
  }
}

TEST_CASE("A run of another program is named, to evaluate and to resume", "[apps][evaluate]") {
  const Place place;
  std::filesystem::create_directories(place.dir / "hsi/checkpoints/step-00000010");
  REQUIRE(save_safetensors(Fs::posix(), place.dir / "hsi/best.safetensors", {{"weight", torch::zeros({1})}}).ok());
  std::ofstream(place.dir / "hsi/config.yaml") << "patch_size: 11\n";
  std::ofstream(place.dir / "hsi/checkpoints/latest") << "step-00000010\n";
  std::ofstream(place.dir / "hsi/run.json") << R"({"program": "trainkit-hsi", "sessions": []})";
  const std::vector<std::vector<std::string>> commands = {
      {"evaluate", place.dir / "hsi", "--input", place.dir / "text.txt"},
      {"--output_dir", place.dir / "hsi", "--resume", "latest"}};
  for (const auto& command : commands) {
    Program program("trainkit-transformer", command, place.dir.path().string());
    CHECK(program.wait() == 2);
    CHECK_THAT(program.errors(), Catch::Contains("error[run.program]") && Catch::Contains("got 'trainkit-hsi'"));
  }
}
