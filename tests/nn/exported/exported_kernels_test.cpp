// Exported models on the library's own kernels: the losses of LibTorch's operators within rounding, and these operators
// where a kernel does not apply.
#include "nn/cpu/tile_product.h"
#include "nn/exported/made_model.h"
#include "recorded_operations.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

constexpr int64_t kClasses = 10, kTime = 12, kWidth = 32;

/// Two convolutions with batch normalisation and ReLU, a view, a linear layer. `groups` of the second convolution.
absl::Status write_conv_net(const std::string& path, int64_t groups = 1) {
  torch::manual_seed(3);
  MadeModel model({{"first", torch::randn({16, 3, 3, 3}) * 0.3},
                   {"bias", torch::randn({16}) * 0.1},
                   {"scale", torch::rand({16}) + 0.5},
                   {"shift", torch::randn({16}) * 0.1},
                   {"running_mean", torch::zeros({16})},
                   {"running_var", torch::ones({16})},
                   {"second", torch::randn({8, 16 / groups, 3, 3}) * 0.1},
                   {"out", torch::randn({kClasses, 8 * 6 * 6}) * 0.1}},
                  {{"x", "float32", {-1, 3, 6, 6}}});
  return model.write(path, [&](MadeModel& m) {
    const Json same = Json::array({1, 1});
    Json y =
        m.call("aten::conv2d", {{"input", m["x"]}, {"weight", m["first"]}, {"bias", m["bias"]}, {"padding", same}});
    y = batch_norm(m, y);
    y = m.call("aten::relu_", {{"self", y}});
    y = m.call("aten::conv2d", {{"input", y}, {"weight", m["second"]}, {"padding", same}, {"groups", groups}});
    const Json rows = m.call("aten::sym_size.int", {{"self", y}, {"dim", 0}});
    y = m.call("aten::view", {{"self", y}, {"size", Json::array({rows, 8 * 6 * 6})}});
    return m.call("aten::linear", {{"input", y}, {"weight", m["out"]}});
  });
}

struct Attention {
  double dropout = 0;
  std::optional<int64_t> diagonal = std::nullopt;  // of a mask; else `is_causal`
};

/// 0.5 x (1 + tanh(0.79788 (x + 0.044715 x^3))), as transformers' NewGELUActivation computes it.
Json gelu_in_parts(MadeModel& m, const Json& x, double factor) {
  const Json half = m.call("aten::mul.Tensor", {{"self", x}, {"other", 0.5}});
  Json y = m.call("aten::pow.Tensor_Scalar", {{"self", x}, {"exponent", 3.0}});
  y = m.call("aten::mul.Tensor", {{"self", y}, {"other", factor}});
  y = m.call("aten::add.Tensor", {{"self", x}, {"other", y}});
  y = m.call("aten::mul.Tensor", {{"self", y}, {"other", std::sqrt(2 / M_PI)}});
  y = m.call("aten::add.Tensor", {{"self", m.call("aten::tanh", {{"self", y}})}, {"other", 1.0}});
  return m.call("aten::mul.Tensor", {{"self", half}, {"other", y}});
}

/// Causal attention over embedded tokens, and a GELU with `factor`.
absl::Status write_language_model(const std::string& path, const Attention& attention = {}, double factor = 0.044715) {
  torch::manual_seed(3);
  MadeModel model({{"table", torch::randn({kClasses, kWidth})},
                   {"qkv", torch::randn({3 * kWidth, kWidth}) * 0.2},
                   {"out", torch::randn({kClasses, kWidth}) * 0.2}},
                  {{"x", "int64", {-1, kTime}}});
  return model.write(path, [&](MadeModel& m) {
    const Json x = m.call("aten::embedding", {{"weight", m["table"]}, {"indices", m["x"]}});
    const Json qkv = m.call("aten::linear", {{"input", x}, {"weight", m["qkv"]}});
    const Json parts = m.call("aten::split.Tensor", {{"self", qkv}, {"split_size", kWidth}, {"dim", 2}});
    const auto heads = [&](int64_t part) {
      const Json one = m.python("getitem", Json::array({parts, part}));
      const Json split = m.call("aten::view", {{"self", one}, {"size", {-1, kTime, 2, kWidth / 2}}});
      return m.call("aten::transpose.int", {{"self", split}, {"dim0", 1}, {"dim1", 2}});
    };
    const Json query = heads(0), key = heads(1);
    Json arguments = {{"query", query},
                      {"key", key},
                      {"value", heads(2)},
                      {"dropout_p", m.is_training() ? attention.dropout : 0},
                      {"is_causal", !attention.diagonal}};
    if (attention.diagonal) {
      const Json ones = m.call("aten::ones", {{"size", {1, 1, kTime, kTime}}, {"dtype", {{"dtype", "bool"}}}});
      arguments["attn_mask"] = m.call("aten::tril", {{"self", ones}, {"diagonal", *attention.diagonal}});
    }
    Json y = m.call("aten::scaled_dot_product_attention", arguments);
    y = m.call("aten::transpose.int", {{"self", y}, {"dim0", 1}, {"dim1", 2}});
    y = m.call("aten::reshape", {{"self", y}, {"shape", {-1, kTime, kWidth}}});
    y = gelu_in_parts(m, y, factor);
    return m.call("aten::linear", {{"input", y}, {"weight", m["out"]}});
  });
}

