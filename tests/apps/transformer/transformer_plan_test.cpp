// What trainkit-transformer plans before a run: dry runs, the memory, and the batch and the segments that fit in it.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>

#include "apps/transformer/text_place.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

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
