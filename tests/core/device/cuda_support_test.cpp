#include "core/device/cuda_support.h"

#include <dlfcn.h>

#include "test_util.h"

using namespace trainkit;

namespace {

/// A correctly configured machine; each test changes one fact.
const CudaFacts kGood = {.libtorch_cuda = 13000,
                         .driver_cuda = 13000,
                         .driver_version = "580.65.06",
                         .pci_gpus = 2,
                         .visible_devices = {},
                         .devices = 2,
                         .driver_error = {}};

CudaDiagnosis diagnose(const std::function<void(CudaFacts&)>& change) {
  CudaFacts facts = kGood;
  facts.devices = 0;
  change(facts);
  return diagnose_cuda(facts);
}

}  // namespace

TEST_CASE("A device that LibTorch can use is not reported as a problem") {
  const CudaDiagnosis diagnosis = diagnose_cuda(kGood);
  CHECK(diagnosis.state == CudaState::kReady);
  CHECK(diagnosis.problem.empty());
  CHECK(diagnosis.remedy.empty());
}

TEST_CASE("A missing driver is reported with the driver to install or the container flag") {
  const auto diagnosis = diagnose([](CudaFacts& facts) { facts.driver_cuda = 0; });
  CHECK(diagnosis.state == CudaState::kNoDriver);
  CHECK_THAT(diagnosis.remedy, Catch::Contains("580") && Catch::Contains("--gpus all"));
}

TEST_CASE("A missing driver on a machine without a GPU is reported as such") {
  const auto diagnosis = diagnose([](CudaFacts& facts) { facts.driver_cuda = facts.pci_gpus = 0; });
  CHECK(diagnosis.state == CudaState::kNoDriver);
  CHECK_THAT(diagnosis.problem, Catch::Contains("no NVIDIA GPU"));
  CHECK_THAT(diagnosis.remedy, Catch::Contains("--device cpu"));
}

TEST_CASE("A driver too old for CUDA 13 is reported with both remedies") {
  const auto diagnosis = diagnose([](CudaFacts& facts) {
    facts.driver_cuda = 12040;
    facts.driver_version = "550.54.15";
  });
  CHECK(diagnosis.state == CudaState::kDriverTooOld);
  CHECK(diagnosis.problem == "driver 550.54.15 supports CUDA up to 12.4, but LibTorch was built for 13.0");
  CHECK_THAT(diagnosis.remedy, Catch::Contains("driver 580 or later") && Catch::Contains("LibTorch for CUDA 12.6") &&
                                   Catch::Contains("pip install \"torch==2.14.*\" --index-url"));
}

TEST_CASE("A driver too old for CUDA 12 has no other LibTorch") {
  const auto diagnosis = diagnose([](CudaFacts& facts) { facts.driver_cuda = 11040; });
  CHECK(diagnosis.remedy == "install driver 580 or later");
}

TEST_CASE("A driver of an earlier minor version is new enough") {
  const auto diagnosis = diagnose([](CudaFacts& facts) {
    facts.libtorch_cuda = 13010;
    facts.driver_cuda = 13000;
  });
  CHECK(diagnosis.state == CudaState::kDriverFails);
}

TEST_CASE("A LibTorch without CUDA is reported before any driver problem") {
  for (const int driver : {0, 12040, 13000}) {
    const auto diagnosis = diagnose([&](CudaFacts& facts) {
      facts.libtorch_cuda = 0;
      facts.driver_cuda = driver;
    });
    CHECK(diagnosis.state == CudaState::kCpuOnlyLibTorch);
    CHECK_THAT(diagnosis.remedy, Catch::Contains("LibTorch for CUDA"));
  }
}

TEST_CASE("An empty CUDA_VISIBLE_DEVICES is reported, and so is one without a valid device") {
  for (const char* value : {"", "-1", "-1,0"}) {
    const auto diagnosis = diagnose([&](CudaFacts& facts) { facts.visible_devices = value; });
    CHECK(diagnosis.state == CudaState::kHidden);
    CHECK_THAT(diagnosis.remedy, Catch::Contains("unset CUDA_VISIBLE_DEVICES"));
  }
  for (const char* value : {"9", "0,0", "GPU-x"}) {
    const auto diagnosis = diagnose([&](CudaFacts& facts) { facts.visible_devices = value; });
    CHECK(diagnosis.state == CudaState::kNoSuchDevice);
    CHECK_THAT(diagnosis.problem, Catch::Contains(value));
  }
}

TEST_CASE("The root cause is reported first: a missing driver before hidden devices") {
  const auto diagnosis = diagnose([](CudaFacts& facts) {
    facts.driver_cuda = 0;
    facts.visible_devices = "";
  });
  CHECK(diagnosis.state == CudaState::kNoDriver);
}

TEST_CASE("The message quotes the error of a driver that fails") {
  const auto diagnosis = diagnose([](CudaFacts& facts) { facts.driver_error = "unknown error"; });
  CHECK(diagnosis.state == CudaState::kDriverFails);
  CHECK(diagnosis.problem == "the driver reports no GPU: unknown error");
}

TEST_CASE("The facts read from this machine match the driver library and LibTorch") {
  const CudaFacts facts = probe_cuda();
  const CudaDiagnosis diagnosis = diagnose_cuda(facts);
  INFO(diagnosis.problem);
  const bool driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL) != nullptr;
  CHECK((facts.driver_cuda > 0) == driver);
  CHECK((diagnosis.state == CudaState::kReady) == (torch::cuda::device_count() > 0));
  if (!driver && facts.libtorch_cuda > 0) CHECK(diagnosis.state == CudaState::kNoDriver);
}

TEST_CASE("CUDA versions are formatted as major.minor") {
  CHECK(cuda_version_text(13000) == "13.0");
  CHECK(cuda_version_text(12040) == "12.4");
}
