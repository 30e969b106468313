// trainkit-train on tables.
#include <cmath>
#include <fstream>

#include "apps/runs.h"
#include "nn/exported/handmade_model.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// 300 rows of 8 numbers, of which the last is sometimes missing in none; a price, and a class by name.
void write_table(const std::string& path, int64_t rows, bool with_targets) {
  torch::manual_seed(3);
  const at::Tensor numbers = at::rand({rows, 7}) * 50 + 100;
  std::ofstream file(path);
  file << "a,b,c,d,e,f,g,h";
  file << (with_targets ? ",price,kind\n" : "\n");
  for (int64_t row = 0; row < rows; ++row) {
    const at::Tensor values = numbers[row];
    for (int64_t i = 0; i < 7; ++i) file << values[i].item<float>() << ",";
    file << row;
    if (with_targets) {
      const auto a = values[0].item<double>(), b = values[1].item<double>();
      file << "," << 1000 + 20 * a - 10 * b << "," << (a < 125 ? "small" : "large");
    }
    file << "\n";
  }
}

/// The handmade model with another number of outputs.
void write_model(const std::string& path, int64_t outputs) {
  NamedTensors tensors = handmade_tensors();
  tensors[2].second = at::randn({outputs, 16}) * 0.3;
  tensors[3].second = at::zeros({outputs});
  REQUIRE(write_exported(path, handmade_description(), tensors).ok());
}

/// Two inputs with the names of columns: a number and a category, whose embeddings are added.
void write_model_by_name(const std::string& path) {
  Json description = handmade_description();
  description["inputs"] = Json::parse(R"json([{"name": "size", "dtype": "float32", "shape": ["s0", 1]},
                                              {"name": "city", "dtype": "int64", "shape": ["s0"]}])json");
  description["parameters"] = Json::parse(R"json([{"name": "line.weight", "requires_grad": true},
                                                  {"name": "cities.weight", "requires_grad": true}])json");
  description["operators"] = Json::parse(R"json([
    {"name": "aten::linear", "overload": "",
     "schema": "aten::linear(Tensor input, Tensor weight, Tensor? bias=None) -> Tensor"},
    {"name": "aten::embedding", "overload": "",
     "schema": "aten::embedding(Tensor weight, Tensor indices, SymInt padding_idx=-1, bool scale_grad_by_freq=False, bool sparse=False) -> Tensor"},
    {"name": "aten::add", "overload": "Tensor",
     "schema": "aten::add.Tensor(Tensor self, Tensor other, *, Scalar alpha=1) -> Tensor"}])json");
  description["train"] = Json::parse(R"json({
    "inputs": [["parameter", "line.weight"], ["parameter", "cities.weight"], ["input", 0], ["input", 1]],
    "calls": [{"op": 0, "args": {"input": {"v": 2}, "weight": {"v": 0}}},
              {"op": 1, "args": {"weight": {"v": 1}, "indices": {"v": 3}}},
              {"op": 2, "args": {"self": {"v": 4}, "other": {"v": 5}}}],
    "outputs": [{"v": 6}]})json");
  description["eval"] = description["train"];
  REQUIRE(write_exported(path, description, {{"line.weight", at::ones({1, 1})}, {"cities.weight", at::zeros({3, 1})}})
              .ok());
}

Ended run(const TempDir& dir, std::vector<std::string> flags) {
  return run_to_end("trainkit-train", flags, dir.path().string());
}

std::vector<std::string> training(const TempDir& dir, const std::vector<std::string>& more) {
  std::vector<std::string> flags = {"--model",      dir / "model.tkm",
                                    "--data_dir",   dir / "rows.csv",
                                    "--output_dir", dir / "run",
                                    "--device",     "cpu",
                                    "--lr",         "0.02",
                                    "--batch_size", "16"};
  flags.insert(flags.end(), more.begin(), more.end());
  return flags;
}

Json scores_of(const TempDir& dir) { return Json::parse(read_text(dir / "run/results/scores.json")); }

}  // namespace

TEST_CASE("trainkit-train predicts a column of a table in its own units", "[apps][train]") {
  const TempDir dir;
  write_table(dir / "rows.csv", 300, true);
  write_table(dir / "new.csv", 3, false);
  write_model(dir / "model.tkm", 1);
  const Ended trained =
      run(dir, training(dir, {"--target", "price", "--ignore", "kind", "--loss", "mse", "--epochs", "30"}));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  INFO(scores_of(dir).dump());
  CHECK(scores_of(dir).at("r2").get<double>() > 0.9);
  const Ended predicted = run(dir, {"predict", dir / "run", dir / "new.csv"});
  INFO(predicted.errors);
  REQUIRE(predicted.code == 0);
  // The prices of these rows are 1000 + 20 a - 10 b, between 1000 and 3000.
  const double price = std::stod(predicted.output.substr(predicted.output.find("\n0,") + 3));
  CHECK(std::abs(price - 2250) < 1250);
  CHECK_THAT(predicted.output, Contains("\n2,"));
}

TEST_CASE("trainkit-train classifies the rows of a table by name", "[apps][train]") {
  const TempDir dir;
  write_table(dir / "rows.csv", 300, true);
  write_model(dir / "model.tkm", 2);
  const Ended trained = run(dir, training(dir, {"--target", "kind", "--ignore", "price", "--epochs", "10"}));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  CHECK(scores_of(dir).at("accuracy").get<double>() > 0.8);
  const Ended predicted = run(dir, {"predict", dir / "run", dir / "rows.csv"});
  CHECK_THAT(predicted.output, Contains("p_large,p_small"));
}

TEST_CASE("Columns with the names of the model's inputs become these inputs", "[apps][train]") {
  const TempDir dir;
  write_model_by_name(dir / "model.tkm");
  std::ofstream file(dir / "rows.csv");
  file << "city,size,rent\n";
  for (int row = 0; row < 200; ++row)
    file << (row % 3 ? "Ulm," : "Bonn,") << row << "," << row + (row % 3 ? 50 : 0) << "\n";
  file.close();
  const Ended trained = run(dir, training(dir, {"--target", "rent", "--loss", "mse", "--epochs", "30"}));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  CHECK(scores_of(dir).at("r2").get<double>() > 0.99);
}

TEST_CASE("trainkit-train names the column that does not fit", "[apps][train]") {
  const TempDir dir;
  write_table(dir / "rows.csv", 30, true);
  write_model(dir / "model.tkm", 1);
  const auto problem = [&](const std::vector<std::string>& more) {
    const Ended ended = run(dir, training(dir, more));
    CHECK(ended.code != 0);
    return ended.errors;
  };
  CHECK_THAT(problem({"--target", "cost"}), Contains("no column") || Contains("cost"));
  // 9 numbers and a flag for each of the two kinds.
  CHECK_THAT(
      problem({"--target", "price", "--loss", "mse"}),
      Contains("x: does not have the shape of the model's input") && Contains("(30, 11)") && Contains("(any, 8)"));
  CHECK_THAT(problem({"--target", "kind", "--ignore", "price", "--loss", "mse"}), Contains("kind: has texts"));
  CHECK_THAT(problem({"--target", "kind", "--ignore", "price"}),
             Contains("kind: the model has another number of outputs"));
  CHECK_THAT(problem({"--target", "price", "--ignore", "kind"}), Contains("price: has numbers that are no classes"));
  CHECK_THAT(problem({}), Contains("--target COLUMN"));
}
