// Files of a hyperspectral run: a split, the training scene's statistics, names of classes.
#include <ATen/ops/arange.h>
#include <ATen/ops/ones.h>

#include "hsi_classification/options.h"
#include "hsi_classification/split.h"
#include "hsi_classification/trained_scene.h"
#include "target.h"

namespace trainkit::fuzz::scene_files {
namespace {

constexpr int64_t kHeight = 3, kWidth = 4;

hsi::Split split() {
  return {.train = at::arange(0, 4, at::kLong),
          .validation = at::arange(4, 6, at::kLong),
          .test = at::arange(8, 12, at::kLong)};
}

hsi::TrainedScene scene() {
  return {.preprocessing = {.bands = {.mean = at::ones({5}, at::kDouble), .std = at::ones({5}, at::kDouble)}},
          .label_values = {1, 3},
          .class_names = {"corn", "wheat"},
          .wavelengths = {400, 410, 420, 430, 440}};
}

}  // namespace

std::vector<std::string> seeds() {
  const std::string path = folder() + "/seed";
  require(hsi::save_split(path, split(), kHeight, kWidth).ok(), "a split is written");
  const std::string split_file = read_bytes(path);
  require(hsi::save_trained_scene(path, scene()).ok(), "a scene is written");
  return {split_file, read_bytes(path), "corn\nwheat\n\xc3\xa9peautre\n"};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string path = write_bytes("input", as_text(data, size)), copy = folder() + "/copy";
  if (const auto read = hsi::load_split(path, kHeight, kWidth); read.ok()) {
    require(hsi::save_split(copy, *read, kHeight, kWidth).ok(), "a split is written");
    const auto again = hsi::load_split(copy, kHeight, kWidth);
    require(again.ok() && same_bits(again->train, read->train) && same_bits(again->test, read->test), "and read back");
  } else {
    require_named(read.status(), {"data.split"});
  }
  if (const auto read = hsi::load_trained_scene(path); read.ok()) {
    require(read->num_classes() == std::ssize(read->class_names), "each class has a name");
    require(hsi::save_trained_scene(copy, *read).ok(), "a scene is written");
    const auto again = hsi::load_trained_scene(copy);
    require(again.ok() && same_bits(again->preprocessing.bands.mean, read->preprocessing.bands.mean), "and read back");
  } else {
    require_named(read.status(), {"weights."});
  }
  hsi::HsiOptions options;
  options.scene.class_names = {path};
  if (const absl::Status status = hsi::resolve_class_names(options); !status.ok()) {
    require_named(status, {"data.class_names", "storage.", "data."});
  }
  return 0;
}

const Registered target("scene_files", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::scene_files
