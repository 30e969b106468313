// --init_from of trainkit-emotion: rows of the classifier keep their labels.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>

#include "emotion_recognition/initial_rows.h"
#include "emotion_recognition/model.h"
#include "emotion_recognition/predict.h"
#include "test_util.h"
#include "trainkit/train/weights.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace trainkit::emotion;

namespace {

EmotionModel model_of(int64_t labels) {
  return EmotionModel({.size = "simple", .fusion = "concat", .modality = Modality::kAudio, .num_classes = labels});
}

absl::Status load(EmotionModel& model, const std::string& file, const std::vector<std::string>& labels,
                  EmotionOptions options, RunFacts& facts) {
  LoadWeightsOptions load;
  const RunWeights from{.run = split_path(file).first, .file = file};
  absl::Status adapted = adapt_rows(from, labels, options, load, facts);
  return adapted.ok() ? load_weights(model, file, load).status() : adapted;
}

}  // namespace

TEST_CASE("Rows of the classifier are taken by their labels", "[apps][emotion]") {
  TempDir dir;
  EmotionModel earlier = model_of(2), model = model_of(3);
  const std::string file = dir / "best.safetensors", name = "fusion.classifier.weight";
  REQUIRE(save_labels(dir / kLabelsFile, {"joy", "anger"}).ok());
  REQUIRE(save_safetensors(Fs::posix(), file, named_tensors(earlier)).ok());
  const at::Tensor fresh = model.named_parameters()[name].detach().clone();
  EmotionOptions options;
  options.modality = "audio";
  RunFacts facts;
  REQUIRE(load(model, file, {"anger", "fear", "joy"}, options, facts) == absl::OkStatus());
  const at::Tensor rows = model.named_parameters()[name].detach(), old = earlier.named_parameters()[name].detach();
  CHECK(torch::equal(rows[0], old[1]));
  CHECK(torch::equal(rows[1], fresh[1]));
  CHECK(torch::equal(rows[2], old[0]));
  CHECK_THAT(error_line(load(model, file, {"a", "b", "c"}, options, facts)),
             Catch::Contains("has none of these labels"));
  std::filesystem::remove(dir / kLabelsFile);
  facts.clear();
  REQUIRE(load(earlier, file, {"anger", "joy"}, options, facts).ok());
  CHECK(facts.at(0).first == "warning:");
  options.modality = "both";
  options.model.fusion = "gated";
  std::ofstream(dir / "config.yaml") << "fusion_type: concat    # default\n";
  CHECK_THAT(error_line(load(model, file, {"joy"}, options, facts)),
             Catch::Contains("fusion_type: another fusion than in this run (got 'concat'"));
}
