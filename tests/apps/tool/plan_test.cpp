// trainkit plan as a user runs it.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <sstream>

#include "apps/runs.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Json = nlohmann::ordered_json;

namespace {

/// A text for the plans.
struct PlanPlace {
  PlanPlace() {
    std::ofstream text(dir / "text.txt");
    for (int i = 0; i < 2000; ++i) text << "line " << i << " of a text that nobody will read\n";
  }
  TempDir dir;
};

Ended plan(const PlanPlace& place, std::vector<std::string> flags, const std::vector<std::string>& further = {}) {
  flags.insert(flags.begin(), "plan");
  flags.insert(flags.end(), {"--", "--input", place.dir / "text.txt", "--output_dir", place.dir / "run"});
  flags.insert(flags.end(), further.begin(), further.end());
  return run_to_end("trainkit", flags, place.dir.path().string());
}

}  // namespace

TEST_CASE("plan knows what --shard saves, and proposes it before accumulation", "[apps][plan][sharding]") {
  const PlanPlace place;
  const auto answer = [&](const std::string& shard, const std::string& memory, const std::string& rows) {
    const Ended ended = plan(
        place,
        {"--app", "transformer", "--devices", "4", "--global_batch_size", "64", "--gpu_memory", memory, "--shard",
         shard, "--json"},
        {"--hidden_dim", "256", "--n_layers", "6", "--block_size", "32", "--batch_size", rows, "--cuda_graph", "off"});
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    return Json::parse(ended.output);
  };
  const Json whole = answer("none", "8GiB", "16"), state = answer("optimizer", "8GiB", "16"),
             gradients = answer("gradients", "8GiB", "16");
  const auto bytes = [](const Json& plan, const char* what) { return plan["peak_bytes"][what].get<int64_t>(); };
  CHECK(bytes(state, "optimizer") < bytes(whole, "optimizer") * 26 / 100);
  CHECK(bytes(state, "gradients") < bytes(whole, "gradients") * 103 / 100);
  CHECK(bytes(gradients, "gradients") < bytes(whole, "gradients") * 26 / 100);
  const int64_t less = state["reserved_bytes"], most = whole["reserved_bytes"];
  REQUIRE(less < most);
  // The plan keeps a tenth of a device in reserve.
  const std::string between = std::to_string((less + state["reserve_bytes"].get<int64_t>()) * 10 / 9 + (1 << 20));
  const Json proposal = answer("none", between, "auto");
  CHECK(proposal["grad_accum_steps"].get<int64_t>() > 1);
  CHECK(proposal["sharding_advice"] == "with --shard optimizer 16 rows per device x 1 accumulated fit");
  CHECK_FALSE(answer("optimizer", between, "auto").contains("sharding_advice"));
}

TEST_CASE("plan predicts the memory of absent devices and the batch that fits", "[apps][plan]") {
  const PlanPlace place;
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
  for (const char* text :
       {"rows per device x 1 device x 1 accumulated", "weights", "optimizer", "activations", "reserved",
        "a device has       2.00 GiB", "at 16 bytes per parameter (AdamW, float32) it holds 134M parameters"}) {
    CHECK(table.output.find(text) != std::string::npos);
  }
}

TEST_CASE("plan knows the five cards of the Transformer's guide, with their memory", "[apps][plan]") {
  const PlanPlace place;
  struct Card {
    const char* name;
    int64_t gib;
    double teraflops;
  };
  for (const Card& card : {Card{"rtx4090", 24, 165.2},
                           {"rtx4080", 16, 97.5},
                           {"rtx4070", 12, 58.3},
                           {"rtx3090", 24, 71},
                           {"rtx3080", 10, 59.5}}) {
    const Ended ended =
        plan(place, {"--app", "transformer", "--gpu", card.name, "--preset", "shakespeare_char_cpu", "--json"},
             {"--batch_size", "8", "--n_layers", "1", "--block_size", "16"});
    INFO(card.name << ended.errors);
    REQUIRE(ended.code == 0);
    const Json answer = Json::parse(ended.output);
    CHECK(answer["device_bytes"] == card.gib << 30);
    CHECK(answer["epoch"]["gpu"] == card.name);
    CHECK(answer["epoch"]["flops_per_second"].get<double>() == Approx(card.teraflops * 1e12));
  }
}

