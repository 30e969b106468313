// trainkit-gpt2rec as a user runs it: a process with flags, files, exit codes and signals.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <set>

#include "apps/presets.h"
#include "apps/rec/rec_place.h"
#include "gpt2_recommender/options.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;
namespace fs = std::filesystem;

namespace {

Ended run(const RecPlace& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-gpt2rec", flags, place.dir.path().string());
}

nlohmann::json json_of(const RecPlace& place, const std::string& file) {
  return nlohmann::json::parse(read_text(place.dir / file));
}

/// The weights of a run's last checkpoint.
std::string weights_of(const RecPlace& place, const std::string& name) {
  const std::string latest = read_text(place.dir / name + "/checkpoints/latest");
  return read_text(place.dir / name + "/checkpoints/" + latest.substr(0, latest.find('\n')) + "/model.safetensors");
}

}  // namespace

TEST_CASE("A run writes its folder, its split and its scores with the protocol and the popularity baseline",
          "[apps][rec]") {
  const RecPlace place;
  const Ended ended = run(place, place.flags("run", {"--monitor"}));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  for (const char* name : {"config.yaml", "metrics.jsonl", "summary.json", "results/scores.json", "split.tsv",
                           "tensorboard", "split.index", "best.safetensors", "checkpoints/latest"}) {
    INFO(name);
    CHECK(fs::exists(place.dir / "run" + "/" + name));
  }
  for (const char* text :
       {"data       ", "(ml-1m): ", "protocol   80/10/10 of each user at random, full ranking of 50", "single on cpu",
        "test       ndcg@10 ", "popularity ndcg@10 ", "\nscore ", "\nndcg@10 ", "monitor: "}) {
    INFO(ended.output);
    CHECK(ended.output.find(text) != std::string::npos);
  }
  const auto summary = json_of(place, "run/summary.json"), scores = json_of(place, "run/results/scores.json");
  for (const char* name : {"recall@10", "ndcg@10", "hit@10"}) {
    CHECK(summary.at(name) == scores.at("test").at(name));
    CHECK(summary.at("popularity").at(name) == scores.at("popularity").at(name));
    CHECK((summary.at(name) > 0 && summary.at(name) <= 1));
  }
  CHECK(summary.at("mrr") == scores.at("test").at("mrr@10"));
  const std::string report = read_text(place.dir / "run/report.html");
  for (const char* text :
       {"Model and popularity", "by the activity of the users", "known interactions",
        "users, from the least to the most active", "full ranking of 50 items", "ndcg@10 (selects the best)"}) {
    CHECK_THAT(report, Catch::Contains(text));
  }
  CHECK(summary.at("popularity").at("mrr") == scores.at("popularity").at("mrr@10"));
  CHECK(scores.at("protocol") == "80/10/10 of each user at random, full ranking of 50 items");
  CHECK(summary.at("best").contains("val_ndcg@10"));
  const auto best = SafetensorsFile::open(place.dir / "run" + "/best.safetensors").value();
  CHECK(best.metadata().at("step") == std::to_string(summary.at("best_step").get<int64_t>()));
}

TEST_CASE("Without evaluations a run tests its last weights and names their step", "[apps][rec]") {
  const RecPlace place;
  const Ended ended = run(place, place.flags("run", {"--max_steps", "3", "--eval_every", "0"}));
  INFO(ended.output << ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(ended.output.find("with the last weights") != std::string::npos);
  CHECK_THAT(read_text(place.dir / "run/report.html"), Catch::Contains("Last weights."));
}

TEST_CASE("All formats and any number of workers train the same weights", "[apps][rec]") {
  const RecPlace place;
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    const Ended ended = run(place, place.flags(name, std::move(more)));
    INFO(ended.errors);
    REQUIRE(ended.code == 0);
    return weights_of(place, name);
  };
  const std::string expected = with("a", {});
  REQUIRE(!expected.empty());
  CHECK(with("b", {"--num_workers", "0"}) == expected);
  CHECK(with("c", {"--num_workers", "3"}) == expected);
  CHECK(with("d", {"--data_dir", place.dir / "ml-100k"}) == expected);
  CHECK(with("e", {"--data_dir", place.dir / "recbole"}) == expected);
  CHECK(with("f", {"--seed", "1"}) != expected);
  CHECK(with("g", {"--negatives", "popularity"}) != expected);
  CHECK(with("h", {"--negatives", "in_batch"}) != expected);
}

