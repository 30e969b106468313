// Values and tensors next to weights: their bytes, and the errors of damaged files.
#include "trainkit/app/stored_values.h"

#include <ATen/Functions.h>

#include <catch2/catch.hpp>
#include <cmath>
#include <filesystem>
#include <limits>

#include "io/bytes.h"
#include "read_text.h"
#include "test_util.h"
#include "trainkit/core/fs.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

using Pairs = std::vector<std::pair<int64_t, std::string>>;

struct Classes {
  std::vector<std::string> labels;
  int64_t features = 0;
  Pairs pairs;
};

absl::Status load_classes(const std::string& path, Classes& classes) {
  return load_values(path, {{.key = "labels", .target = &classes.labels, .min_size = 2},
                            {.key = "features", .target = &classes.features, .min = 1, .max = 4096},
                            {.key = "pairs", .target = &classes.pairs, .group = "pairs"}});
}

}  // namespace

TEST_CASE("Values are stored as one line of JSON and loaded", "[app]") {
  const TempDir dir;
  const std::string path = dir / "classes.json";
  const std::vector<std::string> labels = {"corn", "\xc3\xa9peautre \"2\""};
  REQUIRE(save_values(path, {{"labels", labels}, {"features", 64}}).ok());
  CHECK(read_text(path) == "{\"features\":64,\"labels\":[\"corn\",\"\xc3\xa9peautre \\\"2\\\"\"]}\n");
  Classes classes;
  REQUIRE(load_classes(path, classes) == absl::OkStatus());
  CHECK(classes.labels == labels);
  CHECK(classes.features == 64);
  CHECK(classes.pairs.empty());

  const Pairs pairs = {{-3, "a"}, {std::numeric_limits<int64_t>::max(), ""}};
  REQUIRE(save_values(path, {{"labels", labels}, {"features", 1}, {"pairs", pairs}, {"other", "text"}}).ok());
  REQUIRE(load_classes(path, classes) == absl::OkStatus());
  CHECK(classes.pairs == pairs);

  REQUIRE(save_values(path, {{"", std::vector<std::string>{"a", "\xff"}}}).ok());
  CHECK(read_text(path) == "[\"a\",\"\xef\xbf\xbd\"]\n");
  std::vector<std::string> whole;
  REQUIRE(load_values(path, {{"", &whole}}).ok());
  CHECK(whole == std::vector<std::string>{"a", "\xef\xbf\xbd"});
}

TEST_CASE("A damaged file of values is an error with file and key", "[app]") {
  const TempDir dir;
  const std::string path = dir / "classes.json";
  const std::string good = R"({"labels": ["a", "b"], "features": 4, "pairs": [[1, "x"]]})";
  const auto with = [&](const std::string& from, const std::string& to) {
    std::string text = good;
    return text.replace(text.find(from), from.size(), to);
  };
  const std::vector<std::pair<std::string, std::string>> faults = {
      {"", "is not valid JSON"},
      {good.substr(0, 30), "is not valid JSON"},
      {good + "x", "is not valid JSON"},
      {good + std::string(1, '\0'), "is not valid JSON"},
      {with("4", "NaN"), "is not valid JSON"},
      {with("4", "1e999"), "is not valid JSON"},
      {with("\"a\"", "\"\xff\""), "is not valid JSON"},
      {with("4", std::string(20, '[') + std::string(20, ']')), "is nested deeper than 16 levels"},
      {with("\"pairs\"", "\"labels\""), "labels: is a duplicate key"},
      {"[]", "labels: is missing"},
      {"null", "labels: is missing"},
      {with("features", "feature"), "features: is missing"},
      {with("4", "\"4\""), "features: has another type (got '\"4\"', expected a 64-bit integer)"},
      {with("4", "4.0"), "features: has another type (got '4.0'"},
      {with("4", "true"), "features: has another type (got 'true'"},
      {with("4", "18446744073709551615"), "features: has another type"},
      {with("4", "1e30"), "features: has another type"},
      {with("4", "0"), "features: is out of range (got '0', expected 1 to 4096)"},
      {with("[\"a\", \"b\"]", "{}"), "labels: has another type (got 'object', expected a list)"},
      {with("\"b\"", "null"), "labels[1]: has another type (got 'null', expected a text)"},
      {with(", \"b\"", ""), "labels: has too few entries (got '1', expected 2 or more)"},
      {with("[1, \"x\"]", "[1, \"x\", 2]"), "pairs[0]: has another type (got 'array', expected a list of two)"},
      {with("[1, \"x\"]", "[1, 2]"), "pairs[0]: has another type (got '2', expected a text)"},
      {with("[1, \"x\"]", "[\"1\", \"x\"]"), "pairs[0]: has another type"},
  };
  Classes classes;
  write_bytes(path, good);
  REQUIRE(load_classes(path, classes) == absl::OkStatus());
  for (const auto& [text, problem] : faults) {
    write_bytes(path, text);
    const absl::Status status = load_classes(path, classes);
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "run.file");
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_line(status).find(path) != std::string::npos);
    CHECK(error_line(status).find(problem) != std::string::npos);
  }
  CHECK(exit_code(load_classes(dir / "none", classes)) == ExitCode::kWeights);
  const absl::Status own = load_values(dir / "none", {}, {.exit_code = ExitCode::kData, .id = "data.split"});
  CHECK(exit_code(own) == ExitCode::kData);
  CHECK(id_of(own) == "data.split");
}

