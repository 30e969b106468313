// Selection of the compiled kernels that run on a GPU.
#include "core/device/gpu_kernel_support.h"

#include <thread>

#include "core/device/gpu_operations.h"
#include "test_util.h"

using namespace trainkit;
using trainkit::detail::compiled_kernel_codes;
using trainkit::detail::kernel_code_for;
using trainkit::detail::parse_kernel_codes;

namespace {

constexpr const char* kDefault = "sm_75 sm_80 sm_86 sm_89 sm_90 sm_100 sm_120 compute_120";

/// nvcc's name of the code that runs on a capability; empty if there is none.
std::string code_for(const std::string& codes, int capability) {
  const auto code = kernel_code_for(parse_kernel_codes(codes), capability);
  return code ? code->name() : "";
}

}  // namespace

TEST_CASE("A GPU runs the latest default architecture of its major version, else PTX that is not later") {
  for (const auto& [capability, expected] : std::vector<std::pair<int, std::string>>{{50, ""},
                                                                                     {61, ""},
                                                                                     {70, ""},
                                                                                     {72, ""},
                                                                                     {75, "sm_75"},
                                                                                     {80, "sm_80"},
                                                                                     {86, "sm_86"},
                                                                                     {87, "sm_86"},
                                                                                     {89, "sm_89"},
                                                                                     {90, "sm_90"},
                                                                                     {100, "sm_100"},
                                                                                     {103, "sm_100"},
                                                                                     {110, ""},
                                                                                     {120, "sm_120"},
                                                                                     {121, "sm_120"},
                                                                                     {130, "compute_120"}}) {
    CAPTURE(capability);
    CHECK(code_for(kDefault, capability) == expected);
  }
}

TEST_CASE("A shorter architecture list runs where its code does, with and without PTX") {
  CHECK(code_for("sm_86", 80) == "");
  CHECK(code_for("sm_86", 86) == "sm_86");
  CHECK(code_for("sm_86", 89) == "sm_86");
  CHECK(code_for("sm_86", 90) == "");
  const std::string with_ptx = "sm_86 sm_90 compute_90";  // TORCH_CUDA_ARCH_LIST=8.6;9.0+PTX
  CHECK(code_for(with_ptx, 80) == "");
  CHECK(code_for(with_ptx, 89) == "sm_86");
  CHECK(code_for(with_ptx, 90) == "sm_90");
  CHECK(code_for(with_ptx, 100) == "compute_90");
  CHECK(code_for(with_ptx, 120) == "compute_90");
  CHECK(code_for("compute_75 compute_80", 86) == "compute_80");
  CHECK(code_for("sm_90 sm_86 sm_80", 89) == "sm_86");  // in any order
}

TEST_CASE("Code of architecture 'a' runs on that capability only, code of 'f' on its major version") {
  CHECK(code_for("sm_90a compute_90a", 90) == "sm_90a");
  CHECK(code_for("sm_90a compute_90a", 100) == "");
  CHECK(code_for("compute_90a", 90) == "compute_90a");
  CHECK(code_for("sm_100a", 103) == "");
  CHECK(code_for("sm_100f", 103) == "sm_100f");
  CHECK(code_for("compute_100f", 103) == "compute_100f");
  CHECK(code_for("compute_100f", 120) == "");
}

TEST_CASE("Invalid architecture names are skipped") {
  CHECK(parse_kernel_codes("").empty());
  CHECK(parse_kernel_codes("sm_ compute_x sm_90b sm_90aa lto_90 90").empty());
  const auto one = parse_kernel_codes("  sm_89  ");
  REQUIRE(one.size() == 1);
  CHECK(one[0].name() == "sm_89");
}

TEST_CASE("All compiled-in codes have names that nvcc knows") {
  std::string joined;
  for (const auto& code : parse_kernel_codes(compiled_kernel_codes())) {
    joined += (joined.empty() ? "" : " ") + code.name();
  }
  CHECK(joined == compiled_kernel_codes());
#ifdef TRAINKIT_WITH_CUDA
  CHECK_FALSE(joined.empty());
#endif
}

TEST_CASE("The warning about a GPU without kernels gives its name, the fallback and the remedy") {
  CHECK(trainkit::detail::missing_kernels_text(1, 70, "sm_75 compute_75") ==
        "cuda:1 has compute capability 7.0, but this build has kernels for sm_75 compute_75 only; LibTorch's "
        "operations are used instead; rebuild with TORCH_CUDA_ARCH_LIST=7.0");
  CHECK(trainkit::detail::missing_kernels_text(0, 120, "").find("this build has no kernels;") != std::string::npos);
}

TEST_CASE("GpuOperations without kernels disables them in its thread during its lifetime") {
  using trainkit::detail::GpuOperations;
  CHECK(GpuOperations::has_kernels());
  {
    const GpuOperations none(true, /*has_kernels=*/false);
    CHECK_FALSE(GpuOperations::has_kernels());
    CHECK_FALSE(trainkit::has_gpu_kernels(at::Device(at::kCUDA, 0)));
    const GpuOperations inner(true);
    CHECK_FALSE(GpuOperations::has_kernels());
    bool elsewhere = false;
    std::thread([&] { elsewhere = GpuOperations::has_kernels(); }).join();
    CHECK(elsewhere);
  }
  CHECK(GpuOperations::has_kernels());
  CHECK_FALSE(GpuOperations::wanted());
}