TEST_CASE("Early stopping and the best epoch never use a test interaction", "[apps][rec]") {
  // Removes ten test interactions from the data, none of which is the first line of its user or item, so that the other
  // indices stay the same. Training must not change.
  const RecPlace place;
  const std::vector<std::string> stop = {"--early_stopping", "2", "--epochs", "30"};
  REQUIRE(run(place, place.flags("a", stop)).code == 0);
  const auto a = losses(place.dir / "a");
  std::istringstream rows(read_text(place.dir / "ml-1m/ratings.dat"));
  std::string split = read_text(place.dir / "a" + "/split.tsv"), ratings;
  std::set<std::string> seen;
  int64_t gone = 0;
  for (std::string line; std::getline(rows, line);) {
    const size_t end = line.find("::"), next = line.find("::", end + 2);
    const std::string user = line.substr(0, end), item = line.substr(end + 2, next - end - 2);
    const std::string in_split = "\n" + user + "\t" + item + "\ttest\n";
    const bool known_user = !seen.insert("u" + user).second, known_item = !seen.insert("i" + item).second;
    const bool known = known_user && known_item;
    if (const size_t at = split.find(in_split); known && gone < 10 && at != split.npos) {
      split.erase(at + 1, in_split.size() - 1);
      ++gone;
    } else {
      ratings += line + "\n";
    }
  }
  REQUIRE(gone == 10);
  std::ofstream(place.dir / "ml-1m/ratings.dat") << ratings;
  std::ofstream(place.dir / "split.tsv") << split;
  auto flags = stop;
  flags.insert(flags.end(), {"--split", place.dir / "split.tsv"});
  const Ended ended = run(place, place.flags("b", flags));
  INFO(ended.errors);
  REQUIRE(ended.code == 0);
  CHECK(losses(place.dir / "b") == a);
  CHECK(json_of(place, "a/summary.json").at("best") == json_of(place, "b/summary.json").at("best"));
  CHECK(json_of(place, "a/summary.json").at("recall@10") != json_of(place, "b/summary.json").at("recall@10"));
}

TEST_CASE("config.yaml of a run of trainkit-gpt2rec reproduces the run", "[apps][rec]") {
  const RecPlace place;
  REQUIRE(run(place, place.flags("run")).code == 0);
  const Ended again = run(place, {"--config", place.dir / "run" + "/config.yaml", "--output_dir", place.dir / "again"});
  INFO(again.errors);
  REQUIRE(again.code == 0);
  CHECK(losses(place.dir / "run") == losses(place.dir / "again"));
}

TEST_CASE("2048 rows per step are divided among the devices, and rows changed by rounding are reported",
          "[apps][rec]") {
  const RecPlace place;
  const auto plan = [&](std::vector<std::string> more) {
    more.insert(more.end(),
                {"--data_dir", place.dir / "ml-1m", "--output_dir", place.dir / "run", "--device", "cpu", "--dry_run"});
    const Ended ended = run(place, more);
    INFO(ended.errors);
    CHECK(ended.code == 0);
    CHECK(!fs::exists(place.dir / "run"));
    return ended.output;
  };
  CHECK_THAT(plan({"--global_batch_size", "2048"}), Catch::Contains("= 2048 per step"));
  CHECK_THAT(plan({"--global_batch_size", "2048", "--parallel", "2"}), Catch::Contains("1024 per device"));
  CHECK_THAT(plan({"--global_batch_size", "2048", "--parallel", "3"}),
             Catch::Contains("2048 rows per step over 3 devices: 682 per device, 2 fewer by rounding"));
  CHECK_THAT(plan({"--parallel", "3", "--global_batch_size", "2"}),
             Catch::Contains("2 rows per step over 3 devices: 1 per device, 1 more by rounding"));
  CHECK_THAT(plan({"--batch_size", "512"}), Catch::Contains("512") && !Catch::Contains("2048"));
  CHECK_THAT(plan({"--batch_size", "512", "--global_batch_size", "2048"}), Catch::Contains("2048"));
  CHECK(nlohmann::json::parse(plan({"--json"})).contains("protocol"));
}