/// A batch normalisation and a linear layer.
absl::Status write_normalised_rows(const std::string& path) {
  torch::manual_seed(3);
  MadeModel model({{"scale", torch::rand({kWidth}) + 0.5},
                   {"shift", torch::randn({kWidth}) * 0.1},
                   {"running_mean", torch::zeros({kWidth})},
                   {"running_var", torch::ones({kWidth})},
                   {"out", torch::randn({kClasses, kWidth}) * 0.3}},
                  {{"x", "float32", {-1, kWidth}}});
  return model.write(path, [&](MadeModel& m) {
    const Json y = batch_norm(m, m["x"]);
    return m.call("aten::linear", {{"input", y}, {"weight", m["out"]}});
  });
}

/// The mean cross-entropy of scores as an output.
absl::Status write_loss(const std::string& path, double label_smoothing = 0) {
  torch::manual_seed(3);
  MadeModel model({{"out", torch::randn({kClasses, kWidth})}}, {{"x", "float32", {-1, kWidth}}, {"y", "int64", {-1}}});
  return model.write(path, [&](MadeModel& m) {
    const Json scores = m.call("aten::linear", {{"input", m["x"]}, {"weight", m["out"]}});
    return m.call("aten::cross_entropy_loss",
                  {{"self", scores}, {"target", m["y"]}, {"label_smoothing", label_smoothing}});
  });
}

struct Case {
  std::string name;
  std::function<absl::Status(const std::string&)> write;
  std::vector<at::Tensor> inputs;
  at::Tensor y;        // undefined: the output is the loss
  std::string kernel;  // that it runs on
};

std::vector<Case> cases() {
  torch::manual_seed(4);
  const at::Tensor images = torch::randn({8, 3, 6, 6}), tokens = torch::randint(kClasses, {4, kTime}),
                   rows = torch::randn({8, kWidth}), labels = torch::randint(kClasses, {8});
  return {{"images", [](const auto& path) { return write_conv_net(path); }, {images}, labels, "trainkit::convolution"},
          {"normalised rows", write_normalised_rows, {rows}, labels, "trainkit::batch_norm"},
          {"tokens",
           [](const auto& path) { return write_language_model(path); },
           {tokens},
           tokens.roll(-1, 1),
           "trainkit::causal_attention"},
          {"masked tokens",
           [](const auto& path) { return write_language_model(path, {.diagonal = 0}); },
           {tokens},
           tokens.roll(-1, 1),
           "trainkit::causal_attention"},
          {"a GELU of tokens",
           [](const auto& path) { return write_language_model(path); },
           {tokens},
           tokens.roll(-1, 1),
           "trainkit::bias_activation"},
          {"a loss", [](const auto& path) { return write_loss(path); }, {rows, labels}, {}, ""}};
}

ExportedModel loaded(const Case& one, bool exact) {
  const TempDir dir;
  TORCH_CHECK(one.write(dir / "model.tkm").ok());
  return ExportedModel::load(dir / "model.tkm", {.exact = exact}).value();
}

at::Tensor loss_of(ExportedModel& model, const Case& one) {
  const at::Tensor output = model->forward(one.inputs);
  if (!one.y.defined()) return output;
  return at::cross_entropy_loss(output.reshape({-1, kClasses}), one.y.reshape({-1}));
}

