// Trains a character model on a text: perplexity, bits per character and generated texts are the kit's.
#include <torch/nn/modules/embedding.h>
#include <torch/nn/modules/linear.h>
#include <torch/nn/modules/rnn.h>

#include "trainkit/app/app.h"
#include "trainkit/core/status.h"
#include "trainkit/data/token_windows.h"
#include "trainkit/tasks/language.h"
#include "trainkit/text/documents.h"

using namespace trainkit;

struct NetImpl : torch::nn::Module {
  explicit NetImpl(int64_t vocab_size)
      : embed(register_module("embed", torch::nn::Embedding(vocab_size, 64))),
        gru(register_module("gru", torch::nn::GRU(torch::nn::GRUOptions(64, 128).batch_first(true)))),
        head(register_module("head", torch::nn::Linear(128, vocab_size))) {}
  at::Tensor forward(const at::Tensor& ids) { return head(std::get<0>(gru(embed(ids)))); }
  torch::nn::Embedding embed;
  torch::nn::GRU gru;
  torch::nn::Linear head;
};
TORCH_MODULE(Net);

struct CharModelApp final : App {
  AppInfo info() const override {
    return {.name = "char_model", .description = "Learns the text of --input.", .files = {"tokenizer.json"}};
  }
  void add_flags(ConfigParser& parser) override {
    parser.add(
        "input", &input,
        {.help = "A text file, JSON lines or a folder; its tokens are stored next to it.", .path = PathKind::kInput});
  }
  absl::StatusOr<TrainingTask> open(RunContext&) override {
    TRAINKIT_ASSIGN_OR_RETURN(const Documents text, open_documents(input, {}, input + ".prepared"));
    TRAINKIT_ASSIGN_OR_RETURN(tokenizer, CharTokenizer::from_text(text.content));
    TRAINKIT_ASSIGN_OR_RETURN(const auto tokens, cached_tokens(input + ".tokens", text, *tokenizer));
    const int64_t training = tokens.size() * 9 / 10;
    const ValidationRows validation = validation_rows(
        {std::make_shared<TokenWindows>(tokens, TokenWindowsOptions{.begin = training, .whole = true})});
    return TrainingTask{.recipe = {.make_model = [classes = tokenizer->vocab_size()] { return Net(classes).ptr(); }},
                        .training_set = std::make_shared<TokenWindows>(tokens, TokenWindowsOptions{.end = training}),
                        .validation_set = validation.dataset,
                        .task = language([](Net& net, const Batch& batch) { return net->forward(batch["x"]); },
                                         {.targets_of = validation.targets_of, .tokenizer = tokenizer}),
                        .keep_best = true,
                        .data_digest = tokens.origin().source_digest};
  }
  absl::Status save(const RunOptions& run) const override {
    return save_tokenizer(*tokenizer, run.output_dir + "/tokenizer.json");
  }
  std::string input;
  std::shared_ptr<const Tokenizer> tokenizer;
};

int main(int argc, char** argv) {
  CharModelApp app;
  return run_app(argc, argv, app);
}
