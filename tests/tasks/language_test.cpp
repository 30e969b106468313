// The task of language models: losses by targets, scores per token, character and byte, and the texts of a report.
#include "trainkit/tasks/language.h"

#include <ATen/Functions.h>
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>

#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "read_text.h"
#include "tasks/batch_of.h"
#include "temp_dir.h"
#include "test_util.h"
#include "trainkit/data/sampler.h"
#include "trainkit/data/tensor_dataset.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// A model of its own: the logits of the next token follow from a token.
struct BigramImpl : torch::nn::Module {
  explicit BigramImpl(int64_t vocab_size)
      : table(register_module("table", torch::nn::Embedding(vocab_size, vocab_size))) {}
  at::Tensor forward(const at::Tensor& ids) { return table->forward(ids); }
  torch::nn::Embedding table;
};
TORCH_MODULE(Bigram);

std::shared_ptr<Task> bigram_task(LanguageOptions options) {
  return language([](Bigram& model, const Batch& batch) { return model->forward(batch["x"]); }, std::move(options));
}

/// Two rows of four positions, of which five have a target.
Batch batch() {
  return batch_of(at::tensor({0, 1, 2, 3, 1, 2, 3, 0}, at::kLong).view({2, 4}),
                  at::tensor({1L, 2L, kIgnoreIndex, 0L, 2L, 3L, kIgnoreIndex, kIgnoreIndex}, at::kLong).view({2, 4}));
}

Transformer small_model(int64_t vocab_size) {
  torch::manual_seed(1);
  return Transformer(TransformerConfig{.vocab_size = vocab_size, .block_size = 8, .n_layers = 1, .hidden_dim = 8});
}

}  // namespace

TEST_CASE("Logits and a mean loss give the same loss, and each target of a step has the same weight",
          "[tasks][language]") {
  Bigram model(4);
  const at::Tensor mean = language_model_loss(model->forward(batch()["x"]), batch()["y"]);
  const auto of_loss = language(
      [](Bigram& net, const Batch& rows) { return language_model_loss(net->forward(rows["x"]), rows["y"]); }, {});
  for (const auto& task : {bigram_task({}), of_loss}) {
    const LossOutput output = task->training_loss()(*model, batch());
    CHECK(output.loss.equal(mean));
    CHECK(output.weight == 8);
  }
  // With a share of targets the weighted sum over parts is that of all targets, also of a part that has none.
  const auto packed = bigram_task({.target_share = 0.5});
  double sum = 0, weight = 0;
  for (const auto& [begin, end] : {std::pair(0, 1), std::pair(1, 2)}) {
    const LossOutput part = packed->training_loss()(*model, batch().slice(begin, end));
    sum += part.loss.item<double>() * *part.weight;
    weight += *part.weight;
  }
  CHECK(weight == 4);
  CHECK(sum == Approx(mean.item<double>() * 5));
  const Batch none = batch_of(batch()["x"], at::full({2, 4}, kIgnoreIndex, at::kLong));
  CHECK(packed->training_loss()(*model, none).loss.item<double>() == 0);
  // An evaluation knows its targets.
  const Batch rows(batch().content()->fields, batch().tensors(), {7, 8});
  const auto evaluated = bigram_task({.targets_of = [](int64_t row) { return row - 5; }});
  CHECK(evaluated->validation_loss()(*model, rows).weight == 2 + 3);
  CHECK_THROWS_AS(bigram_task({.target_share = 0}), c10::ValueError);
}

TEST_CASE("Perplexity is exp(loss), and bits per character use the characters of the tokens", "[tasks][language]") {
  const std::shared_ptr<const Tokenizer> tokenizer = CharTokenizer::from_text("a\xc3\xa4\x03").value();  // U+0003 a ä
  Bigram model(3);
  const Batch rows = batch_of(at::tensor({1, 1, 2, 0}, at::kLong).view({1, 4}),
                              at::tensor({1L, 2L, 0L, kIgnoreIndex}, at::kLong).view({1, 4}));
  const auto scores = [&](const LanguageOptions& options) {
    const auto task = bigram_task(options);
    Metrics metrics = {{"loss", task->validation_loss()(*model, rows).loss.item<double>()}};
    REQUIRE(task->add_scores(nullptr, metrics).ok());
    return metrics;
  };
  const Metrics counted = scores({.tokenizer = tokenizer});
  const double loss = counted.at("loss"), bits = loss / std::numbers::ln2;
  CHECK(counted.at("perplexity") == std::exp(loss));
  // The end of a document is a target, but no character.
  CHECK(counted.at("bits_per_character") == Approx(bits * 3 / 2));
  CHECK(scores({.characters_per_token = 4}).at("bits_per_character") == loss / std::numbers::ln2 / 4);
  CHECK_FALSE(scores({}).contains("bits_per_character"));
  const auto score = language_score(tokenizer), other = language_score(tokenizer);
  score->update(at::scalar_tensor(loss), rows);
  CHECK(score->result().at("tokens") == 3);
  CHECK(score->result().at("loss") == Approx(loss));
  CHECK(score->result().at("bits_per_byte") == Approx(bits));  // one and two bytes

  // A batch without targets has no mean.
  other->update(at::scalar_tensor(std::nan("")), batch_of(rows["x"], at::full({1, 4}, kIgnoreIndex, at::kLong)));
  score->merge(*other);
  CHECK(score->result().at("loss") == Approx(loss));
}