TEST_CASE("The presets by memory have the guide's limits", "[apps][rec]") {
  constexpr int64_t kGiB = int64_t{1} << 30;
  const auto is = [](const MemoryPreset& preset, int64_t batch, bool cache, int64_t devices) {
    return preset.global_batch_size == batch && preset.use_cache == cache && preset.devices == devices;
  };
  CHECK(is(preset_for_memory(24 * kGiB), 2048, true, 8));
  CHECK(is(preset_for_memory(8 * kGiB + 1), 2048, true, 8));
  CHECK(is(preset_for_memory(8 * kGiB), 1024, true, 4));
  CHECK(is(preset_for_memory(4 * kGiB), 1024, true, 4));
  CHECK(is(preset_for_memory(4 * kGiB - 1), 512, false, 2));
  CHECK(preset_for_memory(8 * kGiB).name == std::string("4_to_8gib"));
}

TEST_CASE("The settings that --help lists for a preset of trainkit-gpt2rec are those that it gives", "[apps][rec]") {
  const RecPlace place;
  const std::pair<std::string, int> devices[] = {
      {"over_8gib", 8}, {"4_to_8gib", 4}, {"under_4gib", 2}, {"gpt2_small", 8}};
  std::vector<std::string> presets;
  for (const auto& [preset, count] : devices) presets.push_back(preset);
  for (const auto& [preset, count] : devices) {
    RunOptions options;
    RecOptions rec;
    ConfigParser parser({.name = "trainkit-gpt2rec"});
    set_run_defaults(options);
    add_run_flags(parser, options);
    add_rec_flags(parser, rec);
    add_rec_presets(parser);
    REQUIRE(parser.parse({"--preset", preset}).ok());
    check_preset(parser, presets, preset);
    // --print_config shows the rows of each device, as the run uses them.
    const Ended config = run(place, {"--preset", preset, "--device", "cpu", "--print_config"});
    INFO(config.output << config.errors);
    REQUIRE(config.code == 0);
    const int64_t rows = *options.global_batch_size / count;
    CHECK_THAT(config.output, Catch::Contains("\nbatch_size: " + std::to_string(rows) + " "));
  }
}

TEST_CASE("Every split, protocol, filter and strategy trains", "[apps][rec]") {
  const RecPlace place;
  for (const std::vector<std::string>& more : {std::vector<std::string>{"--split", "leave_one_out"},
                                               {"--split", "leave_one_out", "--sampled_negatives", "20"},
                                               {"--min_rating", "3"},
                                               {"--k_core", "5"},
                                               {"--topk", "3"},
                                               {"--strategy", "dp", "--parallel", "2"},
                                               {"--strategy", "dp", "--parallel", "2", "--negatives", "in_batch"},
                                               {"--strategy", "dp", "--parallel", "2", "--draw", "device"},
                                               {"--grad_accum_steps", "2"},
                                               {"--optimizer", "sparse_adam", "--ema", "0.9"},
                                               {"--optimizer", "sparse_adam", "--precision", "bf16"},
                                               {"--precision", "bf16"}}) {
    std::vector<std::string> given = more;
    given.insert(given.end(), {"--epochs", "1", "--overwrite"});
    const Ended ended = run(place, place.flags("run", given));
    INFO(more[0] << " " << more[1] << "\n" << ended.errors);
    CHECK(ended.code == 0);
  }
}

