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

TEST_CASE("A loop over the tensors of a temporary file visits them all", "[io][weight_file]") {
  TempDir dir;
  const NamedTensors saved = {{"a", torch::arange(1000.)}, {"b", torch::ones({3})}};
  REQUIRE(save_torch_file(Fs::posix(), dir / "w.pt", saved).ok());
  REQUIRE(save_safetensors(Fs::posix(), dir / "w.safetensors", saved).ok());
  for (const char* name : {"w.pt", "w.safetensors"}) {
    size_t i = 0;
    for (const auto& [tensor_name, tensor] : WeightFile::open(dir / name).value().tensors().value()) {
      CHECK(tensor_name == saved.at(i).first);
      CHECK(at::equal(tensor, saved.at(i++).second));
    }
    for (const auto& named : *WeightFile::open(dir / name).value().tensors()) i += named.second.defined();
    CHECK(i == 4);
  }
  const WeightFile file = WeightFile::open(dir / "w.pt").value();
  const absl::StatusOr<NamedTensors> plain = file.tensors();  // converts
  CHECK(plain->size() == 2);
  static_assert(!std::is_reference_v<decltype(file.tensors().value())>);
}

TEST_CASE("A damaged file that is named as PyTorch's is not called safetensors", "[io][weight_file]") {
  TempDir dir;
  for (const std::string name : {"w.pt", "w.pth", "pytorch_model.bin"}) {
    for (const std::string bytes : {"", "<html>404</html>", "\x01\x02\x03\x04\x05\x06\x07\x08\x09\x0a\x0b",
                                    "version https://git-lfs.github.com/spec/v1\noid sha256:0\n"}) {
      std::ofstream(dir / name, std::ios::binary) << bytes;
      const std::string line = refusal(dir / name);
      CHECK_THAT(line, Catch::Contains("[weights.format]") && !Catch::Contains("safetensors"));
    }
  }
  std::ofstream(dir / "w.safetensors") << "<html>404</html>";
  CHECK_THAT(refusal(dir / "w.safetensors"), Catch::Contains("safetensors"));
}
