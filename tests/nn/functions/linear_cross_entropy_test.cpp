#include <ATen/autocast_mode.h>

#include "memory/memory_recorder.h"
#include "test_util.h"
#include "trainkit/amp/autocast.h"
#include "trainkit/nn/functional.h"
#include "trainkit/nn/transformer.h"

using namespace trainkit;

namespace {

struct Head {
  at::Tensor hidden, weight, target;
};

Head make_head(int64_t rows, int64_t classes, int64_t width, at::ScalarType type = at::kFloat) {
  torch::manual_seed(3);
  return {torch::randn({rows, width}).to(type), torch::randn({classes, width}).mul_(0.3).to(type),
          torch::randint(classes, {rows})};
}

struct Result {
  at::Tensor loss, hidden, weight;
};

/// Loss times 3, and its gradients.
template <class F>
Result head_gradients(const Head& head, const F& loss_of) {
  const at::Tensor hidden = head.hidden.detach().clone().requires_grad_();
  const at::Tensor weight = head.weight.detach().clone().requires_grad_();
  const at::Tensor loss = loss_of(hidden, weight, head.target);
  (loss * 3).backward();
  return {loss.detach(), hidden.grad(), weight.grad()};
}

at::Tensor in_pieces(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target) {
  return linear_cross_entropy(hidden, weight, target);
}
at::Tensor separately(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target) {
  return at::cross_entropy_loss(at::linear(hidden, weight), target);
}

double head_error(const at::Tensor& a, const at::Tensor& b) {
  return ((a - b).abs().max() / b.abs().max()).item<double>();
}

/// More logits than one piece has.
const Head& several_pieces() {
  static const auto& head = *new Head(make_head(1000, 6000, 24));
  return head;
}

}  // namespace

TEST_CASE("linear_cross_entropy and its gradients equal those of separate operations in float64",
          "[nn][linear_cross_entropy]") {
  for (const auto& [rows, classes, width] : std::vector<std::array<int64_t, 3>>{
           {1, 1, 1}, {5, 2, 3}, {64, 10, 32}, {33, 65, 128}, {1000, 6000, 24}, {256, 5000, 8}, {257, 4096, 8}}) {
    CAPTURE(rows, classes, width);
    Head head = make_head(rows, classes, width);
    if (rows > 4) head.target[2] = -100;
    const Result got = head_gradients(head, in_pieces);
    const Result expected =
        head_gradients({head.hidden.to(at::kDouble), head.weight.to(at::kDouble), head.target}, separately);
    CHECK(got.loss.item<double>() == Approx(expected.loss.item<double>()).epsilon(1e-6).margin(1e-6));
    if (classes == 1) continue;
    CHECK(head_error(got.hidden, expected.hidden) < 1e-5);
    CHECK(head_error(got.weight, expected.weight) < 1e-5);
  }
}

TEST_CASE("linear_cross_entropy under autocast is as exact as separate operations", "[nn][linear_cross_entropy]") {
  const Head& head = several_pieces();
  const Head exact{head.hidden.to(at::kDouble), head.weight.to(at::kDouble), head.target};
  const Result expected = head_gradients(exact, separately);
  Result got, apart;
  {
    const AutocastGuard autocast(at::kCPU, at::kBFloat16);
    got = head_gradients(head, in_pieces);
    apart = head_gradients(head, separately);
  }
  CHECK(got.loss.scalar_type() == at::kFloat);
  CHECK(got.hidden.scalar_type() == at::kFloat);
  CHECK(got.weight.scalar_type() == at::kFloat);
  CHECK(got.loss.item<double>() == Approx(expected.loss.item<double>()).epsilon(2e-3));
  CHECK(head_error(got.hidden, expected.hidden) < 1.2 * head_error(apart.hidden, expected.hidden) + 1e-3);
  CHECK(head_error(got.weight, expected.weight) < 1.2 * head_error(apart.weight, expected.weight) + 1e-3);
}

TEST_CASE("linear_cross_entropy has the same bits for any number of threads, with and without gradients",
          "[nn][linear_cross_entropy]") {
  const Head& head = several_pieces();
  const at::Tensor loss = head_gradients(head, in_pieces).loss;
  CHECK(loss.equal(in_pieces(head.hidden, head.weight, head.target)));
  const int threads = at::get_num_threads();
  at::set_num_threads(1);
  CHECK(loss.equal(in_pieces(head.hidden, head.weight, head.target)));
  at::set_num_threads(threads);
}