TEST_CASE("The GPT-2 model trains frozen, cached, unfrozen and with adapters, and can switch modes on resume",
          "[apps][rec]") {
  const RecPlace place;
  const auto with = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.end(), {"--model", "gpt2", "--n_embd", "16", "--n_layer", "1", "--max_tokens", "24"});
    if (std::find(more.begin(), more.end(), "--epochs") == more.end()) more.insert(more.end(), {"--epochs", "2"});
    const Ended ended = run(place, place.flags(name, more));
    INFO(ended.errors);
    CHECK(ended.code == 0);
    return ended.output;
  };
  CHECK_THAT(with("cached", {}), Catch::Contains("frozen, output cached on each device"));
  CHECK_THAT(with("dynamic", {"--no-use_cache"}), Catch::Contains("frozen, computed in every step"));
  const auto cached = losses(place.dir / "cached"), dynamic = losses(place.dir / "dynamic");
  REQUIRE(cached.size() == dynamic.size());
  for (size_t i = 0; i < cached.size(); ++i) CHECK(cached[i].loss == Approx(dynamic[i].loss).margin(1e-4));
  CHECK_THAT(with("trained", {"--no-freeze_gpt2"}), Catch::Contains("trained, computed in every step"));
  CHECK_THAT(with("lora", {"--lora_rank", "2"}), Catch::Contains("with adapters of rank 2, computed in every step"));
  CHECK_THAT(with("dp", {"--strategy", "dp", "--parallel", "2"}), Catch::Contains("2 logical replicas"));
  CHECK_THAT(with("sparse", {"--optimizer", "sparse_adam"}), Catch::Contains("test       ndcg@10"));
  // The guide's two stages.
  CHECK_THAT(with("cached", {"--resume", "latest", "--no-use_cache", "--epochs", "3"}),
             Catch::Contains("test       ndcg@10"));
  CHECK(json_of(place, "cached/summary.json").at("epochs") == 3);
}

TEST_CASE("A run that draws negatives on the device has the losses of one whose loader draws them", "[apps][rec]") {
  const RecPlace place;
  for (const char* negatives : {"uniform", "popularity", "in_batch"}) {
    for (const char* draw : {"loader", "device"}) {
      const Ended ended = run(place, place.flags(draw, {"--draw", draw, "--negatives", negatives, "--overwrite"}));
      INFO(ended.errors);
      REQUIRE(ended.code == 0);
    }
    CHECK(losses(place.dir / "loader") == losses(place.dir / "device"));
  }
}

TEST_CASE("Two replicas and two ranks train the same weights as one process, with either optimizer", "[apps][rec]") {
  const RecPlace place;
  const std::string optimizer = GENERATE("adamw", "sparse_adam");
  const std::vector<std::string> one = {"--batch_size", "64", "--epochs", "3", "--optimizer", optimizer};
  REQUIRE(run(place, place.flags("one", one)).code == 0);
  const auto compare = [&](const std::string& name) {
    const auto expected = losses(place.dir / "one"), got = losses(place.dir / name);
    REQUIRE(got.size() == expected.size());
    for (size_t i = 0; i < got.size(); ++i) {
      CHECK(got[i].step == expected[i].step);
      CHECK(got[i].loss == Approx(expected[i].loss).epsilon(1e-4));
    }
    const auto mine = json_of(place, name + "/summary.json"), its = json_of(place, "one/summary.json");
    CHECK(mine.at("ndcg@10").get<double>() == Approx(its.at("ndcg@10").get<double>()).epsilon(1e-3));
  };
  const Ended dp = run(place, place.flags("dp", {"--batch_size", "32", "--epochs", "3", "--optimizer", optimizer,
                                                 "--strategy", "dp", "--parallel", "2"}));
  INFO(dp.errors);
  REQUIRE(dp.code == 0);
  compare("dp");
  auto flags = place.flags("ddp", {"--batch_size", "32", "--epochs", "3", "--optimizer", optimizer});
  flags.insert(flags.begin(),
               {"launch", "--nproc_per_node", "2", "--", std::string(TRAINKIT_BIN_DIR) + "/trainkit-gpt2rec"});
  const Ended ddp = run_to_end("trainkit", flags, place.dir.path().string());
  INFO(ddp.output << ddp.errors);
  REQUIRE(ddp.code == 0);
  compare("ddp");
}

