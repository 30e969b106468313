#include "trainkit/train/weights.h"

#include <algorithm>
#include <limits>

#include "peak_memory.h"
#include "sanitizers.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A layer that shares its weight with another.
struct HeadImpl : torch::nn::Module {
  explicit HeadImpl(const at::Tensor& weight) { register_parameter("weight", weight); }
};

/// A small language model: the head shares the embedding's weight.
struct TiedImpl : torch::nn::Module {
  TiedImpl() {
    body = register_module("body", torch::nn::Linear(3, 2));
    embedding = register_parameter("embedding", torch::zeros({4, 2}));
    register_module("head", std::make_shared<HeadImpl>(embedding));
    counter = register_buffer("counter", torch::zeros({1}, torch::kLong));
  }
  torch::nn::Linear body{nullptr};
  at::Tensor embedding, counter;
};
TORCH_MODULE(Tied);

NamedTensors weights() {
  return {{"body.weight", torch::arange(6.).view({2, 3})},
          {"body.bias", torch::tensor({7.f, 8.f})},
          {"embedding", torch::arange(8.).view({4, 2})},
          {"counter", torch::tensor({9}, torch::kLong)}};
}

NamedTensors with_prefix(NamedTensors tensors, const std::string& prefix) {
  for (auto& named : tensors) named.first.insert(0, prefix);
  return tensors;
}

std::string saved(const TempDir& dir, const NamedTensors& tensors) {
  REQUIRE(save_torch_file(Fs::posix(), dir / "w.bin", tensors).ok());
  return dir / "w.bin";
}

bool is_loaded(Tied& model) {
  return torch::equal(model->body->weight, torch::arange(6.).view({2, 3})) &&
         torch::equal(model->embedding, torch::arange(8.).view({4, 2})) && model->counter.item<int64_t>() == 9;
}

}  // namespace

TEST_CASE("load_weights detects the format from the content", "[train][weights]") {
  TempDir dir;
  REQUIRE(save_torch_file(Fs::posix(), dir / "a.safetensors", weights()).ok());
  REQUIRE(save_safetensors(Fs::posix(), dir / "b.pt", weights()).ok());
  for (const char* name : {"a.safetensors", "b.pt"}) {
    Tied model;
    const auto loaded = load_weights(*model, dir / name);
    REQUIRE(loaded.status() == absl::OkStatus());
    CHECK(loaded->loaded == 4);
    CHECK(is_loaded(model));
    CHECK(model->body->weight.requires_grad());
  }
}

TEST_CASE("load_weights removes \"module.\" if all names have it", "[train][weights]") {
  TempDir dir;
  Tied model;
  REQUIRE(load_weights(*model, saved(dir, with_prefix(weights(), "module."))).ok());
  CHECK(is_loaded(model));
  NamedTensors some = weights();
  some[0].first = "module.body.weight";
  const auto status = load_weights(*model, saved(dir, some)).status();
  CHECK_THAT(error_line(status),
             Catch::Contains("1 missing (body.weight)") && Catch::Contains("1 unexpected (module.body.weight)"));
}

TEST_CASE("load_weights removes the names that PyTorch's wrappers add", "[train][weights]") {
  TempDir dir;
  for (const char* prefix : {"_orig_mod.", "module._orig_mod.", "_orig_mod.module.", "model.", "model.module.",
                             "model._orig_mod.", "_fsdp_wrapped_module."}) {
    CAPTURE(prefix);
    Tied model;
    const auto loaded = load_weights(*model, saved(dir, with_prefix(weights(), prefix)));
    REQUIRE(loaded.status() == absl::OkStatus());
    CHECK(is_loaded(model));
    CHECK(loaded->left_out.empty());
  }
  NamedTensors compiled = weights();  // a part of the model was compiled
  compiled[0].first = "body._orig_mod.weight";
  compiled[1].first = "body._orig_mod.bias";
  Tied model;
  REQUIRE(load_weights(*model, saved(dir, compiled)).ok());
  CHECK(is_loaded(model));

  NamedTensors averaged = with_prefix(weights(), "module.");
  averaged.emplace_back("n_averaged", torch::tensor(3));
  Tied average;
  const auto loaded = load_weights(*average, saved(dir, averaged));
  REQUIRE(loaded.status() == absl::OkStatus());
  CHECK(is_loaded(average));
  CHECK(loaded->left_out == std::vector<std::string>{"n_averaged"});
}