TEST_CASE("plan ends as its trainer does", "[apps][plan]") {
  const PlanPlace place;
  CHECK(plan(place, {"--app", "transformr"}).code == 2);
  CHECK(plan(place, {"--app", "transformer", "--gpu_memory", "2 apples"}).code == 2);
  CHECK(plan(place, {"--gpu_memory", "2GiB"}).code == 2);
  const Ended bytes = plan(place, {"--app", "transformer", "--gpu_memory", "24"});
  CHECK(bytes.code == 2);
  CHECK_THAT(bytes.errors, Catch::Contains("error[cli.value] --gpu_memory: too small for a GPU (got '24', expected at "
                                           "least 64MiB)\n  hint: give a unit, such as 24GiB"));
  const Ended misspelled = plan(place, {"--app", "transformer"}, {"--n_layer", "2"});
  CHECK_THAT(misspelled.errors,
             Catch::Contains("error[cli.unknown] --n_layer") && Catch::Contains("\n  hint: did you mean --n_layers?"));
  const Ended small =
      plan(place, {"--app", "transformer", "--preset", "shakespeare_char_cpu", "--gpu_memory", "513MiB"});
  CHECK(small.code == 7);
  CHECK(small.errors.find("memory.plan") != std::string::npos);
  CHECK(plan(place, {"--app", "transformer"}, {"--hidden_dim", "0"}).code == 2);
  const Ended unplanned = plan(place, {"--app", "transformer"}, {"--batch_size", "4", "--no-plan_memory"});
  CHECK(unplanned.code == 2);
  CHECK_THAT(unplanned.errors, Catch::Contains("has no plan: --no-plan_memory"));
  const Ended help = plan(place, {"--app", "transformer"}, {"--help"});
  CHECK(help.code == 0);
  CHECK_THAT(help.output, Catch::StartsWith("Usage: trainkit-transformer plan "));
}

TEST_CASE(
    "plan of the recommender has the guide's sizes without data or weights, and prints the guide's values next to ours",
    "[apps][plan]") {
  const TempDir dir;
  bool waited = false;
  const auto plan = [&](std::vector<std::string> flags) {
    flags.insert(flags.begin(), {"plan", "--app", "gpt2rec"});
    const Ended ended = run_to_end("trainkit", flags, dir.path().string());
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    waited |= ended.errors.starts_with("planning ...\n");
    return ended.output;
  };
  const Json answer = Json::parse(plan({"--json"}));
  CHECK(waited);  // GPT-2 takes more than a second
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
  // GPT-2 small has 124,439,808 weights with 1,024 positions; ours has one position per token of the longest text.
  CHECK(parts["GPT-2"]["bytes"].get<int64_t>() == 4 * (124'439'808 - 992 * 768));
  const int64_t texts = 6040 + 3706;
  // docs/gpt2rec.md has these numbers: GPT-2's output, the interactions, and a bit per user and item.
  const int64_t outputs = texts * 768 * 4, pairs = 801'600 * 8, bits = int64_t{6040} * 3712 / 8;
  CHECK(parts["cache"]["bytes"].get<int64_t>() == outputs + pairs + bits);
  CHECK(answer["largest_bytes"]["cache"] == parts["cache"]["bytes"]);
  CHECK(parts["in all"]["bytes"] == answer["peak_bytes"]["total"]);

  // A preset by its name decides devices and rows.
  const Json preset = Json::parse(plan({"--preset", "4_to_8gib", "--json", "--", "--n_layer", "1", "--n_embd", "48"}));
  CHECK(preset["devices"] == 4);
  CHECK(preset["global_batch_size"] == 1024);

  // A flag of the trainer replaces the one that plan would add, however it is spelled.
  const std::vector<std::string> tiny = {"--json", "--", "--n_layer", "1", "--n_embd", "48"};
  const auto with = [&](std::vector<std::string> flags, const std::vector<std::string>& further) {
    flags.insert(flags.end(), tiny.begin(), tiny.end());
    flags.insert(flags.end(), further.begin(), further.end());
    return Json::parse(plan(flags));
  };
  CHECK(with({}, {"--plan_data", "600x300x9000"})["rows"] < 9000);
  CHECK(with({"--gpu_memory", "3GiB"}, {"--plan-data=600x300x9000", "--no-use_cache"})["devices"] == 2);
  CHECK(with({"--gpu_memory", "3GiB"}, {"--plan-data=600x300x9000", "--use-cache"})["devices"] == 2);

  // Smaller, and on other data.
  const std::string table =
      plan({"--gpu_memory", "3GiB", "--", "--n_layer", "1", "--n_embd", "48", "--vocab_size", "0"});
  for (const char* text :
       {"256 rows per device x 2 devices x 1 accumulated = 512", "compared with the reference guide's example", "ours",
        "guide", "2500-3000", "a device has       3.00 GiB"}) {
    CHECK_THAT(table, Catch::Contains(text));
  }
}

