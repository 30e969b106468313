// WeightsPublisher and ActorModel: complete versions for other threads.
#include "trainkit/rl/weights_publisher.h"

#include <torch/torch.h>

#include <atomic>
#include <set>
#include <thread>

#include "test_util.h"

using namespace trainkit;

namespace {

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t width = 64) {
    first = register_module("first", torch::nn::Linear(4, width));
    norm = register_module("norm", torch::nn::BatchNorm1d(width));
    last = register_module("last", torch::nn::Linear(width, 2));
    register_parameter("tied", last->weight);
  }
  at::Tensor forward(const at::Tensor& x) { return last(norm(first(x)).relu()); }
  torch::nn::Linear first{nullptr}, last{nullptr};
  torch::nn::BatchNorm1d norm{nullptr};
};
TORCH_MODULE(Net);

/// As a step of training: every number of the weights becomes `value`.
void fill(Net& net, int64_t value) {
  const at::NoGradGuard no_grad;
  for (at::Tensor& tensor : net->parameters()) tensor.fill_(value);
  for (at::Tensor& tensor : net->buffers()) tensor.fill_(value);
}

/// The one number of a version; -1 if it has several.
int64_t number_of(const std::vector<at::Tensor>& tensors) {
  const double first = tensors.front().flatten()[0].item<double>();
  for (const at::Tensor& tensor : tensors) {
    if (!tensor.eq(first).all().item<bool>()) return -1;
  }
  return static_cast<int64_t>(first);
}

}  // namespace

TEST_CASE("A version has the weights of its step, whatever is published later", "[rl][weights]") {
  Net net;
  fill(net, 5);
  WeightsPublisher weights(*net);
  CHECK(weights.names() == std::vector<std::string>{"tied", "first.weight", "first.bias", "norm.weight", "norm.bias",
                                                    "last.bias", "norm.running_mean", "norm.running_var",
                                                    "norm.num_batches_tracked"});
  const auto first = weights.latest();
  CHECK(first->step == 0);
  CHECK(number_of(first->tensors) == 5);
  fill(net, 6);
  CHECK(number_of(first->tensors) == 5);
  CHECK(weights.latest() == first);
  weights.publish(3);
  const auto second = weights.latest();
  CHECK(second->step == 3);
  CHECK(number_of(second->tensors) == 6);
  CHECK(second->tensors.back().scalar_type() == at::kLong);
  CHECK(!second->tensors.front().requires_grad());
  // A tensor that outlives its version keeps its numbers.
  const at::Tensor kept = second->tensors[1];
  std::weak_ptr<const WeightsVersion> ended = second;
  for (int64_t step = 7; step < 12; ++step) {
    fill(net, step);
    weights.publish(step);
    CHECK(number_of(first->tensors) == 5);
    CHECK(number_of({kept}) == 6);
  }
  CHECK_THROWS_WITH(weights.latest(at::Device(at::kCUDA, 0)), Catch::Contains("not published for cuda:0"));
  CHECK_THROWS_WITH(WeightsPublisher(*net, {}), Catch::Contains("no devices"));
}

TEST_CASE("Memory of versions is used again, and strides are kept", "[rl][weights]") {
  torch::nn::Conv2d conv(3, 4, 3);
  conv->weight.set_data(conv->weight.detach().contiguous(at::MemoryFormat::ChannelsLast));
  WeightsPublisher weights(*conv);
  std::set<const void*> memory;
  for (int64_t step = 1; step < 20; ++step) {
    weights.publish(step);
    memory.insert(weights.latest()->tensors[0].const_data_ptr());
    CHECK(weights.latest()->tensors[0].strides() == conv->weight.strides());
    CHECK(weights.latest()->tensors[0].equal(conv->weight));
  }
  CHECK(memory.size() == 2);
  // Rows that are not one block of memory.
  struct ViewImpl : torch::nn::Module {
    at::Tensor every_second = register_buffer("x", torch::arange(12.).slice(0, 0, 12, 2));
  };
  ViewImpl view;
  CHECK(WeightsPublisher(view).latest()->tensors[0].equal(torch::arange(6.) * 2));
}

TEST_CASE("Readers in threads never see parts of two versions", "[rl][weights]") {
  // Wide enough for a copy to take longer than a switch of threads.
  Net net(test::is_full() ? 200'000 : 20'000);
  fill(net, 0);
  WeightsPublisher weights(*net);
  std::atomic<bool> ends{false};
  std::atomic<int64_t> torn{0}, backwards{0}, seen{0};
  std::vector<std::thread> readers;
  for (int reader = 0; reader < 3; ++reader) {
    readers.emplace_back([&, reader] {
      at::set_num_threads(1);
      const ActorOptions options{.copies = reader == 1};
      ActorModel<Net> actor([&] { return Net(net->last->options.in_features()); }, weights, options);
      std::vector<std::shared_ptr<const WeightsVersion>> kept;
      int64_t last = 0;
      while (!ends) {
        Net& model = actor.refresh();
        std::vector<at::Tensor> tensors = model->parameters();
        for (const at::Tensor& buffer : model->buffers()) tensors.push_back(buffer);
        if (number_of(tensors) != actor.version()) ++torn;
        if (actor.version() < last) ++backwards;
        if (actor.version() != last) ++seen;
        last = actor.version();
        if (reader == 2) kept.push_back(weights.latest());  // readers may keep some versions
        if (kept.size() > 4) kept.erase(kept.begin());
        for (const auto& version : kept) {
          if (number_of(version->tensors) != version->step) ++torn;
        }
      }
    });
  }
  int64_t step = 0;
  while (step < 100 || (seen < 60 && step < 100'000)) {
    fill(net, ++step);
    weights.publish(step);
  }
  ends = true;
  for (std::thread& reader : readers) reader.join();
  CHECK(torn == 0);
  CHECK(backwards == 0);
  CHECK(seen >= 60);
}

TEST_CASE("An actor takes a version between batches, without gradients and in evaluation mode", "[rl][weights]") {
  torch::manual_seed(1);
  Net net;
  const at::Tensor x = torch::randn({8, 4});
  WeightsPublisher weights(*net);
  for (const bool copies : {false, true}) {
    ActorModel<Net> actor([] { return Net(); }, weights, {.copies = copies});
    CHECK(!actor.model()->is_training());
    const void* address = actor.model()->first->weight.const_data_ptr();
    CHECK((address == weights.latest()->tensors[1].const_data_ptr()) == !copies);
    const at::Tensor before = actor.refresh()->forward(x);
    CHECK(!before.requires_grad());
    net->forward(torch::randn({8, 4}));  // changes running statistics
    {
      const at::NoGradGuard no_grad;
      for (at::Tensor& parameter : net->parameters()) parameter.add_(0.1);
    }
    weights.publish(copies ? 2 : 1);
    CHECK(actor.model()->forward(x).equal(before));
    CHECK(!actor.refresh()->forward(x).equal(before));
    CHECK(actor.version() == (copies ? 2 : 1));
    CHECK((actor.model()->first->weight.const_data_ptr() == address) == copies);
    net->eval();
    CHECK(actor.model()->forward(x).equal(net->forward(x).detach()));
    net->train();
  }
  CHECK_THROWS_WITH(ActorModel<Net>([] { return Net(3); }, weights), Catch::Contains("'tied' has another shape"));
  CHECK_THROWS_WITH(ActorModel<torch::nn::Linear>([] { return torch::nn::Linear(4, 2); }, weights),
                    Catch::Contains("other parameters"));
}
