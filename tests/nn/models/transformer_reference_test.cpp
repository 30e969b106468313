#include "reference_util.h"
#include "test_util.h"
#include "trainkit/io/safetensors.h"
#include "trainkit/nn/transformer.h"

using namespace trainkit;

namespace {

double worst_difference(const at::Tensor& a, const at::Tensor& b) { return (a - b).abs().max().item<double>(); }

/// Weights, batch, logits, loss and gradients that tests/reference/transformer.py made for `config`.
SafetensorsFile reference(const TransformerConfig& c, const std::string& path) {
  const std::string json =
      std::string(R"({"seed": 5, "rows": 3, "length": 10, "vocab_size": )") + std::to_string(c.vocab_size) +
      R"(, "block_size": )" + std::to_string(c.block_size) + R"(, "n_layers": )" + std::to_string(c.n_layers) +
      R"(, "n_heads": )" + std::to_string(c.n_heads) + R"(, "hidden_dim": )" + std::to_string(c.hidden_dim) +
      R"(, "bias": )" + (c.bias ? "true" : "false") + R"(, "tied_head": )" + (c.tied_head ? "true" : "false") + "}";
  test::run_reference("transformer.py", path + " '" + json + "'");
  return SafetensorsFile::open(path).value();
}

void check_parity(const TransformerConfig& config) {
  const test::TempDir folder;
  const SafetensorsFile file = reference(config, folder / "reference.safetensors");
  for (const bool checkpointing : {false, true}) {
    CAPTURE(config.bias, config.tied_head, checkpointing);
    Transformer model(config);
    model->set_gradient_checkpointing(checkpointing);
    {
      const torch::NoGradGuard no_grad;
      for (auto& item : model->named_parameters()) item.value().copy_(file.tensor("weight:" + item.key()).value());
    }
    const at::Tensor logits = model->forward(file.tensor("x").value());
    const at::Tensor loss = language_model_loss(logits, file.tensor("y").value());
    loss.backward();
    CHECK(worst_difference(logits, file.tensor("logits").value()) < 1e-5);
    CHECK(worst_difference(loss, file.tensor("loss").value()[0]) < 1e-5);
    size_t checked = 0;
    for (const auto& item : model->named_parameters()) {
      INFO(item.key());
      CHECK(worst_difference(item.value().grad(), file.tensor("grad:" + item.key()).value()) < 1e-5);
      ++checked;
    }
    CHECK(file.names().size() == 4 + 2 * checked);  // we have every parameter of Python's model
  }
}

}  // namespace

TEST_CASE("Logits, loss and gradients equal a plain PyTorch GPT with the same weights", "[nn][transformer]") {
  if (test::python().empty()) TRAINKIT_SKIP("needs TRAINKIT_PYTHON");
  TransformerConfig config{.vocab_size = 17, .block_size = 12, .n_layers = 3, .n_heads = 4, .hidden_dim = 32};
  for (const bool bias : {false, true}) {
    for (const bool tied : {false, true}) {
      config.bias = bias;
      config.tied_head = tied;
      check_parity(config);
    }
  }
}
