// The trainers of examples/: on tables, arrays and a text, on nothing but the kit.
#include <ATen/Context.h>
#include <ATen/Functions.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/runs.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/random.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Writes `rows` flats, whose price follows from size, rooms and city; some values are missing.
void write_flats(const std::string& path, int64_t rows, bool with_price) {
  std::ofstream out(path);
  out << (with_price ? "size,rooms,city,price\n" : "size,rooms,city\n");
  const char* const cities[] = {"Bonn", "Jena", "Kiel"};
  RandomStream random(hash_key(1));
  for (int64_t i = 0; i < rows; ++i) {
    const double size = 30 + 90 * random.uniform();
    const uint64_t rooms = 1 + random.below(4), city = random.below(3);
    const double price = 1000 * (2 * size + 20 * static_cast<double>(rooms) + 40 * static_cast<double>(city));
    out << size << ',' << (i % 17 == 3 ? "NA" : std::to_string(rooms)) << ',' << cities[city];
    out << (with_price ? "," + std::to_string(price) : "") << '\n';
  }
}

nlohmann::json json_of(const std::string& path) { return nlohmann::json::parse(read_text(path)); }

}  // namespace

TEST_CASE("The regression example trains, resumes, reports and predicts in the target's units", "[app][examples]") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  write_flats(dir / "flats.csv", 600, true);
  const std::vector<std::string> flags = {
      "--csv", dir / "flats.csv", "--target", "price",   "--output_dir", dir / "run", "--batch_size", "32", "--lr",
      "0.01",  "--device",        "cpu",      "--epochs"};
  const auto run = [&](std::vector<std::string> more) {
    more.insert(more.begin(), flags.begin(), flags.end());
    return run_to_end("example_table_regression", more, folder);
  };
  const Ended first = run({"20"});
  INFO(first.errors << first.output);
  REQUIRE(first.code == 0);
  CHECK_THAT(first.output, Catch::Contains("test       RMSE ") && Catch::Contains("  R2 0.9"));
  const auto scores = json_of(dir / "run/results/scores.json");
  CHECK(scores.at("r2").get<double>() > 0.95);
  CHECK(json_of(dir / "run/summary.json").at("rmse") == scores.at("rmse"));
  CHECK_THAT(read_text(dir / "run/report.html"), Catch::Contains("The largest errors"));
  const Ended more = run({"25", "--resume", "latest"});
  INFO(more.errors << more.output);
  REQUIRE(more.code == 0);
  CHECK(json_of(dir / "run/results/scores.json").at("r2").get<double>() > 0.95);

  write_flats(dir / "other.csv", 5, false);
  std::ofstream(dir / "other.csv", std::ios::app) << "100,3,Paris\n";
  const Ended predicted = run_to_end("example_table_regression",
                                     {"predict", dir / "run", dir / "other.csv", "--out", dir / "out.csv"}, folder);
  INFO(predicted.errors << predicted.output);
  REQUIRE(predicted.code == 0);
  const std::vector<std::string> lines = split_lines(read_text(dir / "out.csv"));
  REQUIRE(lines.size() == 7);
  CHECK(lines[0] == "row,predicted");
  for (size_t i = 1; i < lines.size(); ++i) {
    const double price = std::stod(lines[i].substr(lines[i].find(',') + 1));
    CHECK(price > 50e3);
    CHECK(price < 450e3);
  }
  CHECK_THAT(predicted.output, Catch::Contains("city: 1 value") && Catch::Contains("wrote "));
}

