// trainkit inspect and trainkit export as a user runs them.
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "apps/program.h"
#include "nn/exported/handmade_model.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/io/weight_file.h"
#include "trainkit/train/checkpoint.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
using OrderedJson = nlohmann::ordered_json;

namespace {

struct Tool {
  Tool(const TempDir& dir, const std::vector<std::string>& words) {
    Program program("trainkit", words, dir.path().string());
    code = program.wait();
    output = program.output();
    errors = program.errors();
  }
  int code;
  std::string output, errors;
};

const NamedTensors kWeights = {{"fc.weight", torch::arange(6.).view({2, 3})},
                               {"fc.bias", torch::ones({2}, torch::kBFloat16)}};

void save_checkpoint(const TempDir& dir) {
  auto store = CheckpointStore::open(dir / "run");
  REQUIRE(store.ok());
  REQUIRE(
      store->save(7, {.model = kWeights, .optimizer = {{"fc.weight.exp_avg", torch::zeros({2, 3})}}, .state = {}}) ==
      absl::OkStatus());
}

}  // namespace

TEST_CASE("inspect lists every kind of file, whatever its name") {
  TempDir dir;
  REQUIRE(save_torch_file(Fs::posix(), dir / "a.safetensors", kWeights).ok());
  REQUIRE(save_safetensors(Fs::posix(), dir / "b.pt", kWeights, {{"format", "pt"}}).ok());
  for (const char* name : {"a.safetensors", "b.pt"}) {
    const Tool tool(dir, {"inspect", dir / name, "--json"});
    INFO(tool.errors);
    REQUIRE(tool.code == 0);
    const OrderedJson file = OrderedJson::parse(tool.output)["files"][0];
    CHECK(file["format"] == (name[0] == 'a' ? "PyTorch zip" : "safetensors"));
    CHECK(file["values"] == 8);
    CHECK(file["bytes"] == 28);
    REQUIRE(file["tensors"].size() == 2);
    CHECK(file["tensors"][0] ==
          OrderedJson{{"name", "fc.weight"}, {"dtype", "float32"}, {"shape", {2, 3}}, {"bytes", 24}});
  }
  const Tool table(dir, {"inspect", dir / "a.safetensors"});
  CHECK_THAT(table.output, Catch::Contains("2 tensors, 8 values, 28 bytes") && Catch::Contains("bfloat16") &&
                               Catch::Contains("(2, 3)"));
}

TEST_CASE("inspect shows inputs and operators of an exported model") {
  TempDir dir;
  REQUIRE(write_exported(dir / "model.tkm").ok());
  const Tool tool(dir, {"inspect", dir / "model.tkm"});
  REQUIRE(tool.code == 0);
  CHECK_THAT(tool.output, Catch::Contains("exported model handmade.Net of PyTorch 2.11.0") &&
                              Catch::Contains("input x (any, 8) float32") && Catch::Contains("    2  aten::linear\n") &&
                              Catch::Contains("hidden.weight") && !Catch::Contains("schema"));
  REQUIRE(save_safetensors(Fs::posix(), dir / "bad.tkm", kWeights, {{"trainkit.model", "{}"}}).ok());
  CHECK_THAT(Tool(dir, {"inspect", dir / "bad.tkm"}).output, Catch::Contains("its description is damaged"));
}

TEST_CASE("export gives tied weights the names of an exported model, and refuses one that is none") {
  TempDir dir;
  nlohmann::json description = handmade_description();
  description["ties"] = {{"head.weight", "fc.weight"}, {"gone.weight", "gone"}};
  REQUIRE(write_exported(dir / "model.tkm", description).ok());
  REQUIRE(save_safetensors(Fs::posix(), dir / "w.safetensors", kWeights).ok());
  REQUIRE(Tool(dir, {"export", dir / "w.safetensors", dir / "w.pt", "--model", dir / "model.tkm"}).code == 0);
  const TorchFile file = TorchFile::open(dir / "w.pt").value();
  CHECK(file.entries().size() == 3);
  CHECK(file.tensor("head.weight").value().equal(kWeights[0].second));
  const Tool wrong(dir, {"export", dir / "w.safetensors", dir / "v.pt", "--model", dir / "w.safetensors"});
  CHECK(wrong.code == 5);
  CHECK_THAT(wrong.errors, Catch::Contains("is no exported model"));
}