TEST_CASE("load_weights keeps a prefix that the model's names have", "[train][weights]") {
  struct Outer : torch::nn::Module {
    explicit Outer(const std::string& name) { inner = register_module(name, torch::nn::Linear(2, 1)); }
    torch::nn::Linear inner{nullptr};
  };
  TempDir dir;
  for (const std::string name : {"module", "model"}) {
    for (const std::string prefix : {"", "module.", "model."}) {
      CAPTURE(name, prefix);
      Outer model(name);
      const NamedTensors tensors = {{prefix + name + ".weight", torch::ones({1, 2})},
                                    {prefix + name + ".bias", torch::ones({1})}};
      REQUIRE(load_weights(model, saved(dir, tensors)).status() == absl::OkStatus());
      CHECK(model.inner->weight.sum().item<double>() == 2);
    }
  }
}

TEST_CASE("load_weights reads the weights of a checkpoint and names the rest", "[train][weights]") {
  TempDir dir;
  for (const char* container : {"state_dict", "model", "model_state_dict", "my_net"}) {
    CAPTURE(container);
    TorchValue file = TorchValue::dict();
    file.set("epoch", 3);
    TorchValue& model = file.set(container, TorchValue::dict());
    for (const auto& [name, tensor] : weights()) model.set("module." + name, tensor);
    TorchValue& moments = file.set("optimizer", TorchValue::dict()).set("state", TorchValue::dict());
    moments.set("0", TorchValue::dict()).set("exp_avg", torch::ones({2}));
    const bool is_usual = std::string(container) != "my_net";
    if (is_usual) file.set("best_acc1", torch::tensor(91.5));
    if (is_usual) file.set("rng_state", torch::zeros({8}, torch::kByte));
    file.set("loss", 0.25);
    REQUIRE(save_torch_value(Fs::posix(), dir / "c.pt", file).ok());
    Tied net;
    const auto loaded = load_weights(*net, dir / "c.pt");
    REQUIRE(loaded.status() == absl::OkStatus());
    CHECK(is_loaded(net));
    auto left_out = loaded->left_out;
    std::sort(left_out.begin(), left_out.end());
    CHECK(left_out == (is_usual ? std::vector<std::string>{"best_acc1", "epoch", "loss", "optimizer", "rng_state"}
                                : std::vector<std::string>{"epoch", "loss", "optimizer"}));
  }
  TorchValue flat = TorchValue::dict();
  for (const auto& [name, tensor] : weights()) flat.set(name, tensor);
  flat.set("epoch", 3);
  flat.set("optimizer", TorchValue::dict()).set("x", torch::ones({1}));
  REQUIRE(save_torch_value(Fs::posix(), dir / "flat.pt", flat).ok());
  Tied net;
  const auto loaded = load_weights(*net, dir / "flat.pt");
  REQUIRE(loaded.status() == absl::OkStatus());
  CHECK(loaded->left_out == std::vector<std::string>{"optimizer", "epoch"});
}

TEST_CASE("A BatchNorm layer counts no batches if the file lacks num_batches_tracked", "[train][weights]") {
  TempDir dir;
  const auto model = [] { return torch::nn::Sequential(torch::nn::Linear(2, 2), torch::nn::BatchNorm1d(2)); };
  auto before = model(), after = model(), part = model();
  NamedTensors tensors;
  for (const auto& [name, tensor] : named_tensors(*before)) {
    if (!name.ends_with("num_batches_tracked")) tensors.emplace_back("module." + name, tensor.clone().fill_(2));
  }
  REQUIRE(tensors.size() == 6);
  after->forward(torch::randn({4, 2}));
  const std::string path = saved(dir, tensors);
  REQUIRE(load_weights(*after, path).status() == absl::OkStatus());
  const auto& norm = *after->children()[1]->as<torch::nn::BatchNorm1d>();
  CHECK(norm.num_batches_tracked.item<int64_t>() == 0);
  CHECK(norm.running_mean.sum().item<double>() == 4);
  const auto loaded = load_weights(*part, path, {.partial = true});
  REQUIRE(loaded.ok());
  CHECK(loaded->missing.empty());
  tensors.pop_back();  // running_var: not a file of a BatchNorm without counts
  tensors.pop_back();
  CHECK_THAT(error_line(load_weights(*after, saved(dir, tensors)).status()), Catch::Contains("1.num_batches_tracked"));
}

