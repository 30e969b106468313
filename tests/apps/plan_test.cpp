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
