// trainkit-train as a user runs it, on a model written by hand.
#include <filesystem>
#include <fstream>

#include "apps/interruptions.h"
#include "apps/runs.h"
#include "nn/exported/handmade_model.h"
#include "test_util.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;
using namespace trainkit::test;
using Catch::Contains;

namespace {

/// A model of 8 inputs and 4 outputs with data that it can learn.
struct Place {
  Place() {
    torch::manual_seed(2);
    const at::Tensor x = at::rand({600, 8});
    std::filesystem::create_directories(dir / "data");
    std::filesystem::create_directories(dir / "new");
    REQUIRE(write_exported(dir / "model.tkm").ok());
    REQUIRE(write_npy(dir / "data/x.npy", x).ok());
    REQUIRE(write_npy(dir / "data/y.npy", x.slice(1, 0, 4).argmax(1)).ok());
    REQUIRE(write_npy(dir / "new/x.npy", x.slice(0, 0, 3)).ok());
  }
  Ended run(const std::vector<std::string>& words) const {
    return run_to_end("trainkit-train", words, dir.path().string());
  }
  std::vector<std::string> flags(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--model",      dir / "model.tkm",
                                    "--data_dir",   dir / "data",
                                    "--output_dir", dir / "run",
                                    "--lr",         "0.02",
                                    "--device",     "cpu",
                                    "--batch_size", "16"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  TempDir dir;
};

}  // namespace

TEST_CASE("trainkit-train trains, tests, reports and predicts without a line of C++", "[apps][train]") {
  const Place place;
  const Ended trained = place.run(place.flags({"--epochs", "8"}));
  INFO(trained.errors);
  REQUIRE(trained.code == 0);
  CHECK_THAT(trained.output, Contains("macro F1") && Contains("report"));
  const Json scores = Json::parse(read_text(place.dir / "run/results/scores.json"));
  CHECK(scores.dump().find("accuracy") != std::string::npos);
  const Ended predicted = place.run({"predict", place.dir / "run", place.dir / "new"});
  INFO(predicted.errors);
  REQUIRE(predicted.code == 0);
  CHECK_THAT(predicted.output, Contains("row,predicted,p_0,p_1,p_2,p_3\n0,"));
  // Fine-tuning of some layers from the weights in the file.
  const Ended frozen = place.run(place.flags({"--max_steps", "5", "--freeze", "hidden.*", "--overwrite"}));
  REQUIRE(frozen.code == 0);
  const auto weights = SafetensorsFile::open(place.dir / "run/best.safetensors");
  REQUIRE(weights.ok());
  const NamedTensors before = handmade_tensors();
  CHECK(weights->tensor("hidden.weight").value().equal(before[0].second));
  CHECK_FALSE(weights->tensor("out.weight").value().equal(before[2].second));
}

TEST_CASE("trainkit-train has the losses of regression, of several numbers and of the model itself", "[apps][train]") {
  const Place place;
  Json description = handmade_description();
  const auto check_runs = [&](const std::vector<std::string>& more) {
    const Ended ended = place.run(place.flags(more));
    INFO(ended.errors);
    CHECK(ended.code == 0);
    return ended.output;
  };
  // (600, 4) numbers: no task, the loss alone.
  REQUIRE(write_npy(place.dir / "data/y.npy", at::rand({600, 4})).ok());
  for (const char* loss : {"mse", "l1", "bce_with_logits"}) {
    CHECK_THAT(check_runs({"--loss", loss, "--max_steps", "4", "--overwrite"}), Contains("validation loss"));
  }
  CHECK_THAT(place.run(place.flags({"--loss", "output:score", "--overwrite"})).errors,
             Contains("the model has no output score") && Contains("expected output"));
  CHECK_THAT(place.run(place.flags({"--loss", "huber", "--overwrite"})).errors, Contains("cross_entropy, mse, l1"));
}

TEST_CASE("trainkit-train names what does not fit in one line", "[apps][train]") {
  const Place place;
  CHECK_THAT(place.run({"--data_dir", place.dir / "data"}).errors, Contains("model: not given"));
  CHECK_THAT(place.run({"--model", place.dir / "model.tkm"}).errors, Contains("data_dir: not given"));
  REQUIRE(write_npy(place.dir / "data/x.npy", at::rand({600, 9})).ok());
  const Ended wrong = place.run(place.flags());
  CHECK(wrong.code == 4);
  CHECK_THAT(wrong.errors, Contains("x: does not have the shape of the model's input") && Contains("(any, 8)"));
  std::filesystem::remove((place.dir / "data/x.npy"));
  CHECK_THAT(place.run(place.flags()).errors, Contains("the folder has no such array") && Contains("x.npy"));
  std::ofstream(place.dir / "model.tkm") << "no model";
  CHECK(place.run(place.flags()).code == 5);
}

TEST_CASE("Runs of trainkit-train interrupted at random moments end with the bytes of an uninterrupted run",
          "[apps][train][resume]") {
  const Place place;
  const auto flags = place.flags({"--epochs", "8", "--save_every", "7", "--eval_every", "20", "--ema", "0.9"});
  verify_resume("trainkit-train", flags, place.dir, Interruptions{.count = is_full() ? 200 : 5});
  if (is_full()) verify_resume("trainkit-train", flags, place.dir, Interruptions{.count = 50, .ranks = 2});
}
