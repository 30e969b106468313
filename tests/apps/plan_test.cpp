// trainkit plan, as a user runs it.
#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>

#include "runs.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Json = nlohmann::json;

namespace {

/// A text to plan for.
struct Place {
  Place() {
    std::ofstream text(dir / "text.txt");
    for (int i = 0; i < 2000; ++i) text << "line " << i << " of a text that nobody will read\n";
  }
  TempDir dir;
};

Ended plan(const Place& place, std::vector<std::string> flags, const std::vector<std::string>& further = {}) {
  flags.insert(flags.begin(), "plan");
  flags.insert(flags.end(), {"--", "--input", place.dir / "text.txt", "--output_dir", place.dir / "run"});
  flags.insert(flags.end(), further.begin(), further.end());
  return run_to_end("trainkit", flags, place.dir.path().string());
}

}  // namespace

TEST_CASE("plan tells the memory of devices that are not there, and the batch that fits", "[apps][plan]") {
  const Place place;
  const Ended json = plan(place, {"--app", "transformer", "--preset", "shakespeare_char_cpu", "--gpu_memory", "2GiB",
                                  "--devices", "3", "--global_batch_size", "96", "--json"});
  INFO(json.output << json.errors);
  REQUIRE(json.code == 0);
  const Json answer = Json::parse(json.output);
  CHECK(answer["app"] == "transformer");
  CHECK(answer["devices"] == 3);
  CHECK(answer["batch_size"].get<int>() * answer["grad_accum_steps"].get<int>() == 32);
  CHECK(answer["global_batch_size"] == 96);
  CHECK(answer["fits"] == true);
  CHECK(answer["steps"].get<int>() > 0);
  const Json& peak = answer["peak_bytes"];
  CHECK(peak["optimizer"].get<int64_t>() >= 2 * peak["weights"].get<int64_t>());
  CHECK(answer["reserved_bytes"].get<int64_t>() >= answer["allocated_bytes"].get<int64_t>());
  CHECK(answer["allocated_bytes"].get<int64_t>() >= peak["total"].get<int64_t>());
  CHECK(answer["check_error"].get<double>() <= 0.01);

  const Ended table = plan(place, {"--app", "transformer", "--preset", "shakespeare_char_cpu", "--gpu_memory", "2GiB"});
  INFO(table.output << table.errors);
  CHECK(table.code == 0);
  for (const char* text : {"rows a device x 1 device x 1 accumulated", "weights", "optimizer", "activations",
                           "reserved", "a device has       2.00 GiB"}) {
    CHECK(table.output.find(text) != std::string::npos);
  }
}

TEST_CASE("plan ends as its trainer does", "[apps][plan]") {
  const Place place;
  CHECK(plan(place, {"--app", "transformr"}).code == 2);
  CHECK(plan(place, {"--app", "transformer", "--gpu_memory", "2 apples"}).code == 2);
  CHECK(plan(place, {"--gpu_memory", "2GiB"}).code == 2);
  const Ended small =
      plan(place, {"--app", "transformer", "--preset", "shakespeare_char_cpu", "--gpu_memory", "513MiB"});
  CHECK(small.code == 7);
  CHECK(small.errors.find("memory.plan") != std::string::npos);
  CHECK(plan(place, {"--app", "transformer"}, {"--hidden_dim", "0"}).code == 2);
}

TEST_CASE("plan of the recommender has the guide's sizes without data or weights, and its figures beside ours",
          "[apps][plan]") {
  const TempDir dir;
  const auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", "--app", "gpt2rec"});
    const Ended ended = run_to_end("trainkit", flags, dir.path().string());
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const Json answer = Json::parse(plan({"--json"}));
  CHECK(answer["devices"] == 8);
  CHECK(answer["batch_size"] == 256);
  CHECK(answer["global_batch_size"] == 2048);
  const Json& parts = answer["guide"]["parts"];
  for (const char* name :
       {"weights", "GPT-2", "embeddings", "MLP", "cache", "activations", "gradients", "optimizer", "in all"}) {
    INFO(name);
    CHECK(parts.at(name).at("guide_bytes").size() == 2);
    CHECK(parts.at(name).at("bytes").get<int64_t>() > 0);
  }
  CHECK(parts["weights"]["guide_bytes"][0] == 500'000'000);
  // GPT-2 small has 124,439,808 weights with 1,024 positions; ours has as many positions as a text has tokens.
  CHECK(parts["GPT-2"]["bytes"].get<int64_t>() == 4 * (124'439'808 - 992 * 768));
  const int64_t texts = 6040 + 3706;
  // and what negatives are drawn from on the device
  CHECK(parts["cache"]["bytes"].get<int64_t>() <= texts * 768 * 4 + 12'000'000);
  CHECK(parts["cache"]["bytes"].get<int64_t>() > texts * 768 * 4 * 9 / 10);
  CHECK(answer["largest_bytes"]["cache"] == parts["cache"]["bytes"]);
  CHECK(parts["in all"]["bytes"] == answer["peak_bytes"]["total"]);

  // Smaller, and on data of one's own.
  const std::string table =
      plan({"--gpu_memory", "3GiB", "--", "--n_layer", "1", "--n_embd", "48", "--vocab_size", "0"});
  for (const char* text : {"256 rows a device x 2 devices x 1 accumulated = 512", "beside the guide's example", "ours",
                           "guide", "2500-3000", "a device has       3.00 GiB"}) {
    CHECK_THAT(table, Catch::Contains(text));
  }
}