TEST_CASE("A test of a language model scores the targets over replicas, and keeps nothing of the rows",
          "[tasks][language]") {
  const std::shared_ptr<const Tokenizer> tokenizer = CharTokenizer::from_text("abcd").value();
  const auto task = bigram_task({.tokenizer = tokenizer});
  const auto dataset = std::make_shared<TensorDataset>(TensorDataset({{"x", batch()["x"]}, {"y", batch()["y"]}}));
  auto loader = Prefetcher::create(dataset, SequentialSampler(2), {.batch_size = 2}).value();
  auto devices = DeviceReplicator::create([] { return Bigram(4).ptr(); }, {.cpu_replicas = 2}).value();
  Bigram model(std::dynamic_pointer_cast<BigramImpl>(devices->module()));
  TestedRows tested = task->test(*devices, loader.get(), 2, Precision::kFp32, nullptr).value();
  CHECK(tested.scores.at("tokens") == 5);
  const double mean = language_model_loss(model->forward(batch()["x"]), batch()["y"]).item<double>();
  CHECK(tested.scores.at("perplexity") == Approx(std::exp(mean)));
  CHECK(tested.read.all().item<bool>());
  const TempDir dir;
  ResultPage page;
  REQUIRE(task->write(dir.path().string(), tested, page).ok());
  REQUIRE(page.write(dir.path().string()).ok());
  CHECK(nlohmann::json::parse(read_text(dir / "scores.json")).at("bits_per_byte") == tested.scores.at("bits_per_byte"));
  CHECK_THAT(read_text(dir / "report.json"), Catch::Contains("test perplexity"));
  CHECK_THAT(task->table(tested), Catch::Contains("| bits per byte | "));
}

TEST_CASE("A model of its own and a Transformer show texts, and a text replaces those of later steps",
          "[tasks][language]") {
  const std::shared_ptr<const Tokenizer> tokenizer = CharTokenizer::from_text("abc\n").value();
  const LanguageOptions options{
      .tokenizer = tokenizer, .sampling = {.max_tokens = 30, .seed = 3}, .evaluation_tokens = 5};
  const auto transformer_task =
      language([](Transformer& model, const Batch& rows) { return model->loss(rows["x"], rows["y"]); }, options);
  Bigram bigram(4);
  Transformer transformer = small_model(4);
  const auto bigrams = bigram_task(options);
  CHECK(bigrams->training_loss()(*bigram, batch()).loss.item<double>() > 0);  // tells that a row has four tokens
  for (const auto& [task, model] :
       {std::pair<std::shared_ptr<Task>, std::shared_ptr<torch::nn::Module>>{bigrams, bigram.ptr()},
        {transformer_task, transformer.ptr()}}) {
    const TempDir dir;
    const Metrics metrics = {{"loss", 1}, {"perplexity", 2.5}, {"bits_per_character", 1.25}};
    const auto show = [&](int64_t step, bool at_end) {
      ResultPage page;
      const ShownWeights weights{.model = *model, .step = step, .metrics = metrics, .at_end = at_end};
      const std::string lines = task->show(weights, dir.path().string(), page).value();
      REQUIRE(page.write(dir.path().string()).ok());
      return lines;
    };
    CHECK((task->shows_weights(false) && task->shows_weights(true)));
    const std::string head = "--- text generated by the model ---\n";
    CHECK(show(10, false).size() == head.size() + 5 + 4);
    const std::string last = show(20, true);
    CHECK(last.size() == head.size() + 30 + 4);
    CHECK(show(20, true) == last);
    CHECK(model->is_training());
    show(15, false);
    const auto samples = nlohmann::json::parse(read_text(dir / "samples.json"));
    REQUIRE(samples.size() == 2);
    CHECK(samples[1]["title"] == "Weights of step 15, temperature 0.8, seed 3");
    CHECK_THAT(read_text(dir / "report.json"), Catch::Contains("2.500") &&
                                                   Catch::Contains("1.2500 bits per character") &&
                                                   Catch::Contains("Text generated by the model"));
  }
  CHECK_FALSE(bigram_task({})->shows_weights(true));
  CHECK_FALSE(bigram_task({.tokenizer = tokenizer, .evaluation_tokens = 0})->shows_weights(false));
}

TEST_CASE("A sample is the prompt and its continuation", "[tasks][language]") {
  const auto tokenizer = CharTokenizer::from_text("abc\n").value();
  Transformer model = small_model(4);
  const std::string text = sample_text(model, *tokenizer, "ab", {.max_tokens = 20, .seed = 3}).value();
  CHECK(text.size() == 22);
  CHECK(text.starts_with("ab"));
  CHECK(sample_text(model, *tokenizer, "ab", {.max_tokens = 20, .seed = 3}).value() == text);
  CHECK(sample_text(model, *tokenizer, "", {.max_tokens = 5}).value().size() == 5);
  CHECK(error_of(sample_text(model, *tokenizer, "abX", {}).status())->id == "data.tokens");
}
