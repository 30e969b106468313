#include "trainkit/optim/optimizer.h"

#include <limits>

#include "optim/optimizer_parts.h"
#include "optimizer_model.h"
#include "state_dict_util.h"
#include "test_util.h"
#include "trainkit/amp/grad_scaler.h"
#include "trainkit/optim/adam.h"
#include "trainkit/optim/sgd.h"

namespace trainkit {
namespace {

using Catch::Contains;
using test::make;
using test::Model;
using test::parameter;

TEST_CASE("A parameter without a gradient is left unchanged, and so is its step count") {
  Model model;
  AdamW optimizer({.lr = 0.1});
  optimizer.add_param_groups(model.groups());
  const at::Tensor before = model.vector.detach().clone();
  model.matrix.mutable_grad() = torch::ones({4, 3});
  optimizer.step();
  CHECK(torch::equal(model.vector.detach(), before));
  CHECK(optimizer.step_count().item<int64_t>() == 1);
  optimizer.zero_grad();
  optimizer.step();  // no gradient at all
  CHECK(std::get<at::Tensor>(optimizer.state_dict().at("state.matrix.step")).item<int64_t>() == 1);
}

TEST_CASE("A skipped first step of SGD leaves the momentum valid") {
  // torch.optim.SGD(fused=True) leaves memory uninitialised there and treats the next step as the second.
  Model model;
  SGD optimizer({.lr = 1, .momentum = 0.9});
  optimizer.add_param_groups(model.groups());
  const at::Tensor before = model.matrix.detach().clone();
  model.backward(0);
  optimizer.step_unless(torch::ones({}));
  CHECK(torch::equal(model.matrix.detach(), before));
  optimizer.step_unless(torch::zeros({}));
  CHECK(torch::allclose(model.matrix.detach(), before - model.matrix.grad()));
}

TEST_CASE("A gradient with a different memory layout than its parameter is applied element by element") {
  // The fused CPU kernels read both in memory order.
  for (const bool transposed_gradient : {false, true}) {
    at::Tensor a = torch::arange(12.0f).reshape({3, 4}).requires_grad_();
    at::Tensor b = torch::arange(12.0f).reshape({4, 3}).t().detach().clone(at::MemoryFormat::Preserve).requires_grad_();
    REQUIRE_FALSE(b.is_contiguous());
    SGD optimizer({.lr = 1});
    optimizer.add_param_group({.params = {{"a", a}, {"b", b}}});
    const at::Tensor a_before = a.detach().clone(), b_before = b.detach().clone();
    const at::Tensor gradient = torch::arange(12.0f).reshape({3, 4}) * 10;
    a.mutable_grad() = transposed_gradient ? gradient.t().contiguous().t() : gradient;
    b.mutable_grad() = transposed_gradient ? gradient.t().contiguous().t() : gradient;
    optimizer.step();
    CHECK(torch::equal(a.detach(), a_before - gradient));
    CHECK(torch::equal(b.detach(), b_before - gradient));
  }
}

TEST_CASE("A gradient whose strides differ only in dimensions of size 1 is applied without a copy") {
  at::Tensor column = torch::zeros({5, 1}).requires_grad_();
  SGD optimizer({.lr = 1});
  optimizer.add_param_group({.params = {{"column", column}}});
  const at::Tensor gradient = torch::arange(5.0f).as_strided({5, 1}, {1, 7});
  REQUIRE(gradient.strides() != column.strides());
  column.mutable_grad() = gradient;
  optimizer.step();
  CHECK(torch::equal(column.detach(), -gradient));
}

TEST_CASE("Each group has its learning rate, the optimizer's times the group's factor, and follows set_lr") {
  Model model;
  const bool capturable = GENERATE(false, true);
  SGD optimizer({.lr = 0.5, .capturable = capturable});
  optimizer.add_param_groups(model.groups());
  const at::Tensor matrix = model.matrix.detach().clone(), vector = model.vector.detach().clone();
  model.matrix.mutable_grad() = torch::ones({4, 3});
  model.vector.mutable_grad() = torch::ones({5});
  CHECK(optimizer.group_lrs() == std::vector<double>{0.5, 0.25});
  optimizer.step();
  CHECK(torch::equal(model.matrix.detach(), matrix - 0.5));
  CHECK(torch::equal(model.vector.detach(), vector - 0.25));
  optimizer.set_lr(2);
  CHECK(optimizer.group_lrs() == std::vector<double>{2, 1});
  CHECK(optimizer.lr() == 2);
  CHECK_THROWS_AS(optimizer.set_lr(-1), c10::ValueError);
  CHECK_THROWS_AS(optimizer.set_lr(std::numeric_limits<double>::infinity()), c10::ValueError);
  CHECK(optimizer.group_lrs() == std::vector<double>{2, 1});
  if (capturable) {
    detail::OptimizerParts::of(optimizer).rates.set_on_device(torch::full({}, 4.0));
    CHECK(optimizer.group_lrs() == std::vector<double>{4, 2});
  } else {
    CHECK_THROWS_WITH(detail::OptimizerParts::of(optimizer).rates.set_on_device(torch::full({}, 4.0)),
                      Contains("not kept on the device"));
  }
}

TEST_CASE("A group that is added later starts at step 0 while the others continue") {
  Model model;
  AdamW optimizer({.lr = 0.1});
  optimizer.add_param_group(model.groups()[0]);
  model.backward(0);
  optimizer.step();
  const at::Tensor mean = std::get<at::Tensor>(optimizer.state_dict().at("state.matrix.exp_avg")).clone();
  optimizer.add_param_group(model.groups()[1]);
  CHECK(optimizer.step_count().item<int64_t>() == 1);
  CHECK(torch::equal(std::get<at::Tensor>(optimizer.state_dict().at("state.matrix.exp_avg")), mean));
  optimizer.step();
  const StateDict state = optimizer.state_dict();
  CHECK(std::get<at::Tensor>(state.at("state.matrix.step")).item<int64_t>() == 2);
  CHECK(std::get<at::Tensor>(state.at("state.vector.step")).item<int64_t>() == 1);
  CHECK(std::get<int64_t>(state.at("step")) == 2);
}

TEST_CASE("add_param_group refuses parameters that cannot be trained, and adds nothing then") {
  Model model;
  AdamW optimizer;
  CHECK_THROWS_WITH(optimizer.step(), Contains("without parameters"));
  optimizer.add_param_groups(model.groups());
  const auto refuses = [&](ParamGroup group, const std::string& text) {
    CHECK_THROWS_WITH(optimizer.add_param_group(group), Contains(text));
    CHECK_THROWS_AS(optimizer.add_param_group(group), c10::ValueError);
    CHECK(optimizer.param_groups().size() == 2);
  };
  refuses({}, "is empty");
  refuses({.params = {{"again", model.matrix}}}, "'again' is already in another group");
  refuses({.params = {{"matrix", parameter({2})}}}, "duplicate parameter name 'matrix'");
  refuses({.params = {{"a", parameter({2})}, {"a", parameter({2})}}}, "duplicate parameter name 'a'");
  refuses({.params = {{"int", torch::zeros({2}, at::kInt)}}}, "'int' must be a dense floating-point leaf");
  refuses({.params = {{"not leaf", parameter({2}) * 2}}}, "'not leaf' must be a dense floating-point leaf");
  refuses({.params = {{"expanded", torch::zeros({1}).expand({4})}}}, "'expanded' must be a dense floating-point leaf");
  refuses({.params = {{"none", at::Tensor()}}}, "'none' must be a dense floating-point leaf");
  refuses({.params = {{"meta", torch::zeros({2}, at::kMeta)}}}, "'meta' is on meta, expected cpu");
  refuses({.params = {{"x", parameter({2})}}, .lr_multiple = -1}, "lr_multiple");
  refuses({.params = {{"x", parameter({2})}}, .weight_decay = -1.0}, "weight_decay");
}

TEST_CASE("A tensor that is in a group twice is updated once") {
  at::Tensor tied = torch::zeros({2}).requires_grad_();
  SGD optimizer({.lr = 1});
  optimizer.add_param_group({.params = {{"embedding", tied}, {"head", tied}}});
  CHECK(optimizer.param_groups()[0].params.size() == 1);
  tied.mutable_grad() = torch::ones({2});
  optimizer.step();
  CHECK(tied[0].item<double>() == -1);
}

TEST_CASE("A sparse gradient is an error before anything is changed") {
  at::Tensor a = torch::zeros({2, 2}).requires_grad_(), b = torch::zeros({2, 2}).requires_grad_();
  SGD optimizer({.lr = 1});
  optimizer.add_param_group({.params = {{"a", a}, {"b", b}}});
  a.mutable_grad() = torch::ones({2, 2});
  b.mutable_grad() = torch::ones({2, 2}).to_sparse();
  CHECK_THROWS_WITH(optimizer.step(), Contains("the gradient of 'b' is sparse"));
  CHECK(a.abs().sum().item<double>() == 0);
  CHECK(optimizer.step_count().item<double>() == 0);
  CHECK(detail::OptimizerParts::of(optimizer).counts.upper_bound() == 0);
}

TEST_CASE("zero_grad drops gradients, or keeps their memory and sets it to zero") {
  Model model;
  SGD optimizer;
  optimizer.add_param_groups(model.groups());
  model.backward(0);
  const void* memory = model.matrix.grad().data_ptr();
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK(model.matrix.grad().data_ptr() == memory);
  CHECK(model.matrix.grad().abs().sum().item<double>() == 0);
  optimizer.step();
  optimizer.zero_grad();
  CHECK_FALSE(model.matrix.grad().defined());
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK_FALSE(model.matrix.grad().defined());
}

TEST_CASE("zero_grad detaches a kept gradient from its graph") {
  at::Tensor x = torch::full({}, 3.0f).requires_grad_();
  SGD optimizer;
  optimizer.add_param_group({.params = {{"x", x}}});
  (x * x * x).backward(/*gradient=*/{}, /*retain_graph=*/true, /*create_graph=*/true);
  REQUIRE(x.grad().requires_grad());
  optimizer.zero_grad(/*set_to_none=*/false);
  CHECK_FALSE(x.grad().requires_grad());
  CHECK(x.grad().item<double>() == 0);
}

TEST_CASE("The optimizer holds no gradient after a step") {
  Model model;
  AdamW optimizer;
  optimizer.add_param_groups(model.groups());
  model.backward(0);
  const c10::weak_intrusive_ptr<c10::TensorImpl> weak(model.matrix.grad().getIntrusivePtr());
  optimizer.step();
  model.matrix.mutable_grad().reset();
  CHECK(weak.expired());
}

TEST_CASE("Constructors report every option out of range at once") {
  CHECK_THROWS_AS(AdamW({.lr = -1}), c10::ValueError);
  const auto adam = [] { return AdamW({.lr = -1, .betas = {1.0, -0.5}, .eps = -1, .weight_decay = -1}); };
  for (const char* name : {" lr ", "betas[0]", "betas[1]", "eps", "weight_decay"})
    CHECK_THROWS_WITH(adam(), Contains(name));
  const auto sgd = [] { return SGD({.lr = -1, .momentum = 1, .weight_decay = -1}); };
  for (const char* name : {" lr ", "momentum", "weight_decay"}) CHECK_THROWS_WITH(sgd(), Contains(name));
  CHECK_THROWS_WITH(SGD({.nesterov = true}), Contains("> 0 with nesterov"));
}

TEST_CASE("create_like makes an optimizer of the same kind and options without parameters") {
  for (const char* kind : {"adamw", "adam", "capturable", "sgd", "nesterov", "rmsprop", "adagrad"}) {
    CAPTURE(kind);
    Model a, b;
    const auto original = make(kind);
    const auto copy = original->create_like();
    CHECK(copy->param_groups().empty());
    original->add_param_groups(a.groups());
    copy->add_param_groups(b.groups());
    for (int step = 0; step < 5; ++step) {
      a.backward(step);
      original->step();
      b.backward(step);
      copy->step();
    }
    CHECK(torch::equal(a.matrix, b.matrix));
    CHECK(torch::equal(a.vector, b.vector));
    CHECK(test::same_state(original->state_dict(), copy->state_dict()));
    CHECK(detail::OptimizerParts::of(*original).counts.are_on_device() ==
          detail::OptimizerParts::of(*copy).counts.are_on_device());
  }
}

TEST_CASE("An optimizer works after it is moved") {
  Model model;
  AdamW first({.lr = 0.1});
  first.add_param_groups(model.groups());
  model.backward(0);
  first.step();
  std::unique_ptr<Optimizer> second = std::make_unique<AdamW>(std::move(first));
  second->step();
  CHECK(second->step_count().item<int64_t>() == 2);
  GradScaler scaler;
  scaler.scale(torch::ones({}));
  scaler.step(*second);
  scaler.update();
  CHECK(second->step_count().item<int64_t>() == 3);
}

TEST_CASE("Parameters of several dtypes are each updated in their own dtype") {
  for (const char* kind : {"adamw", "adam", "sgd", "nesterov", "rmsprop", "adagrad"}) {
    CAPTURE(kind);
    torch::manual_seed(5);
    at::Tensor single = parameter({40}), wide = single.detach().to(at::kDouble).requires_grad_(),
               narrow = single.detach().to(at::kBFloat16).requires_grad_();
    const auto optimizer = make(kind);
    optimizer->set_lr(0.05);
    optimizer->add_param_group({.params = {{"single", single}, {"wide", wide}, {"narrow", narrow}}});
    for (int step = 0; step < 10; ++step) {
      const at::Tensor gradient = torch::randn({40});
      single.mutable_grad() = gradient;
      wide.mutable_grad() = gradient.to(at::kDouble);
      narrow.mutable_grad() = gradient.to(at::kBFloat16);
      optimizer->step();
    }
    CHECK(torch::allclose(single.to(at::kDouble), wide, 1e-4, 1e-4));
    CHECK(torch::allclose(single, narrow.to(at::kFloat), 0.1, 0.1));
    CHECK_FALSE(torch::allclose(single, parameter({40}), 0.1, 0.1));
  }
}

TEST_CASE("A step on shards reports each bucket as soon as it has updated its parts") {
  // Two groups; the first bucket has a part of each of them, so that the report must wait for both.
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> parts;
  for (int i = 0; i < 4; ++i) {
    parts.push_back(at::ones({i == 2 ? 0 : 3}).requires_grad_());
    parts.back().mutable_grad() = at::ones_like(parts.back());
  }
  const std::vector<size_t> buckets{1, 0, 0, 1};
  const auto index_of = [&](const at::Tensor& part) {
    return std::find_if(parts.begin(), parts.end(), [&](const at::Tensor& one) { return one.is_same(part); }) -
           parts.begin();
  };
  const auto updated = [&](size_t i) { return parts[i].numel() == 0 || parts[i][0].item<float>() < 1; };
  std::vector<size_t> reports;
  AdamW optimizer({.lr = 0.1});
  detail::add_shards(optimizer,
                     {{.params = {{"a", parts[0]}, {"b", parts[1]}}},
                      {.params = {{"c", parts[2]}, {"d", parts[3]}}, .weight_decay = 0}},
                     [](const std::vector<at::Tensor>&) {},
                     {.bucket_of = [&](const at::Tensor& part) { return buckets[static_cast<size_t>(index_of(part))]; },
                      .on_updated =
                          [&](size_t bucket) {
                            for (size_t i = 0; i < parts.size(); ++i) CHECK((updated(i) || buckets[i] > bucket));
                            CHECK((bucket == 1 || !updated(0)));
                            reports.push_back(bucket);
                          }});
  optimizer.step();
  CHECK(reports == std::vector<size_t>{0, 1});
}

}  // namespace
}  // namespace trainkit
