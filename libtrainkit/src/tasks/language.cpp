#include "trainkit/tasks/language.h"

#include <ATen/TensorOperators.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/tensor.h>
#include <ATen/ops/where.h>
#include <ATen/ops/zeros.h>
#include <absl/functional/function_ref.h>
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>
#include <vector>

#include "tasks/format_scores.h"
#include "tasks/generated_texts.h"
#include "trainkit/core/evaluation_mode.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/data/token_windows.h"

namespace trainkit {
namespace {

static_assert(TokenWindows::kNoTarget == kIgnoreIndex);

/// Returns characters and bytes of each token, (2, V) int64; 0 for the end of a document, which is no text.
at::Tensor token_sizes(const Tokenizer& tokenizer) {
  at::Tensor sizes = at::zeros({2, tokenizer.vocab_size()}, at::kLong);
  const std::vector<int64_t> characters = token_characters(tokenizer);
  const auto end = document_end_token(tokenizer);
  auto cells = sizes.accessor<int64_t, 2>();
  for (int64_t id = 0; id < tokenizer.vocab_size(); ++id) {
    if (end && id == *end) continue;
    cells[0][id] = characters[static_cast<size_t>(id)];
    cells[1][id] = std::ssize(tokenizer.token_bytes(static_cast<TokenId>(id)));
  }
  return sizes;
}

/// Sums of nats, and of the targets with their characters and bytes.
class LanguageScore final : public Score {
 public:
  /// @param sizes of token_sizes(), or undefined.
  LanguageScore(const at::Tensor& sizes, std::string target_field, at::Device device)
      : target_field_(std::move(target_field)),
        sizes_(sizes.defined() ? sizes.to(device) : sizes),
        nats_(at::zeros({1}, at::TensorOptions(at::kDouble).device(device))),
        counts_(at::zeros({3}, at::TensorOptions(at::kLong).device(device))) {}

  std::unique_ptr<Score> empty_on(at::Device device) const override {
    return std::make_unique<LanguageScore>(sizes_, target_field_, device);
  }
  void update(const at::Tensor& outputs, const Batch& rows) override {
    const at::Tensor targets = rows[target_field_].to(counts_.device()).flatten();
    const at::Tensor counted = targets != kIgnoreIndex, tokens = counted.sum();
    nats_.add_(at::where(tokens > 0, outputs.to(at::kDouble) * tokens, 0));  // the mean of none is NaN
    counts_.slice(0, 0, 1).add_(tokens);
    if (!sizes_.defined()) return;
    counts_.slice(0, 1).add_((sizes_.index_select(1, targets.clamp_min(0)) * counted).sum(1));
  }
  std::vector<at::Tensor> sums() const override { return {nats_, counts_}; }
  Metrics result() const override {
    const at::Tensor counts = counts_.cpu();
    const auto count = [&](int64_t i) { return static_cast<double>(counts[i].item<int64_t>()); };
    const auto nats = nats_.item<double>();
    const double loss = nats / count(0), bits = nats / std::numbers::ln2;
    Metrics metrics = {{"loss", loss}, {"perplexity", std::exp(loss)}, {"tokens", count(0)}};
    if (!sizes_.defined()) return metrics;
    metrics["bits_per_character"] = bits / count(1);
    metrics["bits_per_byte"] = bits / count(2);
    return metrics;
  }

 private:
  std::string target_field_;
  at::Tensor sizes_;
  at::Tensor nats_;    // (1) float64
  at::Tensor counts_;  // (3) int64: targets, characters, bytes
};

TokenId first_token(const Tokenizer& tokenizer) {
  if (const auto end = document_end_token(tokenizer)) return *end;
  const auto line_end = tokenizer.encode("\n");
  return line_end.ok() ? line_end->front() : 0;
}

/// Shows the ends of documents of the char tokenizer as GPT-2's are shown.
std::string visible(const std::string& text) {
  std::string out;
  for (const char c : text) c == kDocumentEnd ? out.append(Gpt2Tokenizer::kEndOfText) : out.append(1, c);
  return out;
}

/// Returns `prompt` and what `continuation` makes of its tokens.
absl::StatusOr<std::string> continued(
    const Tokenizer& tokenizer, const std::string& prompt,
    absl::FunctionRef<std::vector<int64_t>(const std::vector<int64_t>& ids)> continuation) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::vector<TokenId> encoded, tokenizer.encode(prompt));
  std::vector<int64_t> ids(encoded.begin(), encoded.end());
  if (ids.empty()) ids.push_back(first_token(tokenizer));
  const std::vector<int64_t> generated = continuation(ids);
  const std::vector<TokenId> tokens(generated.begin(), generated.end());
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, tokenizer.decode(tokens));
  return replace_invalid_utf8(visible(prompt + text));
}

