// trainkit-transformer as a user runs it: a process with flags, files, exit codes and signals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "test_util.h"
#include "text_place.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run(const Place& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-transformer", flags, place.dir.path().string());
}

}  // namespace

TEST_CASE("A run writes its folder, prints its settings and ends with a sample", "[apps][transformer]") {
  const Place place;
  const Ended ended =
      run(place, place.flags("run", {"--max_steps", "30", "--eval_every", "10", "--save_every", "10", "--monitor"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* name : {"config.yaml", "metrics.jsonl", "summary.json", "loss.svg", "tokenizer.json", "tensorboard",
                           "checkpoints/step-00000030/manifest.json", "checkpoints/latest"}) {
    CHECK(fs::exists(place.dir / "run" + "/" + name));
  }
  for (const char* text : {"single on cpu", "4 per device x 1 device x 2 accumulated = 8 per step", "validation loss",
                           "bits per character", "loss.svg", "tensorboard --logdir", "monitor: "}) {
    INFO(ended.output);
    CHECK(ended.output.find(text) != std::string::npos);
  }
  const std::vector<LogRecord> records = read_jsonl(place.dir / "run" + "/metrics.jsonl").value();
  for (const LogRecord& record : records) {
    if (record.split != "train") continue;
    REQUIRE(record.find("tokens_per_second"));
    CHECK(*record.find("tokens_per_second") == Approx(16 * *record.find("samples_per_second")).epsilon(1e-3));
  }
  const auto logged = losses(place.dir / "run");
  CHECK(logged.size() == 6 + 3);
  CHECK(logged.back().loss < logged.front().loss);
  CHECK(!fs::exists(place.dir / "run" + "/error.json"));
}

TEST_CASE("--help shows the defaults of this machine's device, whatever the other flags are", "[apps][transformer]") {
  const Place place;
  for (const std::vector<std::string>& flags :
       {std::vector<std::string>{"--help"}, {"--device", "cuda:99", "--help"}, {"--no_such_flag", "-h"}}) {
    const Ended ended = run(place, flags);
    INFO(ended.output << ended.errors);
    CHECK(ended.code == 0);
    const bool cuda = torch::cuda::is_available();
    CHECK_THAT(ended.output, Catch::Contains(cuda ? "This machine's device is cuda" : "This machine's device is cpu"));
    CHECK_THAT(ended.output, Catch::Contains(cuda ? "16 (cuda)" : "4 (cpu)"));
  }
}

TEST_CASE("The first lines and the last ones name the optimizer's own state, and TensorBoard only if it is used",
          "[apps][transformer]") {
  const Place place;
  const Ended with = run(place, place.flags("with", {"--max_steps", "1"}));
  const Ended without = run(place, place.flags("without", {"--max_steps", "1", "--no-use_tensorboard"}));
  INFO(with.output << with.errors << without.output << without.errors);
  CHECK_THAT(with.output, Catch::Contains("adamw state ") && Catch::Contains("tensorboard --logdir"));
  CHECK_THAT(without.output, !Catch::Contains("tensorboard"));
}

TEST_CASE("W&B gets the settings of the run", "[apps][transformer]") {
  const Place place;
  const std::string client = place.dir / "client.sh";
  std::ofstream(client)
      << "#!/bin/sh\necho '{\"ready\": true}' >&0\nwhile read -r line; do printf '%s\\n' \"$line\" >> "
      << place.dir / "got"
      << "; case $line in *finish*) break;; esac; done\n"
      << "echo '{\"done\": true}' >&0\n";
  fs::permissions(client, fs::perms::owner_all);
  std::vector<std::string> variables = {"PATH=/usr/bin:/bin", "TRAINKIT_PYTHON=" + client, "OMP_NUM_THREADS=1"};
  if (const std::string path = environment("LD_LIBRARY_PATH"); !path.empty())
    variables.push_back("LD_LIBRARY_PATH=" + path);
  Program program("trainkit-transformer", place.flags("run", {"--max_steps", "1", "--use_wandb", "--seed", "11"}),
                  place.dir.path().string(), {.environment = variables});
  REQUIRE(program.wait() == 0);
  const std::string got = read_text(place.dir / "got");
  const auto config = nlohmann::json::parse(got.substr(0, got.find('\n'))).at("config");
  CHECK(config.at("seed") == "11");
  CHECK(config.at("batch_size") == "4");
  CHECK(config.contains("weight_decay"));
}

TEST_CASE("config.yaml of a run gives the same run again", "[apps][transformer]") {
  const Place place;
  REQUIRE(run(place, place.flags("run", {"--max_steps", "10", "--save_every", "10"})).code == 0);
  const Ended again = run(place, {"--config", place.dir / "run" + "/config.yaml", "--output_dir", place.dir / "again"});
  INFO(again.errors);
  REQUIRE(again.code == 0);
  CHECK(losses(place.dir / "run") == losses(place.dir / "again"));
}

TEST_CASE("A dry run checks everything and writes nothing", "[apps][transformer]") {
  const Place place;
  const Ended ended = run(place, place.flags("run", {"--dry_run"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(ended.output.find("parameters") != std::string::npos);
  CHECK(!fs::exists(place.dir / "run"));
}

TEST_CASE("A run prints its predicted memory and its measured memory", "[apps][transformer]") {
  const Place place;
  const Ended ended = run(place, place.flags("run", {"--max_steps", "4"}));
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.output.find("predicted per device at the peak") != std::string::npos);
  const size_t line = ended.output.find("predicted at the peak of a step, ");
  REQUIRE(line != std::string::npos);
  const size_t percent = ended.output.find('(', line);
  CHECK(std::abs(std::stod(ended.output.substr(percent + 1))) <= 1.0);
  const std::string summary = read_text(place.dir / "run" + "/summary.json");
  CHECK(summary.find("\"predicted_memory_bytes\": ") != std::string::npos);
  CHECK(summary.find("\"real_memory_bytes\": ") != std::string::npos);
}

TEST_CASE("Memory planning does not change a run", "[apps][transformer]") {
  const Place place;
  REQUIRE(run(place, place.flags("with", {"--max_steps", "12", "--save_every", "6"})).code == 0);
  const Ended without =
      run(place, place.flags("without", {"--max_steps", "12", "--save_every", "6", "--no-plan_memory"}));
  REQUIRE(without.code == 0);
  CHECK(without.output.find("not predicted: --no-plan_memory") != std::string::npos);
  CHECK(losses(place.dir / "with") == losses(place.dir / "without"));
  const std::string checkpoint = "/checkpoints/step-00000012/model.safetensors";
  CHECK(read_text(place.dir / "with" + checkpoint) == read_text(place.dir / "without" + checkpoint));
}

TEST_CASE("The batch is chosen by memory, and kept", "[apps][transformer]") {
  const Place place;
  std::vector<std::string> flags = place.flags("run", {"--max_steps", "4", "--save_every", "4"});
  set_flag(flags, "--batch_size", "auto");
  const Ended ended = run(place, flags);
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.output.find("64 per device x 1 device x 2 accumulated = 128 per step") != std::string::npos);
  CHECK(read_text(place.dir / "run" + "/config.yaml").find("batch_size: 64") != std::string::npos);

  flags.insert(flags.end(), {"--resume", "latest", "--global_batch_size", "24"});
  flags.erase(std::find(flags.begin(), flags.end(), "--grad_accum_steps"),
              std::find(flags.begin(), flags.end(), "--grad_accum_steps") + 2);
  const Ended shared = run(place, flags);
  INFO(shared.output << shared.errors);
  CHECK(shared.output.find("24 per device x 1 device x 1 accumulated = 24 per step") != std::string::npos);
}

TEST_CASE("--eval_every 0 evaluates never", "[apps][transformer]") {
  const Place place;
  const Ended ended = run(place, place.flags("run", {"--max_steps", "4", "--eval_every", "0"}));
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(read_text(place.dir / "run/metrics.jsonl").find("\"val\"") == std::string::npos);
  CHECK(ended.output.find("validation loss") == std::string::npos);
}

TEST_CASE("A dry run plans for absent devices", "[apps][transformer]") {
  const Place place;
  std::vector<std::string> flags = place.flags(
      "run", {"--dry_run", "--json", "--gpu_memory", "1GiB", "--plan_devices", "3", "--global_batch_size", "96"});
  set_flag(flags, "--batch_size", "auto");
  const Ended ended = run(place, flags);
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* text : {"\"batch_size\": 32", "\"devices\": 3", "\"grad_accum_steps\": 1", "\"fits\": true",
                           "\"device_bytes\": 1073741824", "\"optimizer\": "}) {
    CHECK(ended.output.find(text) != std::string::npos);
  }
  CHECK(!fs::exists(place.dir / "run"));

  set_flag(flags, "--gpu_memory", "513MiB");  // the driver takes half a GiB
  const Ended small = run(place, flags);
  CHECK(small.code == 7);
  CHECK(small.errors.find("error[memory.plan] ") != std::string::npos);
}

TEST_CASE("--checkpoint_segments auto takes the fewest segments with which the batch fits", "[apps][transformer]") {
  const Place place;
  const auto plan = [&](const std::string& segments, const std::string& memory) {
    std::vector<std::string> flags =
        place.flags("run", {"--dry_run", "--json", "--gpu_memory", memory, "--checkpoint_segments", segments});
    set_flag(flags, "--batch_size", "64");
    set_flag(flags, "--n_layers", "6");
    set_flag(flags, "--hidden_dim", "128");
    set_flag(flags, "--block_size", "128");
    const Ended ended = run(place, flags);
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    return nlohmann::json::parse(ended.output).at("plan");
  };
  const auto all = plan("1", "40GiB"), some = plan("3", "40GiB");
  REQUIRE(all.at("fits") == true);
  const int64_t most = all.at("reserved_bytes"), less = some.at("reserved_bytes");
  REQUIRE(less < most);
  CHECK(some.at("checkpoint_segments") == 1);  // given, not chosen
  // The plan keeps a tenth of a device in reserve.
  const std::string enough = std::to_string((less + all.at("reserve_bytes").get<int64_t>()) * 10 / 9 + (1 << 20));
  CHECK(plan("2", enough).at("fits") == false);
  const auto chosen = plan("auto", enough);
  CHECK(chosen.at("checkpoint_segments") == 3);
  CHECK(chosen.at("fits") == true);
  CHECK(plan("auto", "40GiB").at("checkpoint_segments") == 1);
}

TEST_CASE("Errors have the exit code of their class and one line", "[apps][transformer]") {
  const Place place;
  std::ofstream(place.dir / "empty.txt");
  std::ofstream(place.dir / "bad.yaml") << "hiden_dim: 8\n";
  std::ofstream(place.dir / "bad.json") << "{\"lr\": 1, }";
  std::ofstream(place.dir / "file") << "not a folder";
  std::ofstream(place.dir / "weights.safetensors") << "not weights";
  REQUIRE(run(place, place.flags("taken", {"--max_steps", "2", "--save_every", "2"})).code == 0);
  struct Case {
    int code;
    const char* text;
    std::vector<std::string> flags;
  };
  const std::vector<Case> cases = {
      {2, "error[cli.unknown] --hiden-dim", {"--hiden-dim", "8"}},
      {2, "--batch-size", {"--batch-size", "0"}},
      {2, "error[cli.missing] --lr", place.flags("h", {"--lr"})},
      {2, "--lr: not a finite number", place.flags("i", {"--lr", "nan"})},
      {2, "error[cli.duplicate] --no-drop_last", place.flags("j", {"--drop_last", "--no-drop_last"})},
      {2, "error[cli.positional] more.txt", place.flags("k", {"more.txt"})},
      {2, "--gpu_memory: not a size", place.flags("o", {"--gpu_memory", "24 apples"})},
      {2, "--plan_devices: needs --dry_run", place.flags("p", {"--plan_devices", "2"})},
      {2, "--precision: fp16 needs a GPU", place.flags("l", {"--precision", "fp16"})},
      {2, "(got 'a\\x1b[31m\\x0ab'", place.flags("m", {"--tokenizer", "a\x1b[31m\nb"})},
      {2, "not an integer (got '999", place.flags("n", {"--seed", std::string(100'000, '9') + "x"})},
      {3, "none.yaml", {"--config", place.dir / "none.yaml"}},
      {3, "a folder", {"--config", place.dir.path().string()}},
      {3, "bad.json:1:11", {"--config", place.dir / "bad.json"}},
      {6, "output_dir: cannot be created: File name too long", place.flags(std::string(300, 'a'))},
      {5, "--resume: no such folder", place.flags("s", {"--resume", place.dir / std::string(300, 'a')})},
      {2, "--n_heads", place.flags("a", {"--n_heads", "3"})},
      {2, "--checkpoint_segments: more segments", place.flags("q", {"--checkpoint_segments", "9"})},
      {2, "one of the two", place.flags("r", {"--checkpoint_segments", "auto", "--gradient-checkpointing"})},
      {2, "--device", place.flags("b", {"--device", "cuda:7"})},
      {2, "--overwrite", place.flags("taken")},
      {2, "--on_nonfinite", place.flags("g", {"--on_nonfinite", "rollback", "--save_every", "0"})},
      {3, "bad.yaml:1:1", {"--config", place.dir / "bad.yaml"}},
      {4, "error[data.", {"--input", place.dir / "empty.txt", "--output_dir", place.dir / "c"}},
      {4, "missing.txt", {"--input", place.dir / "missing.txt", "--output_dir", place.dir / "d"}},
      {5, "error[", place.flags("e", {"--resume", "latest"})},
      {5, "weights.safetensors", place.flags("f", {"--init_from", place.dir / "weights.safetensors"})},
      {6, "error[", {"--input", place.dir / "text.txt", "--output_dir", place.dir / "file"}},
  };
  for (const Case& bad : cases) {
    const std::vector<std::string>& flags = bad.flags;
    const Ended ended = run(place, flags);
    INFO(bad.text << "\n" << ended.errors);
    CHECK(ended.code == bad.code);
    CHECK(ended.errors.starts_with("trainkit: error["));
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    const std::string line = ended.errors.substr(0, ended.errors.find('\n'));
    CHECK(line.size() <= 400);
    CHECK(std::count(ended.errors.begin(), ended.errors.end(), '\n') <= 2);
  }
}

TEST_CASE("--sample continues a text with a run's model and needs no other flag", "[apps][transformer]") {
  const Place place;
  REQUIRE(run(place, place.flags("run", {"--max_steps", "20", "--save_every", "20"})).code == 0);
  const Ended ended = run(place, {"--output_dir", place.dir / "run", "--sample", "the ", "--device", "cpu"});
  INFO(ended.errors);
  CHECK(ended.code == 0);
  CHECK(ended.output.starts_with("the "));
  CHECK(ended.output.size() > 100);
  CHECK_THAT(ended.errors, Catch::Contains("weights of step 20, the best in validation"));
  const std::string step = place.dir / "run/checkpoints/step-00000020";
  const Ended checkpoint = run(place, {"--resume", step, "--sample", "the ", "--device", "cpu"});
  INFO(checkpoint.errors);
  // With the run's own --sample_tokens, which --resume reads.
  CHECK(checkpoint.output.size() == 25);
  CHECK(ended.output.starts_with(checkpoint.output.substr(0, 24)));
  CHECK_THAT(checkpoint.errors, Catch::Contains("weights of step 20, a checkpoint"));
}

TEST_CASE("SIGTERM finishes the step, saves and exits with 143; the run resumes from that step",
          "[apps][transformer]") {
  const Place place;
  const auto flags = place.flags("run", {"--max_steps", "1000000", "--save_every", "1000000"});
  Program program("trainkit-transformer", flags, place.dir.path().string());
  while (read_text(place.dir / "run" + "/metrics.jsonl").empty())
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
  program.kill(SIGTERM);
  REQUIRE(program.wait() == 143);
  CHECK(fs::exists(place.dir / "run" + "/checkpoints/latest"));
  CHECK(program.output().find("--resume latest") != std::string::npos);
}