TEST_CASE("plan of emotion recognition needs no clips, and predicts an epoch on the guide's devices and its bottleneck",
          "[apps][plan][emotion]") {
  const TempDir dir;
  const auto plan = [&](std::vector<std::string> flags, const std::string& image_size = "32") {
    flags.insert(flags.begin(), {"plan", "--app", "emotion"});
    flags.insert(flags.end(),
                 {"--", "--model_size", "simple", "--frames", "2", "--image_size", image_size, "--batch_size", "6"});
    const Ended ended = run_to_end("trainkit", flags, dir.path().string());
    INFO(ended.output << ended.errors);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const Json answer = Json::parse(plan({"--json"}, "64"));
  CHECK(answer["rows"] == 9989);
  CHECK(answer["devices"] == 3);
  CHECK(answer["batch_size"] == 6);
  CHECK(answer["steps_per_epoch"] == (9989 / 6 * 6 + 17) / 18);  // as in a run: the rows of full batches of 6
  CHECK(answer["row_bytes"] == 2 * 64 * 64 * 3 + 4 * 80'000 + 1 + 8);
  // ResNet18 at 64 x 64 takes 1 / 12.25 of 224 x 224; the audio network is added.
  const double flops = answer["row_flops"].get<double>();
  CHECK(flops > 2 * 3 * 2 * 1.814e9 / 12.25 * 0.95);
  const Json& epoch = answer["epoch"];
  CHECK(epoch["gpu"] == "rtx4090");
  CHECK(epoch["computing_seconds"].get<double>() == Approx(9989 * flops / (3 * 165.2e12 * 0.26)));
  CHECK(epoch["reading_seconds"].get<double>() == Approx(9989 * answer["row_bytes"].get<double>() / 5e9));
  CHECK(epoch["decoding_seconds"].get<double>() == Approx(9989.0 / 120));
  CHECK(epoch["seconds"].get<double>() >= epoch["reading_seconds"].get<double>());
  // Weights and statistics of both networks: ResNet18 has 11.2 M parameters without its last layer.
  int64_t weights = 0;
  for (const auto& [name, bytes] : answer["weight_bytes"].items()) weights += bytes.get<int64_t>();
  CHECK(static_cast<double>(weights) == Approx(answer["peak_bytes"]["weights"].get<double>()).margin(64));
  CHECK(weights > 4 * 11'176'512);

  const std::string table = plan({"--efficiency", "0.0001", "--row_rate", "1e6", "--link", "10,22"});
  for (const char* text :
       {"6 rows per device x 3 devices", "18000-20000", "predicted epoch on 3 x rtx4090", "(counted here)",
        "Ada GPU Architecture whitepaper", "x 0% (--efficiency)", "(assumed, --link)", "(assumed, --read_gbs)",
        "12 workers x 1e+06 rows/s", "bound by computing", "trainkit scale --step_seconds "}) {
    CHECK_THAT(table, Catch::Contains(text));
  }
  CHECK_THAT(plan({"--read_gbs", "0.01"}),
             Catch::Contains("bound by reading") && Catch::Contains("x 26% (of ResNet-50"));
  const Ended wrong = run_to_end("trainkit", {"plan", "--app", "emotion", "--link", "x"}, dir.path().string());
  CHECK(wrong.code == 2);
  CHECK_THAT(wrong.errors, !Catch::Contains("planning"));  // before the data are read

  // The suggested scale command predicts the same devices.
  const size_t begin = table.find("trainkit scale ") + 15, end = table.find('\n', begin);
  std::istringstream line(table.substr(begin, end - begin));
  std::vector<std::string> words = {"scale", "--json"};
  for (std::string word; line >> word;) words.push_back(word);
  const Ended scale = run_to_end("trainkit", words, dir.path().string());
  INFO(scale.errors);
  REQUIRE(scale.code == 0);
  const Json slow = Json::parse(plan({"--json", "--efficiency", "0.0001", "--link", "10,22"}))["epoch"];
  const double steps = answer["steps_per_epoch"].get<double>();
  CHECK(Json::parse(scale.output)["predictions"].back()["step_seconds"].get<double>() * steps ==
        Approx(slow["computing_seconds"].get<double>() + slow["exchange_seconds"].get<double>()).epsilon(1e-3));
}