TEST_CASE("The example for arrays in folders trains on replicas, and predicts other folders", "[app][examples]") {
  const TempDir dir;
  const std::string folder = dir.path().string();
  at::manual_seed(1);
  for (int64_t row = 0; row < 120; ++row) {
    const std::string name = row % 3 == 0 ? "low" : row % 3 == 1 ? "middle" : "high";
    std::filesystem::create_directories(dir / ("data/" + name));
    const at::Tensor array = at::randn({4, 5}) * 0.2 + static_cast<double>(row % 3);
    REQUIRE(write_npy(dir / ("data/" + name + "/" + std::to_string(row) + ".npy"), array).ok());
  }
  const Ended trained = run_to_end("example_array_classes",
                                   {"--data_dir", dir / "data", "--output_dir", dir / "run", "--epochs", "20",
                                    "--batch_size", "8", "--lr", "0.01", "--parallel", "2", "--device", "cpu"},
                                   folder);
  INFO(trained.errors << trained.output);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.output, Catch::Contains("test       accuracy 100.00%"));
  CHECK_THAT(read_text(dir / "run/results/predictions.csv"),
             Catch::StartsWith("array,label,predicted,p_high,p_low,p_middle"));
  const Ended predicted = run_to_end("example_array_classes", {"predict", dir / "run", dir / "data"}, folder);
  INFO(predicted.errors << predicted.output);
  REQUIRE(predicted.code == 0);
  CHECK_THAT(predicted.output, Catch::Contains("array,predicted,p_high") && Catch::Contains("middle/1.npy,middle,"));
}

TEST_CASE("The example of a task of its own has a table, a report and predictions", "[app][examples]") {
  const TempDir dir;
  at::manual_seed(1);
  const at::Tensor x = at::randn({400, 4});
  std::filesystem::create_directories(dir / "data");
  REQUIRE(write_npy(dir / "data/x.npy", x).ok());
  REQUIRE(write_npy(dir / "data/y.npy", x.slice(1, 0, 3).gt(0).to(at::kFloat)).ok());
  const Ended trained = run_to_end("example_multi_label",
                                   {"--data_dir", dir / "data", "--output_dir", dir / "run", "--epochs", "20",
                                    "--batch_size", "16", "--lr", "0.05", "--device", "cpu"},
                                   dir.path().string());
  INFO(trained.errors << trained.output);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.output, Catch::Contains("test       macro F1 9"));
  CHECK_THAT(read_text(dir / "run/report.html"), Catch::Contains("Labels of the test rows"));
  REQUIRE(write_npy(dir / "new.npy", at::tensor({3.0F, -3.0F, 3.0F, 0.0F}).view({1, 4})).ok());
  const Ended predicted =
      run_to_end("example_multi_label", {"predict", dir / "run", dir / "new.npy"}, dir.path().string());
  INFO(predicted.errors << predicted.output);
  CHECK_THAT(predicted.output, Catch::Contains("row,labels\n0,0 2"));
}

TEST_CASE("The example for text has perplexity, the same for two replicas, and generated texts", "[app][examples]") {
  const TempDir dir;
  std::ofstream text(dir / "text.txt");
  for (int i = 0; i < 800; ++i) text << "the number " << i % 7 << "\n";
  text.close();
  const auto run = [&](const std::string& name, std::vector<std::string> more) {
    more.insert(more.begin(),
                {"--input", dir / "text.txt", "--output_dir", dir / name, "--lr", "0.01", "--device", "cpu"});
    const Ended ended = run_to_end("example_char_model", more, dir.path().string());
    INFO(ended.errors << ended.output);
    REQUIRE(ended.code == 0);
    return ended.output;
  };
  const std::string output = run("run", {"--epochs", "12", "--batch_size", "8"});
  CHECK_THAT(output, Catch::Contains("  perplexity 1.") && Catch::Contains("  bits per character 0.") &&
                         Catch::Contains("--- text generated by the model ---\nthe number "));
  CHECK_THAT(read_text(dir / "run/report.html"), Catch::Contains("Text generated by the model"));
  const auto final = [&](const std::string& name) { return json_of(dir / (name + "/summary.json")).at("final"); };
  CHECK(final("run").at("val_bits_per_character").get<double>() < 0.5);
  run("one", {"--max_steps", "4", "--batch_size", "8"});
  run("two", {"--max_steps", "4", "--parallel", "2", "--batch_size", "4"});
  CHECK(final("two").at("val_perplexity").get<double>() ==
        Approx(final("one").at("val_perplexity").get<double>()).epsilon(1e-3));
  run("run", {"--epochs", "13", "--batch_size", "8", "--resume", "latest"});
}