/// A language model of a user, which returns logits or the mean loss.
class UserModel {
 public:
  UserModel(ModelOutputs outputs, const LanguageOptions& options)
      : outputs_(std::move(outputs)), input_(options.input_field), target_(options.target_field) {}

  /// Returns the mean loss of a batch, a scalar.
  at::Tensor loss(torch::nn::Module& model, const Batch& batch) {
    at::Tensor outputs = outputs_(model, batch);
    if (outputs.dim() == 0) return outputs;
    TORCH_CHECK_VALUE(outputs.dim() == 3, "language: the outputs are logits (B, T, V) or a scalar loss, got ",
                      outputs.sizes());
    context_ = outputs.size(1);
    return language_model_loss(outputs, batch[target_]);
  }

  /// Returns a text without a prompt; empty for a model without logits.
  absl::StatusOr<std::string> text(torch::nn::Module& model, const Tokenizer& tokenizer,
                                   const GenerateOptions& options) const {
    if (model.as<TransformerImpl>()) {
      Transformer transformer(std::dynamic_pointer_cast<TransformerImpl>(model.shared_from_this()));
      return sample_text(transformer, tokenizer, "", options);
    }
    if (context_ == 0) return std::string();
    const at::NoGradGuard no_grad;
    const EvaluationMode evaluation(model);
    const at::Device device = model.parameters().front().device();
    const auto logits = [&](const at::Tensor& ids) {
      auto fields = std::make_shared<std::vector<FieldSpec>>();
      fields->push_back({input_, at::kLong, {ids.size(1)}});
      return outputs_(model, Batch(std::move(fields), {ids.to(device)}));
    };
    return continued(tokenizer, "",
                     [&](const std::vector<int64_t>& ids) { return generate(logits, ids, context_, options); });
  }

 private:
  ModelOutputs outputs_;
  std::string input_, target_;
  std::atomic<int64_t> context_ = 0;  // tokens of a row that had logits
};

class Language final : public Task {
 public:
  Language(std::shared_ptr<UserModel> model, LanguageOptions options)
      : Task([model](torch::nn::Module& module, const Batch& batch) { return model->loss(module, batch); },
             language_score(options.tokenizer, options.target_field)),
        model_(std::move(model)),
        options_(std::move(options)) {}

  LossOutput loss(const at::Tensor& mean, const Batch& batch, bool trains) const override;
  at::Tensor prediction(const at::Tensor&) const override { return {}; }
  at::Tensor truth(const Batch&) const override { return {}; }
  std::vector<ScoreName> score_names() const override {
    using Kind = ScoreName::Kind;
    return {{"perplexity", "perplexity", Kind::kNumber},
            {"bits_per_character", "bits per character", Kind::kNumber},
            {"bits_per_byte", "bits per byte", Kind::kNumber}};
  }
  Metrics evaluation_scores(const Score& score, const Metrics& means) const override;
  std::string row_word() const override { return "window"; }
  absl::Status write(const std::string& folder, const TestedRows& tested, ResultPage& page) const override;
  bool shows_weights(bool at_end) const override {
    return options_.tokenizer && options_.sampling.max_tokens > 0 && (at_end || options_.evaluation_tokens > 0);
  }
  absl::StatusOr<std::string> show(const ShownWeights& weights, const std::string& folder,
                                   ResultPage& page) const override;
  std::vector<std::string> prediction_columns() const override { return {}; }
  std::vector<std::string> prediction_fields(const at::Tensor&, int64_t) const override { return {}; }
  std::string table(const TestedRows& tested) const override {
    return detail::score_table(score_names(), tested.scores);
  }

 private:
  std::shared_ptr<UserModel> model_;
  LanguageOptions options_;
};

