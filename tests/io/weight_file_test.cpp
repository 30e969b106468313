#include "trainkit/io/weight_file.h"

#include <fstream>

#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A folder with a model in two files, and an index with this "weight_map".
std::string indexed(const TempDir& dir, const std::string& weight_map, const std::string& suffix = ".safetensors") {
  const NamedTensors first = {{"a.weight", torch::arange(3.)}, {"b", torch::ones({2})}},
                     second = {{"c", torch::zeros({2, 2})}};
  const auto save = [&](const std::string& name, const NamedTensors& tensors) {
    const std::string path = dir / name + suffix;
    REQUIRE(
        (suffix == ".bin" ? save_torch_file(Fs::posix(), path, tensors) : save_safetensors(Fs::posix(), path, tensors))
            .ok());
  };
  save("one", first);
  save("two", second);
  std::ofstream(dir / "model.index.json")
      << "{\n  \"metadata\": {\"total_size\": 36},\n  \"weight_map\": " << weight_map << "\n}\n";
  return dir / "model.index.json";
}

std::string refusal(const std::string& path) {
  const auto file = WeightFile::open(path);
  REQUIRE_FALSE(file.ok());
  CHECK(exit_code(file.status()) == ExitCode::kWeights);
  return error_line(file.status());
}

}  // namespace

TEST_CASE("A model in several files is read by its index", "[io][weight_file]") {
  TempDir dir;
  for (const std::string suffix : {".safetensors", ".bin"}) {
    const std::string map = R"({"a.weight": "oneX", "b": "oneX", "c": "twoX"})";
    std::string named = map;
    for (size_t at = named.find('X'); at != named.npos; at = named.find('X')) named.replace(at, 1, suffix);
    const auto file = WeightFile::open(indexed(dir, named, suffix));
    REQUIRE(file.status() == absl::OkStatus());
    CHECK(file->entries().size() == 3);
    CHECK(file->state_dict_prefix().value().empty());
    const auto tensors = file->tensors();
    REQUIRE(tensors.ok());
    REQUIRE(tensors->size() == 3);
    for (const auto& [name, tensor] : *tensors) {
      if (name == "c") CHECK(torch::equal(tensor, torch::zeros({2, 2})));
    }
    const auto part = file->tensors("a");
    REQUIRE(part.ok());
    CHECK(part->size() == 1);
    CHECK(part->front().first == "weight");
    CHECK_FALSE(file->tensors("nothing").ok());
  }
}

TEST_CASE("An invalid index is refused with the tensor of the error", "[io][weight_file]") {
  TempDir dir;
  const std::string one = R"("a.weight": "one.safetensors", "b": "one.safetensors")", all = one + R"(, "c": )";
  const std::pair<std::string, std::string> rows[] = {
      {"{" + all + R"("three.safetensors"})", "three.safetensors"},
      {"{" + all + R"("../outside.safetensors"})", "c: is in a file outside the index's folder (got '../outside"},
      {"{" + all + R"("/etc/passwd"})", "c: is in a file outside the index's folder"},
      {"{" + all + R"(".."})", "c: is in a file outside the index's folder"},
      {"{" + all + R"("a\\b"})", "c: is in a file outside the index's folder"},
      {"{" + all + R"("a\u0000b"})", "c: is in a file outside the index's folder"},
      {"{" + all + R"("one.safetensors"})", "c: is not in one.safetensors"},
      {"{" + all + "3}", "c: has no file name"},
      {"{" + one + R"(, "c": "two.safetensors", "d": "two.safetensors"})", "d: is not in two.safetensors"},
      {R"({"a.weight": "one.safetensors", "c": "two.safetensors"})",
       "b: is in another file than the index states, in two files, or not"},
      {R"({"b": "two.safetensors", "c": "two.safetensors", "a.weight": "one.safetensors"})", "b: is in another file"},
      {"{" + one + R"(, "b": "two.safetensors"})", "b: is a duplicate key"},
      {"{}", "weight_map: is missing, empty or not an object"},
      {"[]", "weight_map: is missing, empty or not an object"},
      {"{", "is not valid JSON"},
  };
  for (const auto& [map, problem] : rows) {
    CAPTURE(map);
    CHECK_THAT(refusal(indexed(dir, map)), Catch::Contains(problem));
  }

  const std::string path = indexed(dir, "{" + all + R"("two.safetensors"})");
  REQUIRE(WeightFile::open(path).ok());
  // A tensor that is in both files.
  REQUIRE(save_safetensors(Fs::posix(), dir / "two.safetensors", {{"b", torch::ones({2})}, {"c", torch::zeros({2, 2})}})
              .ok());
  CHECK_THAT(refusal(path),
             Catch::Contains("b: is in another file than the index states, in two files, or not listed"));
  // An index that refers to another index.
  std::filesystem::copy_file(path, dir / "two.safetensors", std::filesystem::copy_options::overwrite_existing);
  CHECK_THAT(refusal(path), Catch::Contains("two.safetensors"));
}