TEST_CASE("linear_cross_entropy skips gradients that nobody needs", "[nn][linear_cross_entropy]") {
  const Head& head = several_pieces();
  const Result both = head_gradients(head, in_pieces);
  const at::Tensor hidden = head.hidden.clone().requires_grad_(), weight = head.weight.clone().requires_grad_();
  (in_pieces(hidden, head.weight, head.target) * 3).backward();
  CHECK(hidden.grad().equal(both.hidden));
  (in_pieces(head.hidden, weight, head.target) * 3).backward();
  CHECK(weight.grad().equal(both.weight));
  CHECK(!in_pieces(head.hidden, head.weight, head.target).requires_grad());
}

TEST_CASE("linear_cross_entropy keeps its gradients while the graph is kept, and has no second derivative",
          "[nn][linear_cross_entropy]") {
  const Head head = make_head(7, 5000, 5);
  const at::Tensor hidden = head.hidden.clone().requires_grad_();
  const at::Tensor loss = in_pieces(hidden, head.weight, head.target) * 2;
  loss.backward({}, /*retain_graph=*/true);
  const at::Tensor first = hidden.grad().clone();
  hidden.mutable_grad().reset();
  loss.backward();
  CHECK(hidden.grad().equal(first));
  CHECK_THROWS_WITH(loss.backward(), Catch::Contains("backward"));
  const at::Tensor other = in_pieces(hidden, head.weight, head.target);
  CHECK_THROWS_AS(other.backward({}, /*retain_graph=*/true, /*create_graph=*/true), c10::NotImplementedError);
}

TEST_CASE("linear_cross_entropy keeps the logits of 256 rows only, whatever their number",
          "[nn][linear_cross_entropy]") {
  const auto peak = [](int64_t rows, bool is_bf16) {
    const Head head = make_head(rows, 8000, 16);
    const at::Tensor hidden = head.hidden.requires_grad_(), weight = head.weight.requires_grad_();
    MemoryRecorder recorder;
    std::optional<AutocastGuard> autocast;
    if (is_bf16) autocast.emplace(at::kCPU, at::kBFloat16);
    const at::Tensor loss = in_pieces(hidden, weight, head.target);
    autocast.reset();
    loss.backward();
    return recorder.peak().total();
  };
  constexpr int64_t kLogits = 256 * 8000 * 4;
  for (const bool is_bf16 : {false, true}) {
    CAPTURE(is_bf16);
    const int64_t few = peak(512, is_bf16), many = peak(2048, is_bf16);
    CHECK(many - few < 1536 * 1024);  // hidden states and losses: 1,536 rows of less than 1 KiB
    CHECK(many < (is_bf16 ? 3 : 2) * kLogits);
  }
}

TEST_CASE("linear_cross_entropy of bad targets is an error, and of ignored ones NaN", "[nn][linear_cross_entropy]") {
  Head head = make_head(4, 5000, 3);
  head.target[1] = 5000;
  CHECK_THROWS_AS(in_pieces(head.hidden, head.weight, head.target), c10::IndexError);
  head.target.fill_(-100);
  CHECK(std::isnan(in_pieces(head.hidden, head.weight, head.target).item<double>()));
}

TEST_CASE("Transformer::loss equals language_model_loss of its logits, with documents and both kinds of heads",
          "[nn][transformer][linear_cross_entropy]") {
  for (const int64_t vocab_size : {97, 4500}) {
    const bool tied = vocab_size == 97;
    torch::manual_seed(1);
    Transformer model(TransformerConfig{
        .vocab_size = vocab_size, .block_size = 16, .n_layers = 2, .n_heads = 2, .hidden_dim = 32, .tied_head = tied});
    const at::Tensor x = torch::randint(vocab_size, {3, 16}, at::kLong);
    at::Tensor y = torch::randint(vocab_size, {3, 16}, at::kLong);
    y[0][5] = kIgnoreIndex;
    const at::Tensor positions = torch::arange(16).remainder(6).expand({3, 16}).contiguous();
    for (const at::Tensor& document_positions : {at::Tensor(), positions}) {
      const at::Tensor expected = language_model_loss(model->forward(x, document_positions), y);
      expected.backward();
      std::vector<at::Tensor> gradients;
      for (at::Tensor& parameter : model->parameters()) gradients.push_back(parameter.grad().clone());
      model->zero_grad();
      const at::Tensor loss = model->loss(x, y, document_positions);
      loss.backward();
      CHECK(loss.item<double>() == Approx(expected.item<double>()).epsilon(1e-6));
      const auto parameters = model->parameters();
      for (size_t i = 0; i < parameters.size(); ++i) {
        CHECK(torch::allclose(parameters[i].grad(), gradients[i], 1e-5, 1e-7));
      }
      model->zero_grad();
    }
  }
}
