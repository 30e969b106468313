// The description of an exported model: one that is read can be run, and fails at most with LibTorch's exception.
#include "trainkit/nn/exported_model.h"

#include <c10/util/Exception.h>

#include "nn/exported/handmade_model.h"
#include "target.h"

namespace trainkit::fuzz::exported_model {

std::vector<std::string> seeds() {
  test::Json sizes = test::handmade_description();
  // The number of rows, computed in Python's numbers, and a nested graph.
  sizes["operators"].push_back(test::Json::parse(
      R"json({"name": "aten::sym_size", "overload": "int", "schema": "aten::sym_size.int(Tensor self, int dim) -> SymInt"})json"));
  for (const char* mode : {"train", "eval"}) {
    test::Json& calls = sizes[mode]["calls"];
    calls.push_back(test::Json::parse(R"({"op": 3, "args": {"self": {"v": 4}, "dim": 0}})"));
    calls.push_back(test::Json::parse(R"({"py": "floordiv", "args": [{"v": 9}, 2]})"));
    calls.push_back(test::Json::parse(
        R"({"graph": {"inputs": 1, "calls": [{"op": 1, "args": {"self": {"v": 0}}}], "outputs": [{"v": 1}]},
            "grad": false, "args": [{"v": 8}]})"));
    calls.push_back(test::Json::parse(R"({"py": "getitem", "args": [{"v": 11}, 0]})"));
    sizes[mode]["outputs"][0] = test::value(12);
  }
  return {test::handmade_description().dump(), sizes.dump()};
}

int test_one_input(const uint8_t* data, size_t size) {
  static const NamedTensors tensors = test::handmade_tensors();
  const std::string path = folder() + "/model.tkm";
  const SafetensorsMetadata metadata = {{"trainkit.model", std::string(as_text(data, size))}};
  if (!save_safetensors(Fs::posix(), path, tensors, metadata).ok()) return 0;  // not UTF-8
  auto loaded = ExportedModel::load(path);
  if (!loaded.ok()) return require_named(loaded.status(), {"weights."}), 0;
  for (const bool training : {true, false}) {
    (*loaded)->train(training);
    try {
      (*loaded)->forward(at::ones({2, 8}));
    } catch (const c10::Error&) {
    }
  }
  return 0;
}

const Registered target("exported_model", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::exported_model