TEST_CASE("inspect verifies a checkpoint and lists both of its files") {
  TempDir dir;
  save_checkpoint(dir);
  const Tool tool(dir, {"inspect", dir / "run", "--json"});
  INFO(tool.errors);
  REQUIRE(tool.code == 0);
  const OrderedJson all = OrderedJson::parse(tool.output);
  CHECK(all["step"] == 7);
  REQUIRE(all["files"].size() == 2);
  CHECK(all["files"][1]["tensors"][0]["name"] == "fc.weight.exp_avg");
  std::filesystem::resize_file(dir / "run/checkpoints/step-00000007/model.safetensors", 20);
  CHECK(Tool(dir, {"inspect", dir / "run"}).code == 5);
}

TEST_CASE("export writes a checkpoint's weights in either format, and converts a file to the other format") {
  TempDir dir;
  save_checkpoint(dir);
  for (const char* name : {"out.pt", "out.safetensors"}) {
    const Tool tool(dir, {"export", dir / "run", dir / name});
    INFO(tool.errors);
    REQUIRE(tool.code == 0);
    const auto file = WeightFile::open(dir / name);
    REQUIRE(file.ok());
    CHECK(file->format() == (std::string(name) == "out.pt" ? "PyTorch zip" : "safetensors"));
    const NamedTensors tensors = file->tensors().value();
    REQUIRE(tensors.size() == 2);
    for (const auto& [key, tensor] : tensors) {
      const at::Tensor expected = key == "fc.weight" ? kWeights[0].second : kWeights[1].second;
      CHECK(torch::equal(tensor, expected));
    }
  }
  CHECK(Tool(dir, {"export", dir / "out.pt", dir / "again.safetensors"}).code == 0);
  const Tool exists(dir, {"export", dir / "run", dir / "out.pt"});
  CHECK(exists.code == 2);
  CHECK_THAT(exists.errors, Catch::Contains("exists already") && Catch::Contains("--overwrite"));
  CHECK(Tool(dir, {"export", "--overwrite", dir / "run", dir / "out.pt"}).code == 0);
  CHECK(Tool(dir, {"export", dir / "run/checkpoints/latest", dir / "latest.pt"}).code == 0);
}

TEST_CASE("export reports a tensor that safetensors cannot hold, and the entries of a checkpoint that it leaves out") {
  TempDir dir;
  REQUIRE(save_torch_file(Fs::posix(), dir / "c.pt", {{"y", torch::ones({2}, torch::kComplexDouble)}}).ok());
  const Tool refused(dir, {"export", dir / "c.pt", dir / "c.safetensors"});
  CHECK(refused.code == 5);
  CHECK_THAT(refused.errors, Catch::Contains("error[weights.write] " + dir / "c.pt" +
                                             ": y: has a dtype that safetensors lacks (got 'ComplexDouble'"));
  CHECK_FALSE(std::filesystem::exists(dir / "c.safetensors"));
  CHECK(Tool(dir, {"export", dir / "c.pt", dir / "again.pt"}).code == 0);
  TorchValue checkpoint = TorchValue::dict();
  checkpoint.set("epoch", 3);
  checkpoint.set("state_dict", TorchValue::dict()).set("w", torch::ones({2}));
  checkpoint.set("best_acc1", torch::tensor(0.5));
  REQUIRE(save_torch_value(Fs::posix(), dir / "checkpoint.pt", checkpoint).ok());
  const Tool written(dir, {"export", dir / "checkpoint.pt", dir / "w.safetensors"});
  CHECK(written.code == 0);
  CHECK_THAT(written.output, Catch::Contains("wrote 1 tensors") &&
                                 Catch::Contains("checkpoint.pt also has best_acc1, epoch, which were left out"));
}