TEST_CASE("load_weights lets a program put rows into another order", "[train][weights]") {
  TempDir dir;
  Tied model;
  const auto reverse = [](NamedTensors& file, const NamedTensors& own) {
    CHECK(own.size() == 4);
    for (auto& [name, tensor] : file) {
      if (name == "embedding") tensor = tensor.flip(0);
    }
    return absl::OkStatus();
  };
  REQUIRE(load_weights(*model, saved(dir, with_prefix(weights(), "module.")), {.adapt = reverse}).ok());
  CHECK(torch::equal(model->embedding, torch::arange(8.).view({4, 2}).flip(0)));
  const auto refuse = [](NamedTensors&, const NamedTensors&) { return absl::DataLossError("other users"); };
  CHECK(load_weights(*model, saved(dir, weights()), {.adapt = refuse}).status().message() == "other users");
}

TEST_CASE("load_weights accepts a tied tensor under either name or both", "[train][weights]") {
  TempDir dir;
  NamedTensors other = weights(), both = weights();
  other[2].first = "head.weight";
  both.emplace_back("head.weight", both[2].second);
  for (const NamedTensors& tensors : {other, both}) {
    Tied model;
    const auto loaded = load_weights(*model, saved(dir, tensors));
    REQUIRE(loaded.status() == absl::OkStatus());
    CHECK(is_loaded(model));
  }
}

TEST_CASE("load_weights renames by the first matching rule", "[train][weights]") {
  TempDir dir;
  NamedTensors tensors = with_prefix(weights(), "net.");
  Tied model;
  const std::string path = saved(dir, tensors);
  REQUIRE(load_weights(*model, path, {.prefix = "net"}).ok());
  CHECK(is_loaded(model));
  Tied again;
  REQUIRE(load_weights(*again, path, {.rename = {{"net.body", "body"}, {"net.", ""}, {"body", "never"}}}).ok());
  CHECK(is_loaded(again));
  const auto twice = load_weights(*again, path, {.rename = {{"net.body.bias", "embedding"}, {"net.", ""}}});
  CHECK_THAT(error_line(twice.status()), Catch::Contains("embedding: is a duplicate name after renaming"));
}

TEST_CASE("load_weights reports mismatches by name and changes nothing", "[train][weights]") {
  TempDir dir;
  NamedTensors tensors = weights();
  tensors[0].second = torch::ones({3, 2});
  tensors[1].first = "extra";
  const std::string path = saved(dir, tensors);
  Tied model;
  const at::Tensor before = model->body->bias.detach().clone();
  const auto status = load_weights(*model, path).status();
  CHECK(exit_code(status) == ExitCode::kWeights);
  CHECK_THAT(error_line(status), Catch::Contains("1 missing (body.bias)") && Catch::Contains("1 unexpected (extra)") &&
                                     Catch::Contains("body.weight: (3, 2) in the file, (2, 3) here"));
  CHECK(model->counter.item<int64_t>() == 0);
  const auto part = load_weights(*model, path, {.partial = true});
  REQUIRE(part.ok());
  CHECK(part->loaded == 2);
  CHECK(part->missing == std::vector<std::string>{"body.bias"});
  CHECK(part->unexpected == std::vector<std::string>{"extra"});
  CHECK(part->misshapen == std::vector<std::string>{"body.weight"});
  CHECK(model->counter.item<int64_t>() == 9);
  CHECK(torch::equal(model->body->bias, before));
  const auto nothing = load_weights(*model, saved(dir, {{"x", torch::ones({1})}}), {.partial = true});
  CHECK_THAT(error_line(nothing.status()), Catch::Contains("no tensor of the file matches"));
  CHECK(exit_code(load_weights(*model, dir / "none").status()) == ExitCode::kWeights);
}

