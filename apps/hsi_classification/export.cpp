#include "hsi_classification/export.h"

#include <ATen/ops/softmax.h>
#include <ATen/ops/zeros.h>

#include <memory>
#include <nlohmann/json.hpp>

#include "hsi_classification/models.h"
#include "hsi_classification/trained_scene.h"
#include "trainkit/core/status.h"
#include "trainkit/onnx/onnx.h"

namespace trainkit::hsi {
namespace {

absl::StatusOr<OnnxModel> onnx_model(const TrainedRun& run, const HsiOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string stored, run.file(kTrainedSceneFile, "the statistics of its scene"));
  TRAINKIT_ASSIGN_OR_RETURN(const TrainedScene trained, load_trained_scene(stored));
  const HsiModelOptions sizes = model_options(options, trained.preprocessing.output_bands(), trained.num_classes());
  TRAINKIT_ASSIGN_OR_RETURN(const Predictor predictor, run.load([&] { return create_model(sizes); }));
  const auto network = std::dynamic_pointer_cast<HsiModel>(predictor.model().shared_from_this());
  const auto forward = [network, preprocessing = trained.preprocessing](const std::vector<at::Tensor>& inputs) {
    const at::Tensor scores = network->forward(prepare_spectra(inputs[0], preprocessing));
    return std::vector{scores, at::softmax(scores, 1)};
  };
  OnnxModel model{.module = network,
                  .inputs = {{"patches", at::zeros({1, sizes.patch_size, sizes.patch_size, trained.bands()})}},
                  .forward = forward,
                  .outputs = {"scores", "probabilities"},
                  .metadata = {{"class_names", nlohmann::json(trained.class_names).dump()},
                               {"class_labels", nlohmann::json(trained.label_values).dump()}}};
  if (!trained.wavelengths.empty()) model.metadata["wavelengths"] = nlohmann::json(trained.wavelengths).dump();
  return model;
}

}  // namespace

AppCommand export_command(App& app, const HsiOptions& options) {
  return trainkit::export_command(app, [&options](const TrainedRun& run) { return onnx_model(run, options); });
}

}  // namespace trainkit::hsi