TEST_CASE("export refuses an ONNX file that it cannot write, by name") {
  TempDir dir;
  save_checkpoint(dir);
  std::ofstream(dir / "run/run.json") << R"({"program": "trainkit-transformer", "sessions": []})";
  const struct {
    std::vector<std::string> words;
    const char* says;
  } rows[] = {{{dir / "run", dir / "a.onnx"}, "error[onnx.operator] "},
              {{dir / "run", dir / "a.onnx"}, "trainkit-transformer cannot be written as ONNX"},
              {{dir / "run/checkpoints/latest", dir / "a.onnx", "--format", "onnx"}, "trainkit-transformer cannot be"},
              {{dir / "run", dir / "a.bin", "--format", "onnx"}, "a.bin: OUT: is no name of an ONNX file"},
              {{dir / "run", dir / "a.onnx", "--prefix", "ema"}, "--prefix: has no meaning for ONNX"}};
  for (const auto& row : rows) {
    std::vector<std::string> words = row.words;
    words.insert(words.begin(), "export");
    const Tool tool(dir, words);
    CAPTURE(row.words, tool.errors);
    CHECK(tool.code == 2);
    CHECK_THAT(tool.errors, Catch::Contains(row.says));
    CHECK_FALSE(std::filesystem::exists(dir / "a.onnx"));
    CHECK_FALSE(std::filesystem::exists(dir / "a.bin"));
  }
}

TEST_CASE("export refuses to replace the file that it reads") {
  TempDir dir;
  save_checkpoint(dir);
  const std::string best = dir / "best.safetensors", model = dir / "run/checkpoints/step-00000007/model.safetensors";
  REQUIRE(save_safetensors(Fs::posix(), best, kWeights, {{"step", "7"}}).ok());
  for (const auto& [source, out] : {std::pair(best, best), {dir / "run", model}}) {
    const Tool tool(dir, {"export", source, out, "--overwrite"});
    INFO(tool.errors);
    CHECK(tool.code == 2);
    CHECK_THAT(tool.errors, Catch::Contains("error[cli.value] " + out + ": OUT: is the file to export"));
  }
  CHECK(SafetensorsFile::open(best)->metadata().at("step") == "7");
  CHECK(Tool(dir, {"inspect", dir / "run"}).code == 0);
}

TEST_CASE("inspect and export report errors with their exit codes") {
  TempDir dir;
  const std::string evil = dir / "evil.pt";
  std::ofstream(evil, std::ios::binary) << "\x80\x02"
                                           "cos\nsystem\nX\4"
                                        << std::string(3, '\0') << "true\x85R.";
  const struct {
    std::vector<std::string> words;
    int code;
    const char* says;
  } rows[] = {{{"inspect"}, 2, "error[cli.word] FILE: not given"},
              {{"inspect", "a", "b"}, 2, "error[cli.word] b: unexpected argument (expected FILE)"},
              {{"inspect", dir / "none.pt"}, 5, "none.pt"},
              {{"inspect", evil}, 5, "global 'os.system' not allowed"},
              {{"inspect", dir.path().string()}, 5, "error["},
              {{"export", "a"}, 2, "error[cli.word] OUT: not given"},
              {{"export", "a", "--format"}, 2, "error[cli.word] OUT: not given"},
              {{"export", "--format", "torch", "a"}, 2, "error[cli.word] CHECKPOINT: not given"},
              {{"export", evil, dir / "out.txt"}, 2, "unknown file extension"},
              {{"export", evil, dir / "out.pt"}, 5, "global 'os.system' not allowed"}};
  for (const auto& row : rows) {
    const Tool tool(dir, row.words);
    CAPTURE(row.words, tool.errors);
    CHECK(tool.code == row.code);
    CHECK_THAT(tool.errors, Catch::Contains(row.says));
  }
  CHECK_FALSE(std::filesystem::exists(dir / "out.pt"));
  CHECK(Tool(dir, {"inspect", "--help"}).code == 0);
}