TEST_CASE("Tensors are stored with values as metadata, and their shapes must agree", "[app]") {
  const TempDir dir;
  const std::string path = dir / "scaling.safetensors";
  const StoredValues good = {
      {"mean", at::arange(3, at::kFloat)}, {"std", at::ones({3})}, {"labels", std::vector<std::string>{"a", "b"}}};
  const StoredValues both = {{"basis", at::ones({2, 3})}, {"offset", at::ones({2}, at::kLong)}};
  at::Tensor mean, deviation, basis, offset;
  std::vector<std::string> labels;
  const auto load = [&] {
    return load_values(path, {{.key = "mean", .target = &mean, .shape = "features"},
                              {.key = "std", .target = &deviation, .shape = "features"},
                              {.key = "basis", .target = &basis, .shape = "2 features", .group = "basis"},
                              {.key = "offset", .target = &offset, .shape = "2", .dtype = at::kLong, .group = "basis"},
                              {.key = "labels", .target = &labels, .min_size = 2}});
  };
  REQUIRE(save_values(path, good).ok());
  CHECK(SafetensorsFile::open(path)->metadata() == SafetensorsMetadata{{"labels", R"(["a","b"])"}});
  REQUIRE(load() == absl::OkStatus());
  CHECK(at::equal(mean, at::arange(3, at::kFloat)));
  CHECK(labels == std::vector<std::string>{"a", "b"});
  CHECK_FALSE(basis.defined());
  const auto changed = [&](StoredValues values, const StoredValues& of = {}) {
    for (const auto& [key, value] : of) values[key] = value;
    return values;
  };
  REQUIRE(save_values(path, changed(good, both)).ok());
  REQUIRE(load() == absl::OkStatus());
  CHECK(basis.sizes() == at::IntArrayRef{2, 3});

  const std::vector<std::pair<StoredValues, std::string>> faults = {
      {{{"mean", at::ones({3})}}, "std: is missing"},
      {changed(good, {{"mean", at::ones({3}, at::kDouble)}}),
       "mean: has another type or shape (got 'Double (3)', expected Float (features))"},
      {changed(good, {{"mean", at::ones({0})}}), "mean: has another type or shape"},
      {changed(good, {{"mean", at::ones({3, 1})}}), "mean: has another type or shape"},
      {changed(good, {{"std", at::ones({4})}}), "std: has another type or shape (got 'Float (4)'"},
      {changed(good, {{"std", at::full({3}, NAN)}}), "std: has a value that is not finite"},
      {changed(good, {{"std", at::full({3}, INFINITY)}}), "std: has a value that is not finite"},
      {changed(good, {{"offset", at::ones({2}, at::kLong)}}), "basis: is missing"},
      {changed(changed(good, both), {{"basis", at::ones({3, 3})}}), "expected Float (2, features))"},
      {changed(good, {{"labels", "a"}}), "labels: has another type (got '\"a\"', expected a list)"},
      {changed(good, {{"labels", at::ones({2})}}), "labels: is missing"},
  };
  for (const auto& [values, problem] : faults) {
    REQUIRE(save_values(path, values).ok());
    const absl::Status status = load();
    INFO(problem << " / " << error_line(status));
    CHECK(id_of(status) == "run.file");
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_line(status).find(problem) != std::string::npos);
  }
  REQUIRE(save_safetensors(Fs::posix(), path, {{"mean", at::ones({3})}, {"std", at::ones({3})}}, {{"labels", "[\"a\""}})
              .ok());
  CHECK(error_line(load()).find("labels: has another type") != std::string::npos);
  REQUIRE(save_values(path, good).ok());
  std::filesystem::resize_file(path, std::filesystem::file_size(path) - 1);
  CHECK(exit_code(load()) == ExitCode::kWeights);
  REQUIRE(save_values(path, {{"labels", "a"}}).ok());  // JSON
  CHECK(exit_code(load()) == ExitCode::kWeights);
}
