#include <ATen/Functions.h>
#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>
#include <vector>

#include "hsi_classification/scene.h"
#include "trainkit/arrays/mat.h"
#include "trainkit/core/random.h"
#include "trainkit/core/status.h"

namespace trainkit::hsi {
namespace {

/// Purposes of random numbers; they separate the streams.
enum Draw : uint64_t { kFields = 1, kCurves, kPixels, kDrift };

constexpr double kFieldPixels = 330;  // a field of Indian Pines has a few hundred
constexpr double kUnused = 0.2;       // share of unlabelled fields
constexpr double kPathWidth = 1.0;    // half width of a path, in pixels
constexpr double kBorder = 1.2;       // range of light from the next field, in pixels
constexpr double kMostMixed = 0.35;   // maximum share of another class in a pixel inside a field
constexpr double kNoise = 0.02;       // relative to full scale
constexpr double kFullScale = 8000;   // of the sensor's 16 bits

using Curve = std::vector<double>;

struct Field {
  double row = 0, column = 0;
  int64_t class_index = 0;
  bool labelled = true;
};

/// Returns a spectrum per class: a few broad peaks. Classes 2k and 2k+1 differ in one peak only, like similar crops.
std::vector<Curve> class_curves(const DemoSceneOptions& options) {
  std::vector<Curve> curves;
  const auto add_hill = [&](Curve& curve, RandomStream& random, double height) {
    const double centre = random.uniform(), width = 0.05 + 0.2 * random.uniform();
    for (int64_t b = 0; b < options.bands; ++b) {
      const double x = (static_cast<double>(b) / static_cast<double>(options.bands) - centre) / width;
      curve[b] += height * std::exp(-0.5 * x * x);
    }
  };
  for (int64_t c = 0; c < options.classes; ++c) {
    RandomStream shared(hash_key(options.seed, kCurves, c / 2)),
        own(hash_key(options.seed, kCurves, options.classes + c));
    Curve curve(options.bands, 0.15);
    for (int hill = 0; hill < 4; ++hill) add_hill(curve, shared, 0.1 + 0.25 * shared.uniform());
    add_hill(curve, own, 0.06 + 0.06 * own.uniform());
    curves.push_back(std::move(curve));
  }
  return curves;
}

std::vector<Field> random_fields(const DemoSceneOptions& options) {
  const auto wanted = static_cast<int64_t>(static_cast<double>(options.height * options.width) / kFieldPixels);
  const int64_t count = std::max(2 * options.classes, wanted);
  RandomStream random(hash_key(options.seed, kFields));
  std::vector<Field> fields;
  for (int64_t i = 0; i < count; ++i) {
    fields.push_back({random.uniform() * static_cast<double>(options.height),
                      random.uniform() * static_cast<double>(options.width),
                      i < options.classes ? i : static_cast<int64_t>(random.below(options.classes)),
                      i < options.classes || random.uniform() >= kUnused});
  }
  return fields;
}

/// The two fields nearest to a pixel, and the difference of their distances.
struct Place {
  const Field* field = nullptr;
  const Field* next = nullptr;
  double margin = 0;
};

Place place_of(const std::vector<Field>& fields, double row, double column) {
  double first = 1e300, second = 1e300;
  Place place;
  for (const Field& field : fields) {
    // nearly rectangular distance: fields are rectangular
    const double distance = std::max(std::abs(field.row - row), std::abs(field.column - column)) +
                            0.2 * (std::abs(field.row - row) + std::abs(field.column - column));
    if (distance < first) {
      second = std::exchange(first, distance);
      place.next = std::exchange(place.field, &field);
    } else if (distance < second) {
      second = distance;
      place.next = &field;
    }
  }
  place.margin = second - first;
  return place;
}

/// Returns the brightness at a position, a slow wave from 0.85 to 1.15 like clouds and slopes.
double brightness(const DemoSceneOptions& options, double row, double column) {
  RandomStream random(hash_key(options.seed, kDrift));
  const double phase = random.uniform(), slant = random.uniform();
  const double x = column / static_cast<double>(options.width), y = row / static_cast<double>(options.height);
  return 1 + 0.15 * std::sin(2 * std::numbers::pi * (x + slant * y + phase));
}

void write_pixel(const DemoSceneOptions& options, const std::vector<Curve>& curves, const Place& place, int64_t row,
                 int64_t column, uint16_t* out) {
  RandomStream random(hash_key(options.seed, kPixels, row, column));
  const Curve& own = curves[place.field->class_index];
  const Curve& next = curves[place.next->class_index];
  const Curve& other = curves[random.below(curves.size())];
  const double near = 0.5 * std::exp(-place.margin / kBorder);  // 0.5 at the border
  const double mixed = kMostMixed * random.uniform() * random.uniform();
  const double light =
      brightness(options, static_cast<double>(row), static_cast<double>(column)) * (1 + 0.03 * random.normal());
  for (int64_t b = 0; b < options.bands; ++b) {
    const double pure = (1 - near) * own[b] + near * next[b];
    const double value = light * ((1 - mixed) * pure + mixed * other[b]) + kNoise * random.normal();
    out[b] = static_cast<uint16_t>(std::clamp(value * kFullScale, 0.0, 65535.0));
  }
}

}  // namespace

absl::Status write_demo_scene(const std::string& dir, const DemoSceneOptions& options) {
  TORCH_CHECK_VALUE(options.height >= 8 && options.width >= 8 && options.bands >= 1,
                    "height and width must be >= 8 and bands >= 1");
  TORCH_CHECK_VALUE(options.classes >= 2 && options.classes <= 255, "classes must be in 2..255, got ", options.classes);
  const auto curves = class_curves(options);
  const auto fields = random_fields(options);
  at::Tensor cube = at::empty({options.height, options.width, options.bands}, at::kUInt16);
  at::Tensor truth = at::zeros({options.height, options.width}, at::kByte);
  auto* values = static_cast<uint16_t*>(cube.data_ptr());
  auto* labels = truth.data_ptr<uint8_t>();
  for (int64_t row = 0; row < options.height; ++row) {
    for (int64_t column = 0; column < options.width; ++column) {
      const Place place = place_of(fields, static_cast<double>(row), static_cast<double>(column));
      const int64_t pixel = row * options.width + column;
      write_pixel(options, curves, place, row, column, values + pixel * options.bands);
      const bool path = place.margin < kPathWidth && place.field->class_index != place.next->class_index;
      if (place.field->labelled && !path) labels[pixel] = static_cast<uint8_t>(place.field->class_index + 1);
    }
  }
  const std::pair<std::string, at::Tensor> scene[] = {{"demo", cube}}, ground_truth[] = {{"demo_gt", truth}};
  TRAINKIT_RETURN_IF_ERROR(write_mat(dir + "/demo.mat", scene));
  return write_mat(dir + "/demo_gt.mat", ground_truth);
}

Scene planned_scene(const PlannedSceneOptions& options) {
  RandomStream random(hash_key(uint64_t{0}, kPixels));
  at::Tensor cube = at::empty({options.height, options.width, options.bands}, at::kFloat);
  auto* values = cube.mutable_data_ptr<float>();
  for (int64_t i = 0; i < cube.numel(); ++i) values[i] = static_cast<float>(random.uniform());
  at::Tensor labels = at::zeros({options.height, options.width}, at::kLong);
  auto* classes = labels.mutable_data_ptr<int64_t>();
  for (int64_t i = 0; i < options.labelled; ++i) {
    classes[i * labels.numel() / options.labelled] = i % options.classes + 1;
  }
  Scene scene{.name = "planned scene", .cube = cube, .labels = std::move(labels)};
  for (int64_t label = 1; label <= options.classes; ++label) {
    scene.label_values.push_back(label);
    scene.class_names.push_back("class " + std::to_string(label));
  }
  return scene;
}

}  // namespace trainkit::hsi