std::vector<double> losses(ExportedModel model, const Case& one, int64_t steps) {
  std::vector<double> found;
  for (int64_t step = 0; step < steps; ++step) {
    model->zero_grad();
    const at::Tensor loss = loss_of(model, one);
    loss.backward();
    const torch::NoGradGuard no_grad;
    for (at::Tensor& parameter : model->parameters()) parameter.sub_(parameter.grad(), 0.05);
    found.push_back(loss.item<double>());
  }
  return found;
}

}  // namespace

TEST_CASE("Losses on the library's kernels are those of LibTorch's operators within rounding", "[nn][exported]") {
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    const std::vector<double> ours = losses(loaded(one, false), one, 50), theirs = losses(loaded(one, true), one, 50);
    CHECK(ours.front() == Approx(theirs.front()).epsilon(1e-6));
    CHECK(ours.back() == Approx(theirs.back()).epsilon(1e-4));
    CHECK(theirs.back() < theirs.front());
  }
}

TEST_CASE("A graph's operators run on the library's kernels unless the model is loaded as exact", "[nn][exported]") {
  if (!trainkit::detail::has_tile_product()) TRAINKIT_SKIP("this processor has no AVX2");
  for (const Case& one : cases()) {
    if (one.kernel.empty()) continue;
    CAPTURE(one.name);
    ExportedModel ours = loaded(one, false), exact = loaded(one, true);
    CHECK(contains(operations_of([&] { loss_of(ours, one); }), one.kernel));
    CHECK_FALSE(contains(operations_of([&] { loss_of(exact, one); }), one.kernel));
  }
}

TEST_CASE("Calls that a kernel does not take run on LibTorch's operators", "[nn][exported]") {
  const auto all = cases();
  Case grouped = all[0], dropped = all[2], other_mask = all[2], other_activation = all[2], smoothed = all.back();
  grouped.write = [](const auto& path) { return write_conv_net(path, 2); };
  dropped.write = [](const auto& path) { return write_language_model(path, {.dropout = 0.5}); };
  other_mask.write = [](const auto& path) { return write_language_model(path, {.diagonal = 1}); };
  other_activation.write = [](const auto& path) { return write_language_model(path, {}, 0.05); };
  smoothed.write = [](const auto& path) { return write_loss(path, 0.1); };
  for (const Case* one : {&grouped, &dropped, &other_mask, &other_activation, &smoothed}) {
    CAPTURE(one->name);
    ExportedModel ours = loaded(*one, false), exact = loaded(*one, true);
    torch::manual_seed(1);
    const double found = loss_of(ours, *one).item<double>();
    torch::manual_seed(1);
    CHECK(found == Approx(loss_of(exact, *one).item<double>()).epsilon(1e-6));
  }
}

TEST_CASE("Under autocast to bfloat16 an exported model has the loss of LibTorch's operators within rounding",
          "[nn][exported]") {
  const AutocastGuard autocast(at::Device(at::kCPU), at::kBFloat16);
  for (const Case& one : cases()) {
    CAPTURE(one.name);
    ExportedModel ours = loaded(one, false), exact = loaded(one, true);
    const at::Tensor found = loss_of(ours, one), expected = loss_of(exact, one);
    CHECK(found.scalar_type() == expected.scalar_type());
    CHECK(found.item<double>() == Approx(expected.item<double>()).epsilon(2e-2));
  }
}

TEST_CASE("A gradient penalty on the library's kernels is that of LibTorch's operators", "[nn][exported]") {
  const auto all = cases();
  at::globalContext().setSDPUseFlash(false);  // it has no second derivative
  for (const Case& one : {all[0], all[2]}) {
    CAPTURE(one.name);
    const auto gradients = [&](ExportedModel model) {
      const auto first = torch::autograd::grad({loss_of(model, one)}, model->parameters(), {}, true, true);
      at::Tensor penalty = torch::zeros({});
      for (const at::Tensor& gradient : first) penalty = penalty + gradient.square().sum();
      return torch::autograd::grad({penalty}, model->parameters());
    };
    const auto ours = gradients(loaded(one, false)), theirs = gradients(loaded(one, true));
    REQUIRE(ours.size() == theirs.size());
    float size = 0;
    for (const at::Tensor& gradient : theirs) size = std::max(size, gradient.abs().max().item<float>());
    for (size_t k = 0; k < ours.size(); ++k) {
      CHECK((ours[k] - theirs[k]).abs().max().item<float>() < 1e-5F * size);
    }
  }
  at::globalContext().setSDPUseFlash(true);
}
