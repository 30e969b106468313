// --init_from of trainkit-transformer: rows of the vocabulary keep their characters.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "apps/transformer/text_place.h"
#include "test_util.h"
#include "trainkit/nn/transformer.h"
#include "trainkit/train/weights.h"
#include "transformer/initial_rows.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

TransformerOptions small_options() {
  TransformerOptions options;
  options.model.hidden_dim = 8;
  options.model.n_heads = 2;
  return options;
}

Transformer model_of(int64_t vocab_size, bool tied = true) {
  return Transformer(TransformerConfig{
      .vocab_size = vocab_size, .block_size = 4, .n_layers = 1, .n_heads = 2, .hidden_dim = 8, .tied_head = tied});
}

absl::Status load(Transformer& model, const std::string& file, const std::string& text, RunFacts& facts) {
  const auto tokenizer = CharTokenizer::from_text(text).value();
  LoadWeightsOptions options;
  const RunWeights from{.run = split_path(file).first, .file = file};
  absl::Status adapted = adapt_rows(from, *tokenizer, small_options(), options, facts);
  return adapted.ok() ? load_weights(*model, file, options).status() : adapted;
}

}  // namespace

TEST_CASE("Rows of the vocabulary are taken by their characters", "[apps][transformer]") {
  for (const bool tied : {true, false}) {
    TempDir dir;
    Transformer earlier = model_of(3, tied), model = model_of(4, tied);
    REQUIRE(save_tokenizer(*CharTokenizer::from_text("ace").value(), dir / "tokenizer.json").ok());
    REQUIRE(save_safetensors(Fs::posix(), dir / "w.safetensors", named_tensors(*earlier)).ok());
    const at::Tensor fresh = model->named_parameters()["transformer.wte.weight"].detach().clone();
    RunFacts facts;
    REQUIRE(load(model, dir / "w.safetensors", "abcd", facts) == absl::OkStatus());
    CHECK_THAT(facts.at(0).second, Catch::Contains("2 of 4 characters"));
    for (const std::string name : {"transformer.wte.weight", "lm_head.weight"}) {
      if (tied && name == "lm_head.weight") continue;
      const at::Tensor rows = model->named_parameters()[name].detach(),
                       old = earlier->named_parameters()[name].detach();
      CHECK(torch::equal(rows[0], old[0]));
      CHECK(torch::equal(rows[2], old[1]));
      if (tied) CHECK(torch::equal(rows[1], fresh[1]));
    }
  }
}

TEST_CASE("Weights of another vocabulary or number of heads are refused, and without a tokenizer there is a warning",
          "[apps][transformer]") {
  TempDir dir;
  Transformer model = model_of(3);
  const std::string file = dir / "w.safetensors";
  REQUIRE(save_safetensors(Fs::posix(), file, named_tensors(*model)).ok());
  RunFacts facts;
  REQUIRE(load(model, file, "abc", facts).ok());
  CHECK(facts.at(0).first == "warning:");
  REQUIRE(save_tokenizer(*CharTokenizer::from_text("xyz").value(), dir / "tokenizer.json").ok());
  CHECK_THAT(error_line(load(model, file, "abc", facts)), Catch::Contains("has none of these characters"));
  std::ofstream(dir / "config.yaml")
      << "# trainkit-transformer 0.1.0\nhidden_dim: 8    # --hidden_dim\nn_heads: 4    # --n_heads\n";
  const absl::Status heads = load(model, file, "xyz", facts);
  CHECK(exit_code(heads) == ExitCode::kWeights);
  CHECK_THAT(error_line(heads),
             Catch::Contains("n_heads: another number of heads than in this run (got '4', expected 2)"));
}

TEST_CASE("A run starts from the folder, the best weights or a checkpoint of another run", "[apps][transformer]") {
  const Place place;
  const Ended first =
      run(place, place.flags("first", {"--max_steps", "10", "--save_every", "10", "--eval_every", "10"}));
  INFO(first.errors);
  REQUIRE(first.code == 0);
  std::ofstream(place.dir / "other.txt") << read_text(place.dir / "text.txt") << "\xc3\xa9\xc3\xa9 \xc3\xa9";
  for (const char* from : {"first", "first/best.safetensors", "first/checkpoints/latest",
                           "first/checkpoints/step-00000010/model.safetensors"}) {
    auto flags = place.flags("again", {"--max_steps", "1", "--init_from", place.dir / from, "--overwrite"});
    set_flag(flags, "--input", place.dir / "other.txt");
    const Ended again = run(place, flags);
    INFO(from << again.errors);
    CHECK(again.code == 0);
    CHECK_THAT(again.output, Catch::Contains("tokenizer.json; new rows start as in a new model"));
  }
}