LossOutput Language::loss(const at::Tensor& mean, const Batch& batch, bool trains) const {
  const at::Tensor& targets = batch[options_.target_field];
  const auto positions = static_cast<double>(targets.numel());
  if (!trains && options_.targets_of) {
    int64_t count = 0;
    for (const int64_t row : batch.row_indices()) count += options_.targets_of(row);
    return {mean, static_cast<double>(count)};
  }
  if (!trains || options_.target_share == 1) return {mean, positions};
  const double expected = positions * options_.target_share;
  const at::Tensor count = (targets != kIgnoreIndex).sum();
  return {at::where(count > 0, mean * count, 0) / expected, expected};  // the mean of none is NaN
}

Metrics Language::evaluation_scores(const Score& score, const Metrics& means) const {
  const double loss = means.at("loss");
  Metrics scores = {{"perplexity", std::exp(loss)}};
  if (options_.characters_per_token > 0) {
    scores["bits_per_character"] = loss / std::numbers::ln2 / options_.characters_per_token;
  } else if (options_.tokenizer) {
    scores["bits_per_character"] = score.result().at("bits_per_character");
  }
  return scores;
}

absl::Status Language::write(const std::string& folder, const TestedRows& tested, ResultPage& page) const {
  const nlohmann::ordered_json json = tested.scores;
  TRAINKIT_RETURN_IF_ERROR(write_file_atomically(Fs::posix(), folder + "/scores.json", json.dump(2) + "\n"));
  const auto bits = tested.scores.find("bits_per_byte");
  page.add_tile(fmt::format("{:.3f}", tested.scores.at("perplexity")), "test perplexity",
                bits == tested.scores.end() ? "" : fmt::format("{:.4f} bits per byte", bits->second));
  page.add_note(tested_weights_note(tested.step));
  return absl::OkStatus();
}

absl::StatusOr<std::string> Language::show(const ShownWeights& weights, const std::string& folder,
                                           ResultPage& page) const {
  if (const auto perplexity = weights.metrics.find("perplexity"); perplexity != weights.metrics.end()) {
    page.add_tile(fmt::format("{:.3f}", perplexity->second), "perplexity",
                  fmt::format("{:.4f} bits per character", weights.metrics.at("bits_per_character")));
  }
  GenerateOptions sampling = options_.sampling;
  if (!weights.at_end) sampling.max_tokens = std::min(sampling.max_tokens, options_.evaluation_tokens);
  TRAINKIT_ASSIGN_OR_RETURN(const std::string text, model_->text(weights.model, *options_.tokenizer, sampling));
  if (text.empty()) return std::string();
  const char* which = !weights.at_end ? "" : weights.is_best ? ", the best in validation" : ", the last weights";
  TRAINKIT_RETURN_IF_ERROR(
      detail::add_generated_text(folder,
                                 {.step = weights.at_end ? detail::kLastText : weights.step,
                                  .title = fmt::format("Weights of step {}, temperature {:g}, seed {}{}", weights.step,
                                                       sampling.temperature, sampling.seed, which),
                                  .text = text},
                                 page));
  return "--- text generated by the model ---\n" + text + "\n---";
}

}  // namespace

std::unique_ptr<Score> language_score(const std::shared_ptr<const Tokenizer>& tokenizer,
                                      const std::string& target_field) {
  return std::make_unique<LanguageScore>(tokenizer ? token_sizes(*tokenizer) : at::Tensor(), target_field, at::kCPU);
}

absl::StatusOr<std::string> sample_text(Transformer& model, const Tokenizer& tokenizer, const std::string& prompt,
                                        const GenerateOptions& options) {
  return continued(tokenizer, prompt, [&](const std::vector<int64_t>& ids) { return generate(model, ids, options); });
}

namespace detail {

std::shared_ptr<Task> make_language(ModelOutputs outputs, LanguageOptions options) {
  TORCH_CHECK_VALUE(options.target_share > 0 && options.target_share <= 1, "language: target_share is in (0, 1], got ",
                    options.target_share);
  auto model = std::make_shared<UserModel>(std::move(outputs), options);
  return std::make_shared<Language>(std::move(model), std::move(options));
}

}  // namespace detail
}  // namespace trainkit