TEST_CASE("load_weights leaves out the head of another number of classes", "[train][weights]") {
  TempDir dir;
  NamedTensors other = weights();
  other[1].second = torch::ones({5});  // body.bias of another size
  other.emplace_back("decoder.weight", torch::ones({3}));
  Tied model;
  const at::Tensor bias = model->body->bias.detach().clone();
  REQUIRE_FALSE(load_weights(*model, saved(dir, other)).ok());
  const auto loaded = load_weights(*model, saved(dir, other), {.skip = {"body.bias", "decoder."}});
  REQUIRE(loaded.status() == absl::OkStatus());
  CHECK(loaded->loaded == 3);
  CHECK(is_loaded(model));
  CHECK(torch::equal(model->body->bias, bias));
  // The rules apply after renaming, and a rule without a name is a mistake.
  Tied renamed;
  CHECK(load_weights(*renamed, saved(dir, other), {.rename = {{"decoder.", "head2."}}, .skip = {"body.bias", "head2."}})
            .ok());
  const absl::Status unused = load_weights(*renamed, saved(dir, other), {.skip = {"fc."}}).status();
  CHECK(exit_code(unused) == ExitCode::kWeights);
  CHECK_THAT(error_line(unused), Catch::Contains("fc.: matches no tensor"));
}

TEST_CASE("A mismatch names five tensors of each kind and counts the rest", "[train][weights]") {
  TempDir dir;
  NamedTensors more = weights();
  for (int i = 0; i < 9; ++i) more.emplace_back("extra." + std::to_string(i), torch::ones({1}));
  Tied model;
  const std::string line = error_line(load_weights(*model, saved(dir, more)).status());
  CHECK_THAT(line, Catch::Contains("9 unexpected (extra.0, extra.1, extra.2, extra.3, extra.4 and 4 more)"));
}

TEST_CASE("load_weights refuses values that become infinity in the model's dtype", "[train][weights]") {
  TempDir dir;
  Tied model;
  NamedTensors tensors = weights();
  tensors[1].second = torch::tensor({7.0, 1e300}, torch::kDouble);
  const at::Tensor before = model->body->bias.detach().clone();
  const auto status = load_weights(*model, saved(dir, tensors)).status();
  CHECK_THAT(error_line(status), Catch::Contains("error[weights.nonfinite]") &&
                                     Catch::Contains("body.bias: contains values that the model's Float cannot hold "
                                                     "(got '1 of 2 values'"));
  CHECK(torch::equal(model->body->bias, before));
  CHECK(load_weights(*model, saved(dir, tensors), {.allow_nonfinite = true}).ok());
  tensors[1].second = torch::tensor({7.0, 1e30}, torch::kDouble);
  CHECK(load_weights(*model, saved(dir, tensors)).ok());
}