TEST_CASE("The automatic optimizer is SparseAdam for many users and items on the CPU, and keeps that of older runs",
          "[apps][rec]") {
  const auto chosen = [](int64_t vectors, bool on_cpu = true, const auto&... change) {
    RunOptions run;
    set_run_defaults(run);
    RecOptions options;
    (change(run, options), ...);
    const std::string line = choose_optimizer(run, options, on_cpu, vectors);
    CHECK(line.empty() == (options.optimizer == "adamw"));
    return options.optimizer;
  };
  CHECK(chosen(6040 + 3706) == "adamw");  // MovieLens 1M
  CHECK(chosen(kSparseVectors) == "adamw");
  CHECK(chosen(kSparseVectors + 1) == "sparse_adam");
  CHECK(chosen(1 << 20, /*on_cpu=*/false) == "adamw");
  CHECK(chosen(1 << 20, true, [](RunOptions& run, RecOptions&) { run.resume = "latest"; }) == "adamw");
  CHECK(chosen(1 << 20, true, [](RunOptions& run, RecOptions&) { run.shard = Sharding::kOptimizer; }) == "adamw");
  CHECK(chosen(1 << 20, true, [](RunOptions& run, RecOptions&) { run.weight_decay = 0.1; }) == "adamw");
  CHECK(chosen(1 << 20, true, [](RunOptions&, RecOptions& options) { options.embedding_decay = 0.1; }) == "adamw");
}

