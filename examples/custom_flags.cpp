// A custom program with typed flags, a preset, a configuration file and the flags shared by all trainers.
//
//   example_custom_flags --help
//   example_custom_flags --preset small --lr 1e-4 --print_config
#include <iostream>

#include "trainkit/app/run_options.h"
#include "trainkit/core/error.h"

using namespace trainkit;

namespace {

int report(const absl::Status& status) {
  std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}

}  // namespace

int main(int argc, char** argv) {
  enum class Pooling { kMean, kMax };
  RunOptions run{.output_dir = "runs/custom", .epochs = 20, .batch_size = {64}};
  int64_t width = 256;
  Pooling pooling = Pooling::kMean;

  ConfigParser parser({.name = "custom", .version = "1.0", .description = "Trains a custom model."});
  add_run_flags(parser, run);
  parser.add("width", &width, {.help = "Width of a layer.", .group = "Model", .min = 1, .max = 65536});
  parser.add("pooling", &pooling, {{"mean", Pooling::kMean}, {"max", Pooling::kMax}},
             {.help = "Pooling over rows.", .group = "Model"});
  parser.add_preset("small", {{"width", "64"}, {"batch_size", "16"}}, "for a laptop");
  parser.refuse("monitor", "this program has no monitor");

  const absl::StatusOr<Request> request = parser.parse(argc, argv);
  if (!request.ok()) return report(request.status());
  if (MachineInfo::here().cuda_devices == 0) parser.set_defaults({{"width", "128"}}, "cpu");
  if (*request != Request::kRun) return std::cout << parser.text(*request), 0;
  if (const absl::Status status = check_run_options(parser, run); !status.ok()) return report(status);

  std::cout << "width " << width << " (" << parser.source("width") << "), batch " << *run.batch_size.value << " ("
            << parser.source("batch_size") << "), pooling by " << (pooling == Pooling::kMean ? "mean" : "max") << "\n";
}
