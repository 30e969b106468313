#include "memory/shape_operations.h"

#include <sys/resource.h>
#include <torch/torch.h>

#include <functional>
#include <optional>
#include <thread>

#include "test_util.h"

namespace trainkit {
namespace {

using detail::ComputeValues;
using detail::ShapesOnly;

/// Records this thread's operations without computing them.
struct Shapes {
  MemoryRecorder recorder{MemoryClass::kActivations, /*keep_trace=*/true, RecordedMemory::kUntouched};
  ShapesOnly only{recorder};
};

bool are_zeros(const at::Tensor& tensor) {
  const ComputeValues compute;
  return tensor.eq(0).all().item<bool>();
}

/// Returns the output of a new model for random numbers, and the gradients of its parameters and of its input.
template <typename Model>
std::vector<at::Tensor> outputs_and_gradients(Model model, at::IntArrayRef sizes, at::MemoryFormat format) {
  const at::Tensor x = torch::randn(sizes).contiguous(format).requires_grad_();
  std::vector<at::Tensor> inputs = {x};
  for (const at::Tensor& parameter : model->parameters()) inputs.push_back(parameter);
  const at::Tensor out = model->forward(x);
  std::vector<at::Tensor> all = torch::autograd::grad({out.sum()}, inputs);
  all.push_back(out.detach());
  return all;
}

/// Checks that results have the sizes, strides and dtypes of computed ones, and that large ones were not computed.
template <typename Run>
void check_shapes(const Run& run) {
  const std::vector<at::Tensor> expected = run();
  const Shapes shapes;
  const std::vector<at::Tensor> found = run();
  REQUIRE(found.size() == expected.size());
  for (size_t k = 0; k < expected.size(); ++k) {
    CAPTURE(k, expected[k].sizes());
    CHECK(found[k].sizes() == expected[k].sizes());
    CHECK(found[k].strides() == expected[k].strides());
    CHECK(found[k].scalar_type() == expected[k].scalar_type());
    if (found[k].numel() > 4096) CHECK(are_zeros(found[k]));
  }
  CHECK(!ShapesOnly::was_refused());
}

template <typename Make>
void check_model(const Make& make, at::IntArrayRef sizes, at::MemoryFormat format = at::MemoryFormat::Contiguous) {
  check_shapes([&] { return outputs_and_gradients(make(), sizes, format); });
}

TEST_CASE("Products, norms and losses without values have the sizes, strides and dtypes of computed ones") {
  using torch::nn::LinearOptions;
  check_model([] { return torch::nn::Linear(90, 70); }, {60, 90});
  check_model([] { return torch::nn::Linear(LinearOptions(90, 70).bias(false)); }, {4, 30, 90});
  check_model(
      [] {
        return torch::nn::Sequential(torch::nn::LayerNorm(torch::nn::LayerNormOptions({90})), torch::nn::GELU(),
                                     torch::nn::Linear(90, 70), torch::nn::Softmax(-1));
      },
      {4, 30, 90});
  check_shapes([] {
    const at::Tensor logits = torch::randn({60, 90}).requires_grad_(), target = torch::zeros({60}, at::kLong);
    const at::Tensor loss = torch::nn::functional::cross_entropy(logits.exp(), target) + logits.pow(2).mean();
    return torch::autograd::grad({loss}, {logits});
  });
  check_shapes([] {
    const at::Tensor table = torch::randn({600, 30}).requires_grad_(), ids = torch::zeros({4, 50}, at::kLong);
    const at::Tensor out = at::embedding(table, ids);
    std::vector<at::Tensor> all = torch::autograd::grad({at::where(out > 0, out, out * 2).sum()}, {table});
    all.push_back(at::cat({out, out.transpose(0, 1).contiguous().view({4, 50, 30})}, 2));
    return all;
  });
}

TEST_CASE("Convolutions, batch norm and pooling without values have the shapes of computed ones") {
  using torch::nn::Conv1dOptions, torch::nn::Conv2dOptions, torch::nn::Conv3dOptions, torch::nn::ConvTranspose2dOptions;
  check_model([] { return torch::nn::Conv1d(Conv1dOptions(30, 40, 7).padding(1)); }, {8, 30, 90});
  check_model([] { return torch::nn::Conv2d(Conv2dOptions(30, 40, 3).stride(2).padding(1)); }, {8, 30, 19, 18});
  check_model(
      [] {
        return torch::nn::Conv2d(Conv2dOptions(40, 240, {3, 1}).dilation({2, 1}).groups(2));
      },
      {8, 40, 19, 18});
  check_model([] { return torch::nn::Conv3d(Conv3dOptions(10, 40, {5, 3, 3}).bias(false)); }, {8, 10, 9, 8, 7});
  check_model(
      [] {
        return torch::nn::ConvTranspose2d(ConvTranspose2dOptions(30, 40, 3).stride(2).padding(1).output_padding(1));
      },
      {8, 30, 19, 18});
  check_model(
      [] {
        return torch::nn::Sequential(torch::nn::Conv2d(Conv2dOptions(30, 40, 3)), torch::nn::BatchNorm2d(40),
                                     torch::nn::ReLU(), torch::nn::MaxPool2d(2));
      },
      {8, 30, 19, 18}, at::MemoryFormat::ChannelsLast);
  const Shapes shapes;
  // One number for all dimensions, as in at::convolution and at::conv2d.
  const at::Tensor input = torch::randn({2, 30, 9, 8}), weight = torch::randn({40, 30, 3, 3});
  CHECK(at::conv2d(input, weight, {}, 2, 1, 1).sizes() == at::IntArrayRef({2, 40, 5, 4}));
}

TEST_CASE("Attention without values and its gradients have the shape of computed ones") {
  check_shapes([] {
    const auto make_heads = [] { return torch::randn({2, 3, 90, 8}).requires_grad_(); };
    const at::Tensor query = make_heads(), key = make_heads(), value = make_heads();
    const at::Tensor out = at::scaled_dot_product_attention(query, key, value, {}, 0.0, /*is_causal=*/true);
    std::vector<at::Tensor> all = torch::autograd::grad({out.sum()}, {query, key, value});
    all.push_back(out.detach());
    return all;
  });
}

TEST_CASE("Operations compute nothing in the thread of the object and while it lives") {
  const at::Tensor ones = torch::ones({100, 100});
  {
    const Shapes shapes;
    CHECK(detail::shapes_only());
    const at::Tensor weight = torch::randn({100, 100});
    CHECK(are_zeros(weight));
    CHECK(are_zeros(at::mm(ones, weight) + 1));
    std::thread([&] {
      CHECK(!detail::shapes_only());
      CHECK(!are_zeros(torch::randn({100, 100})));
    }).join();
    const ComputeValues compute;
    CHECK(!detail::shapes_only());
    CHECK(!are_zeros(torch::randn({100, 100})));
  }
  CHECK(!detail::shapes_only());
  CHECK(!are_zeros(torch::randn({100, 100})));
}

TEST_CASE("Elementwise operations without values allocate the temporary tensors of a computed one") {
  const auto wide = [] { return torch::randn({100, 100}); };
  const auto narrow = [] { return torch::randn({100, 100}, at::kBFloat16); };
  for (const auto& run : std::vector<std::function<at::Tensor()>>{
           [&] { return wide() + narrow(); }, [&] { return wide() * narrow(); }, [&] { return wide() + wide(); },
           [&] { return wide() * 2; }, [&] { return narrow() * wide().sum(); }}) {
    const auto peak = [&](RecordedMemory memory) {
      MemoryRecorder recorder(MemoryClass::kActivations, true, memory);
      std::optional<ShapesOnly> shapes;
      if (memory == RecordedMemory::kUntouched) shapes.emplace(recorder);
      run();
      return recorder.peak().total();
    };
    CHECK(peak(RecordedMemory::kUntouched) == peak(RecordedMemory::kReal));
  }
}

TEST_CASE("A tensor that a model makes in its first step and keeps has its values") {
  const auto make = [] {
    const at::Tensor mask = torch::full({100, 100}, -1.0).triu(1);
    return at::where(mask < 0, mask, torch::zeros({100, 100}).add(2)).relu();
  };
  const at::Tensor expected = make();
  at::Tensor kept;
  {
    const Shapes shapes;
    kept = make();
  }
  CHECK(kept.equal(expected));
}

TEST_CASE("Masks, positions and small numbers are computed from known values") {
  const at::Tensor ids = torch::arange(200).view({2, 100}), images = torch::ones({2, 100, 100});
  const Shapes shapes;
  CHECK(ids.remainder(2).eq(1).nonzero().size(0) == 100);
  CHECK(torch::arange(5).cumsum(0)[4].item<int64_t>() == 10);
  CHECK(torch::full({}, 0.5).mul(4).item<double>() == 2);
  CHECK(images.gt(0.5).nonzero().size(0) == 20000);
  CHECK(images.masked_select(ids.view({2, 100, 1}).lt(100)).size(0) == 10000);
  CHECK(!ShapesOnly::was_refused());
}

TEST_CASE("LibTorch's multi-head attention needs no values") {
  const Shapes shapes;
  const at::Tensor x = torch::randn({20, 4, 32});
  torch::nn::MultiheadAttention attention(32, 4);
  CHECK(std::get<0>(attention(x, x, x)).sizes() == x.sizes());
  CHECK(std::get<0>(attention(x.slice(0, 0, 10), x, x)).size(0) == 10);
  CHECK(!ShapesOnly::was_refused());
}

TEST_CASE("Operations that read an unknown value for the host or for a shape are refused") {
  const Shapes shapes;
  const at::Tensor brighter = torch::randn({2, 100, 100}) * 2;
  const auto is_refused = [](const auto& read) {
    CHECK_THROWS_AS(read(), c10::NotImplementedError);
    CHECK(ShapesOnly::was_refused());
  };
  CHECK(!ShapesOnly::was_refused());
  is_refused([&] { return brighter.sum().item<double>(); });
  is_refused([&] { return brighter.gt(1).nonzero(); });
  is_refused([&] { return brighter.index({brighter.gt(1)}); });
  is_refused([&] { return brighter.argmax(-1).max().item<int64_t>(); });
  is_refused([&] { return brighter.masked_select(brighter.gt(1)); });
}

TEST_CASE("Tensors without values need no physical memory") {
  const auto page_faults = [] {
    rusage usage = {};
    getrusage(RUSAGE_SELF, &usage);
    return usage.ru_minflt;
  };
  const Shapes shapes;
  const auto before = page_faults();
  const at::Tensor weight = torch::zeros({20000, 1000}).normal_().requires_grad_();
  at::linear(torch::ones({500, 1000}), weight).log_softmax(-1).sum().backward();
  CHECK(weight.grad().sizes() == weight.sizes());
  CHECK(shapes.recorder.peak().total() > 240 * 1000 * 1000);
  CHECK(page_faults() - before < 4000);  // of 4 KiB, in 60,000
}

}  // namespace
}  // namespace trainkit
