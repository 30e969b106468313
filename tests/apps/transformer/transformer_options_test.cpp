#include "apps/presets.h"
#include "test_util.h"
#include "transformer/options.h"

using namespace trainkit;
using namespace trainkit::transformer;

namespace {

struct Parsed {
  RunOptions run;
  TransformerOptions options;
  ConfigParser parser{{.name = "trainkit-transformer"}};
  absl::StatusOr<Request> request = Request::kRun;

  explicit Parsed(const std::vector<std::string>& arguments) {
    set_run_defaults(run);
    add_run_flags(parser, run);
    add_transformer_flags(parser, options);
    request = parser.parse(arguments);
  }
};

const std::vector<std::string> kPresets = {"small_gpu", "large_gpu", "shakespeare_char_cpu"};

}  // namespace

TEST_CASE("The guide's flags exist under the guide's names", "[apps][transformer_options]") {
  Parsed p({"--batch-size",
            "16",
            "--hidden-dim",
            "256",
            "--n-layers",
            "3",
            "--max-epochs",
            "100",
            "--device",
            "cpu",
            "--no-mixed-precision",
            "--dropout",
            "0.1",
            "--n-heads",
            "4",
            "--block-size",
            "64",
            "--gradient-checkpointing",
            "--tokenizer",
            "gpt2",
            "--vocab",
            "v",
            "--merges",
            "m",
            "--sample",
            "To be",
            "--use-wandb"});
  REQUIRE(p.request.ok());
  CHECK(p.run.batch_size.value == 16);
  CHECK(p.run.epochs == 100);
  CHECK(p.options.model.hidden_dim == 256);
  CHECK(p.options.model.n_layers == 3);
  CHECK(p.options.gradient_checkpointing);
  CHECK(p.options.sample == "To be");
  CHECK(check_transformer_options(p.parser, p.options).ok());
  const TransformerConfig config = model_config(p.options, 65);
  CHECK(config.n_heads == 4);
  CHECK(config.block_size == 64);
  CHECK(config.dropout == 0.1);
}

TEST_CASE("Defaults depend on the device, and user flags override them", "[apps][transformer_options]") {
  Parsed cpu({});
  cpu.parser.set_defaults(device_defaults(/*cuda=*/false), "cpu");
  CHECK((cpu.run.batch_size.value == 4 && cpu.options.model.hidden_dim == 512 && cpu.options.model.n_layers == 6));
  CHECK((cpu.run.grad_accum_steps == 8 && !cpu.run.mixed_precision));
  Parsed gpu({"--hidden-dim", "64"});
  gpu.parser.set_defaults(device_defaults(/*cuda=*/true), "cuda");
  CHECK((gpu.run.batch_size.value == 16 && gpu.options.model.hidden_dim == 64 && gpu.options.model.n_layers == 3));
  CHECK((gpu.run.grad_accum_steps == 2 && gpu.run.mixed_precision));
}

TEST_CASE("Presets equal the guide's and nanoGPT's", "[apps][transformer_options]") {
  Parsed small({"--preset", "small_gpu"});
  CHECK(
      (small.run.batch_size.value == 8 && small.options.model.hidden_dim == 128 && small.options.model.n_layers == 2));
  Parsed large({"--preset", "large_gpu"});
  CHECK(
      (large.run.batch_size.value == 32 && large.options.model.hidden_dim == 512 && large.options.model.n_layers == 6));
  Parsed nano({"--preset", "shakespeare_char_cpu"});
  REQUIRE(nano.request.ok());
  CHECK((nano.run.batch_size.value == 12 && nano.run.max_steps == 2000 && nano.run.lr == 1e-3));
  CHECK((nano.options.model.block_size == 64 && nano.options.model.n_heads == 4 && nano.options.beta2 == 0.99));
  CHECK(suggested_preset(8'000'000'000) == "small_gpu");
  CHECK(suggested_preset(16'000'000'000) == "");
  CHECK(suggested_preset(80'000'000'000) == "large_gpu");
}

TEST_CASE("The settings that --help lists for a preset are those that it gives", "[apps][transformer_options]") {
  for (const std::string& preset : kPresets) {
    for (const bool cuda : {false, true}) {
      Parsed p({"--preset", preset});
      p.parser.set_defaults(device_defaults(cuda), cuda ? "cuda" : "cpu");
      test::check_preset(p.parser, kPresets, preset);
    }
  }
}

TEST_CASE("Values out of range are usage errors that name the flag", "[apps][transformer_options]") {
  for (const auto& [flag, value] : std::vector<std::pair<std::string, std::string>>{{"--hidden-dim", "0"},
                                                                                    {"--n-layers", "-1"},
                                                                                    {"--n-heads", "-1"},
                                                                                    {"--block-size", "0"},
                                                                                    {"--dropout", "1"},
                                                                                    {"--dropout", "-0.1"},
                                                                                    {"--tokenizer", "words"},
                                                                                    {"--beta2", "1"},
                                                                                    {"--temperature", "-1"},
                                                                                    {"--top-k", "-1"},
                                                                                    {"--eval-max-rows", "-1"},
                                                                                    {"--jsonl-field", ""},
                                                                                    {"--final-lr-share", "1.5"},
                                                                                    {"--sample-tokens", "0"}}) {
    const Parsed p({flag, value});
    INFO(flag << " " << value);
    CHECK(exit_code(p.request.status()) == ExitCode::kUsage);
    CHECK(error_line(p.request.status()).find(flag.substr(2, 4)) != std::string::npos);
  }
  Parsed heads({"--hidden-dim", "128", "--n-heads", "3"});
  const absl::Status status = check_transformer_options(heads.parser, heads.options);
  CHECK(exit_code(status) == ExitCode::kUsage);
  CHECK(error_line(status).find("divisor of --hidden-dim 128") != std::string::npos);
  Parsed gpt2({"--tokenizer", "gpt2"});
  CHECK(exit_code(check_transformer_options(gpt2.parser, gpt2.options)) == ExitCode::kUsage);
}