TEST_CASE("load_weights refuses non-finite weights, except in masks", "[train][weights]") {
  TempDir dir;
  Tied model;
  const double inf = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  for (const double value : {inf, -inf, nan}) {
    NamedTensors tensors = weights();
    tensors[1].second = torch::tensor({7.0, value});
    const std::string path = saved(dir, tensors);
    const auto status = load_weights(*model, path).status();
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK_THAT(error_line(status), Catch::Contains("error[weights.nonfinite]") &&
                                       Catch::Contains("body.bias: contains infinity or NaN (got '1 of 2 values'"));
    CHECK(model->counter.item<int64_t>() == 0);  // nothing was changed
    CHECK(load_weights(*model, path, {.allow_nonfinite = true}).ok());
    model->counter.zero_();
  }
  for (const at::ScalarType small : {at::kHalf, at::kBFloat16, at::kFloat8_e5m2}) {
    NamedTensors tensors = weights();
    tensors[1].second = torch::tensor({7.0, nan}).to(small);
    CHECK_FALSE(load_weights(*model, saved(dir, tensors)).ok());
  }

  const auto load_mask = [&](double value) {
    torch::nn::BatchNorm1d norm(2);  // its running_mean is a buffer
    NamedTensors tensors;
    for (const auto& [name, tensor] : named_tensors(*norm)) tensors.emplace_back(name, tensor.clone());
    for (auto& [name, tensor] : tensors) {
      if (name == "running_mean") tensor.fill_(value);
    }
    return load_weights(*norm, saved(dir, tensors)).status();
  };
  CHECK(load_mask(-inf).ok());
  CHECK_THAT(error_line(load_mask(nan)), Catch::Contains("running_mean: contains infinity or NaN"));
}

namespace {

/// One large tensor.
struct TableImpl : torch::nn::Module {
  TableImpl(int64_t rows, at::ScalarType type) {
    weight = register_parameter("weight", torch::ones({rows, 1024}, type), /*requires_grad=*/false);
  }
  at::Tensor weight;
};
TORCH_MODULE(Table);

}  // namespace

TEST_CASE("load_weights needs no more memory than the model and a piece of the file", "[train][weights]") {
  if (kSanitized) return;
  TempDir dir;
  constexpr int64_t kRows = 16 << 10;  // 32 MiB in bfloat16, 64 MiB in float32
  const at::Tensor values = torch::randn({kRows, 1024});
  for (const auto type : {at::kFloat, at::kBFloat16}) {
    const NamedTensors tensors = {{"weight", values.to(type)}};
    REQUIRE(save_safetensors(Fs::posix(), dir / "w.safetensors", tensors).ok());
    REQUIRE(save_torch_file(Fs::posix(), dir / "w.pt", tensors).ok());
    for (const char* name : {"w.safetensors", "w.pt"}) {
      CAPTURE(name, c10::toString(type));
      Table model(kRows, at::kFloat);
      reset_peak_memory();
      const int64_t before = peak_memory();
      REQUIRE(load_weights(*model, dir / name).ok());
      CHECK(peak_memory() - before < 24 << 20);  // a piece of 8 MiB and its conversion
      CHECK(model->weight.equal(tensors[0].second.to(at::kFloat)));
    }
  }
}

TEST_CASE("load_weights finds a value that is not finite in any piece of a tensor", "[train][weights]") {
  TempDir dir;
  Table model(4096, at::kFloat);
  const int64_t count = model->weight.numel();  // two pieces
  for (const int64_t at : {int64_t{0}, count / 2 - 1, count / 2, count - 1}) {
    const at::Tensor values = torch::zeros({4096, 1024});
    values.view(-1)[at] = std::numeric_limits<float>::infinity();
    REQUIRE(save_safetensors(Fs::posix(), dir / "w.safetensors", {{"weight", values}}).ok());
    const absl::Status status = load_weights(*model, dir / "w.safetensors").status();
    CHECK_THAT(error_line(status), Catch::Contains("1 of 4194304 values"));
    CHECK(model->weight.equal(torch::ones({4096, 1024})));
  }
}

TEST_CASE("load_weights fills a parameter that is not contiguous", "[train][weights]") {
  TempDir dir;
  const at::Tensor values = torch::randn({2048, 1024}), target = torch::zeros({1024, 2048});
  struct Turned final : torch::nn::Module {
    explicit Turned(const at::Tensor& weight) { register_parameter("weight", weight.t(), false); }
  } turned(target);
  for (const auto save : {save_torch_file, +[](const Fs&fs, const std::string&path, const NamedTensors&tensors) {
                            return save_safetensors(fs, path, tensors);
                          }}) {
    target.zero_();
    REQUIRE(save(Fs::posix(), dir / "w.pt", {{"weight", values}}).ok());
    REQUIRE(load_weights(turned, dir / "w.pt").ok());
    CHECK(target.t().equal(values));
  }
}