TEST_CASE("Errors of trainkit-gpt2rec have the exit code of their class and one line", "[apps][rec]") {
  const RecPlace place;
  std::ofstream(place.dir / "bad.yaml") << "kcore: 8\n";
  std::ofstream(place.dir / "split.tsv") << "user\titem\n";
  fs::create_directory(place.dir / "cut");
  for (const char* name : {"movies.dat", "users.dat"})
    fs::copy_file(place.dir / "ml-1m/" + name, place.dir / "cut/" + name);
  std::ofstream(place.dir / "cut/ratings.dat") << read_text(place.dir / "ml-1m/ratings.dat").substr(0, 900);
  REQUIRE(run(place, place.flags("taken", {"--max_steps", "2", "--save_every", "2"})).code == 0);
  struct Case {
    int code;
    const char* text;
    std::vector<std::string> flags;
  };
  const std::vector<Case> cases = {
      {2, "error[cli.unknown] --kcore", place.flags("a", {"--kcore", "8"})},
      {2, "--data_dir", {"--output_dir", place.dir / "a"}},
      {2, "--model", place.flags("a", {"--model", "svd"})},
      {2, "--use_cache", place.flags("a", {"--model", "gpt2", "--use_cache", "--no-freeze_gpt2"})},
      {2, "--use_cache", place.flags("a", {"--model", "gpt2", "--use_cache", "--lora_rank", "2"})},
      {2, "--n_head", place.flags("a", {"--model", "gpt2", "--n_head", "3", "--n_embd", "16"})},
      {2, "--lora_targets: no layer is called 'foo'",
       place.flags("a", {"--model", "gpt2", "--n_embd", "16", "--n_layer", "1", "--max_tokens", "24", "--lora_rank",
                         "2", "--lora_targets", "foo", "--no-use_cache"})},
      {4, "encoder.json", place.flags("a", {"--model", "gpt2", "--vocab", place.dir / "ml-1m"})},

      {2, "--embed_dim", place.flags("a", {"--embed_dim", "0"})},
      {2, "--weight_decay: SparseAdam has no weight decay",
       place.flags("a", {"--optimizer", "sparse_adam", "--weight_decay", "0.1"})},
      {2, "--embedding_decay: SparseAdam has no weight decay",
       place.flags("a", {"--optimizer", "sparse_adam", "--embedding_decay", "0.1"})},
      {2, "--shard", place.flags("a", {"--optimizer", "sparse_adam", "--shard", "optimizer"})},
      {2, "--negatives", place.flags("a", {"--negatives", "none"})},
      {2, "--topk", place.flags("a", {"--topk", "0"})},
      {2, "--min_rating", place.flags("a", {"--min_rating", "-1"})},
      {2, "--data_format", place.flags("a", {"--data_format", "ml-20m"})},
      {2, "--output_dir", place.flags("taken")},
      {3, "bad.yaml:1:1", place.flags("a", {"--config", place.dir / "bad.yaml"})},
      {4, "cut/ratings.dat:", place.flags("a", {"--data_dir", place.dir / "cut"})},
      {4, "data.missing", place.flags("a", {"--data_dir", place.dir / "none"})},
      {4, "users.dat", place.flags("a", {"--data_dir", place.dir / "recbole", "--data_format", "ml-1m"})},
      {4, "split.tsv:1", place.flags("a", {"--split", place.dir / "split.tsv"})},
      {4, "split.tsv", place.flags("a", {"--split", place.dir / "taken" + "/split.tsv", "--min_rating", "4"})},
      {4, "too few items", place.flags("a", {"--sampled_negatives", "50", "--sampled_for", "user"})},
      {2, "--merge_lora", place.flags("a", {"--model", "gpt2", "--merge_lora"})},
      {2, "--plan_data", place.flags("a", {"--plan_data", "60x50x900"})},
      {2, "--plan_data", {"--dry_run", "--plan_data", "60x50x90000"}},
      {2, "--plan_data", {"--dry_run", "--plan_data", "60x50x+900"}},
      {2, "--plan_data", {"--dry_run", "--plan_data", "60x 50x900"}},
      {2, "--plan_data", {"--dry_run", "--plan_data", "60x50x18446744073709552516"}},  // 900 + 2^64
      {4, "ratings are left", place.flags("a", {"--k_core", "1000"})},
      {4, "absent", place.flags("a", {"--test_negatives", place.dir / "absent"})},
      {4, "absent", place.flags("a", {"--validation_negatives", place.dir / "absent"})},
      {5, "error[", place.flags("e", {"--resume", "latest"})},
      {5, "error[", place.flags("f", {"--init_from", place.dir / "ml-1m/movies.dat"})},
      {5, "embedding",
       place.flags("g", {"--init_from", place.dir / "taken" + "/best.safetensors", "--embed_dim", "4"})},
      {6, "error[", place.flags("ml-1m/movies.dat")},
  };
  for (const Case& bad : cases) {
    const Ended ended = run(place, bad.flags);
    INFO(bad.text << "\n" << ended.errors);
    CHECK(ended.code == bad.code);
    for (const char* name : {"a", "e", "f", "g"}) CHECK(has_only_error(place.dir / name));
    CHECK(ended.errors.starts_with("trainkit: error["));
    CHECK(ended.errors.find(bad.text) != std::string::npos);
    CHECK(ended.errors.substr(0, ended.errors.find('\n')).size() <= 400);
    CHECK(std::count(ended.errors.begin(), ended.errors.end(), '\n') <= 2);
  }
}

TEST_CASE("SIGTERM stops trainkit-gpt2rec with a checkpoint and exit code 143; it resumes with its split",
          "[apps][rec]") {
  const RecPlace place;
  check_stop("trainkit-gpt2rec",
             place.flags("run", {"--epochs", "100000", "--save_every", "1000000", "--early_stopping", "0"}), place.dir,
             "split.tsv", {"--split", "leave_one_out"});
}

TEST_CASE("trainkit-gpt2rec can read the demo data that it writes", "[apps][rec]") {
  const RecPlace place;
  const Ended made = run(place, {"--make_demo_data", place.dir / "demo"});
  INFO(made.errors);
  REQUIRE(made.code == 0);
  for (const char* format : {"ml-1m", "ml-100k", "recbole"}) {
    const Ended planned =
        run(place, {"--data_dir", place.dir / "demo/" + format, "--output_dir", place.dir / "run", "--dry_run"});
    INFO(planned.errors);
    CHECK(planned.code == 0);
    CHECK_THAT(planned.output, Catch::Contains("of 300 users and 200 items"));
  }
}
