// ExportedModel on files written by hand: the module, its errors, and files that must not be read.
#include "trainkit/nn/exported_model.h"

#include "nn/exported/handmade_model.h"
#include "nn/exported/python_numbers.h"
#include "test_util.h"
#include "trainkit/core/error.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

ExportedModel handmade(const TempDir& dir) {
  REQUIRE(write_exported(dir / "model.tkm").ok());
  return ExportedModel::load(dir / "model.tkm").value();
}

/// The text of the error of a file with a changed description; "" if it is read.
std::string problem_of(const std::function<void(Json&)>& change, const ExportedModelOptions& options = {}) {
  const TempDir dir;
  Json description = handmade_description();
  change(description);
  REQUIRE(write_exported(dir / "model.tkm", description).ok());
  const auto loaded = ExportedModel::load(dir / "model.tkm", options);
  if (loaded.ok()) return "";
  CHECK(exit_code(loaded.status()) == ExitCode::kWeights);
  return std::string(loaded.status().message());
}

Json& calls(Json& description) { return description["train"]["calls"]; }

}  // namespace

TEST_CASE("An exported model computes what its graph says, in both modes", "[nn][exported]") {
  const TempDir dir;
  ExportedModel model = handmade(dir);
  const std::map<std::string, at::Tensor> weights = [&] {
    std::map<std::string, at::Tensor> all;
    for (const auto& entry : model->named_parameters()) all[entry.key()] = entry.value();
    return all;
  }();
  CHECK(weights.size() == 4);
  torch::manual_seed(1);
  const at::Tensor x = at::randn({5, 8});
  const auto by_hand = [&](bool training) {
    const at::Tensor hidden = at::linear(x, weights.at("hidden.weight"), weights.at("hidden.bias")).relu();
    return at::linear(at::dropout(hidden, 0.2, training), weights.at("out.weight"), weights.at("out.bias"));
  };
  for (const bool training : {true, false}) {
    model->train(training);
    torch::manual_seed(2);
    const at::Tensor expected = by_hand(training);
    torch::manual_seed(2);
    CHECK(model->forward(x).equal(expected));
    torch::manual_seed(2);
    const NamedTensors outputs = model->outputs(NamedTensors{{"x", x}});
    REQUIRE(outputs.size() == 1);
    CHECK(outputs[0].first == "output");
    CHECK(outputs[0].second.equal(expected));
  }
}

TEST_CASE("A graph can name its outputs", "[nn][exported]") {
  const TempDir dir;
  Json description = handmade_description();
  description["outputs"] = {"logits", "auxiliary"};
  description["train"]["outputs"] = {value(8), value(6)};
  description["eval"]["names"] = {"logits"};
  REQUIRE(write_exported(dir / "model.tkm", description).ok());
  ExportedModel model = ExportedModel::load(dir / "model.tkm").value();
  const auto names = [&] {
    std::vector<std::string> all;
    for (const auto& [name, tensor] : model->outputs(NamedTensors{{"x", at::ones({2, 8})}})) all.push_back(name);
    return all;
  };
  CHECK(names() == std::vector<std::string>{"logits", "auxiliary"});
  model->eval();
  CHECK(names() == std::vector<std::string>{"logits"});
  CHECK_THAT(problem_of([](Json& d) { d["eval"]["names"] = Json::array(); }), Contains("without a name"));
  CHECK_THAT(problem_of([](Json& d) { d["eval"]["names"] = 3; }), Contains("damaged"));
}

TEST_CASE("A copy has its own weights, flags and mode", "[nn][exported]") {
  const TempDir dir;
  ExportedModel model = handmade(dir);
  model->eval();
  model->named_parameters()["hidden.bias"].set_requires_grad(false);
  const ExportedModel copy = model.copy();
  CHECK_FALSE(copy->is_training());
  CHECK_FALSE(copy->named_parameters()["hidden.bias"].requires_grad());
  CHECK(copy->named_parameters()["out.bias"].requires_grad());
  const torch::NoGradGuard no_grad;
  const at::Tensor before = model->forward(at::ones({2, 8}));
  copy->named_parameters()["out.bias"].add_(1);
  CHECK(model->forward(at::ones({2, 8})).equal(before));
}

TEST_CASE("float64 weights and devices follow Module::to", "[nn][exported]") {
  const TempDir dir;
  ExportedModel model = handmade(dir);
  model->to(at::kDouble);
  model->eval();
  CHECK_THROWS_WITH(model->forward(at::ones({2, 8}, at::kDouble)), Contains("input x must be (any, 8) Float"));
}

TEST_CASE("Inputs that do not fit are refused by name", "[nn][exported]") {
  const TempDir dir;
  ExportedModel model = handmade(dir);
  CHECK_THROWS_WITH(model->forward(at::ones({2, 9})), Contains("input x must be (any, 8) Float, got (2, 9) Float"));
  CHECK_THROWS_WITH(model->forward(at::ones({8})), Contains("input x must be"));
  CHECK_THROWS_WITH(model->forward(at::Tensor()), Contains("an undefined tensor"));
  CHECK_THROWS_WITH(model->forward(std::vector<at::Tensor>{}), Contains("has 1 inputs, got 0"));
  CHECK_THROWS_WITH(model->outputs(NamedTensors{{"y", at::ones({2, 8})}}), Contains("input x is missing"));
}

TEST_CASE("An error of an operator names the line of the Python model", "[nn][exported]") {
  const TempDir dir;
  REQUIRE(write_exported(dir / "model.tkm", handmade_description(),
                         {{"hidden.weight", at::ones({16, 7})},
                          {"hidden.bias", at::ones({16})},
                          {"out.weight", at::ones({4, 16})},
                          {"out.bias", at::ones({4})}})
              .ok());
  ExportedModel model = ExportedModel::load(dir / "model.tkm").value();
  CHECK_THROWS_WITH(model->forward(at::ones({2, 8})),
                    Contains("in aten::linear of (2, 8) Float, (16, 7) Float, (16) Float") &&
                        Contains("net.py:7 in forward: x = self.hidden(x)"));
}

