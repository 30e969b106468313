// Runs the cases on cuda:0. Prints one line without a GPU.
#include <cstdio>

#include "device_rate.h"

int main(int argc, char** argv) {
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  if (!torch::cuda::is_available()) {
    std::puts("no GPU that LibTorch can use: no cases");
    return 0;
  }
  trainkit::bench::add_training_cases();
  trainkit::bench::add_operation_cases();
  trainkit::bench::add_loader_cases();
  benchmark::RunSpecifiedBenchmarks();
  benchmark::Shutdown();
  return 0;
}