TEST_CASE("Files that are damaged, of another kind or hostile are refused before anything runs", "[nn][exported]") {
  CHECK(problem_of([](Json&) {}) == "");
  const TempDir dir;
  REQUIRE(save_safetensors(Fs::posix(), dir / "weights.safetensors", handmade_tensors()).ok());
  CHECK_THAT(std::string(ExportedModel::load(dir / "weights.safetensors").status().message()),
             Contains("is no exported model"));
  CHECK_FALSE(ExportedModel::load(dir / "none.tkm").ok());
  REQUIRE(write_exported(dir / "few.tkm", handmade_description(), {{"hidden.weight", at::ones({16, 8})}}).ok());
  CHECK_THAT(std::string(ExportedModel::load(dir / "few.tkm").status().message()),
             Contains("lacks the tensor hidden.bias"));

  CHECK_THAT(problem_of([](Json& d) { d["version"] = 2; }), Contains("is of version 2"));
  CHECK_THAT(problem_of([](Json& d) { d.erase("train"); }), Contains("damaged"));
  CHECK_THAT(problem_of([](Json& d) { d["sources"] = 3; }), Contains("damaged"));
  const auto with_operator = [](const char* name, const char* overload) {
    return [=](Json& d) {
      d["operators"][1] = Json{{"name", name}, {"overload", overload}, {"schema", "a::b() -> ()"}};
    };
  };
  CHECK_THAT(problem_of(with_operator("aten::from_file", "")), Contains("aten::from_file, which is not allowed"));
  CHECK_THAT(problem_of(with_operator("aten::set_", "source_Storage")), Contains("not allowed"));
  CHECK_THAT(problem_of(with_operator("mine::op", "")), Contains("mine::op, which is not allowed"));
  CHECK_THAT(problem_of(with_operator("mine::op", ""), {.operators = {"mine::op"}}),
             Contains("mine::op, which this LibTorch does not have"));
  CHECK_THAT(problem_of(with_operator("aten::relu", "none")), Contains("aten::relu.none, which this LibTorch"));
  CHECK_THAT(problem_of([](Json& d) { d["operators"][2]["schema"] = "aten::dropout(Tensor input, int p) -> Tensor"; }),
             Contains("aten::dropout has changed: its argument p"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[1]["args"]["self"] = value(6); }),
             Contains("a value that no earlier call has computed"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[1]["args"]["self"] = value(-1); }), Contains("no earlier call"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[0]["op"] = 3; }), Contains("unknown operator"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[0]["source"] = 2; }), Contains("no source"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[2]["args"]["p"] = "much"; }), Contains("a constant that is no float"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[2]["args"]["p"] = Json::array({0.1}); }),
             Contains("a list where float"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[2]["args"].erase("p"); }), Contains("needs an argument p"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[2]["args"]["q"] = 1; }), Contains("its argument q"));
  CHECK_THAT(problem_of([](Json& d) { d["train"]["outputs"][0] = value(99); }), Contains("no earlier call"));
  CHECK_THAT(problem_of([](Json& d) { d["train"]["outputs"].push_back(value(7)); }), Contains("without a name"));
  CHECK_THAT(problem_of([](Json& d) { d["train"]["inputs"][4][1] = 1; }), Contains("an input that it lacks"));
  CHECK_THAT(problem_of([](Json& d) { d["train"]["inputs"][0][1] = "body.weight"; }), Contains("body.weight"));
  CHECK_THAT(problem_of([](Json& d) { calls(d)[1] = Json::parse(R"({"py": "system", "args": [{"v": 5}]})"); }),
             Contains("'system', which this version"));
}

TEST_CASE("Numbers of a graph follow Python's rules", "[nn][exported]") {
  const auto call_python_function = [](const char* name, const std::vector<c10::IValue>& arguments) {
    return (*trainkit::detail::find_python_function(name))(arguments);
  };
  const auto whole = [&](const char* name, int64_t a, int64_t b) { return call_python_function(name, {a, b}).toInt(); };
  CHECK(whole("floordiv", -7, 2) == -4);
  CHECK(whole("floordiv", 7, -2) == -4);
  CHECK(whole("mod", -7, 3) == 2);
  CHECK(whole("mod", 7, -3) == -2);
  CHECK(whole("pow", 3, 4) == 81);
  CHECK(whole("max", 3, 4) == 4);
  CHECK(call_python_function("truediv", {int64_t{1}, int64_t{4}}).toDouble() == 0.25);
  CHECK(call_python_function("ite", {true, int64_t{1}, int64_t{4}}).toInt() == 1);
  CHECK(call_python_function("add", {1.5, int64_t{2}}).toDouble() == 3.5);
  CHECK(call_python_function("lt", {int64_t{2}, 2.5}).toBool());
  CHECK(call_python_function("getitem", {std::vector<int64_t>{5, 6, 7}, int64_t{-1}}).toInt() == 7);
  CHECK_THROWS_WITH(whole("floordiv", 1, 0), Contains("divided by 0"));
  CHECK_THROWS_WITH(whole("mul", INT64_MAX, 2), Contains("64 bits"));
  CHECK_THROWS_WITH(call_python_function("getitem", {std::vector<int64_t>{5}, int64_t{1}}), Contains("element 1"));
  CHECK_THROWS_WITH(call_python_function("add", {at::ones({1}), int64_t{1}}), Contains("add of a Tensor"));
}
