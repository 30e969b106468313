#include "trainkit/verify.h"

#include <fmt/format.h>
#include <torch/cuda.h>

#include <algorithm>
#include <chrono>
#include <cstdio>

#include "core/device/gpu_kernel_support.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::tool {
namespace {

using Clock = std::chrono::steady_clock;

/// A check that runs on each device.
struct DeviceCheck {
  const char* name;   // in --verify_only
  const char* title;  // in the report
  Checked (*run)(at::Device);
};
constexpr DeviceCheck kDeviceChecks[] = {{"memory", "memory of a step", verify_memory},
                                         {"layer_norm", "residual + layer norm", verify_layer_norm},
                                         {"gelu", "bias + GELU", verify_gelu},
                                         {"cross_entropy", "cross-entropy", verify_cross_entropy},
                                         {"patches", "patch gather", verify_patches},
                                         {"graph", "CUDA graph, fp32", verify_graph_fp32},
                                         {"graph", "CUDA graph, fp16", verify_graph_fp16},
                                         {"copies", "copies under load", verify_copies},
                                         {"checkpoint", "checkpoint", verify_checkpoint}};

/// A check that runs on all devices together.
struct CommonCheck {
  const char *name, *title;
  Checked (*run)(at::DeviceType, int);
};
constexpr CommonCheck kCommonChecks[] = {{"data_parallel", "data parallel", verify_data_parallel},
                                         {"all_reduce", "all-reduce", verify_all_reduce}};

struct Check {
  std::string name, section, title;
  std::function<Checked()> run;
};

void add_device_checks(std::vector<Check>& checks, at::Device device) {
  const std::string section = device.is_cpu() ? "verify cpu" : fmt::format("verify gpu {}", device.index());
  for (const DeviceCheck& check : kDeviceChecks) {
    checks.push_back({check.name, section, check.title, [run = check.run, device] { return run(device); }});
  }
}

void add_common_checks(std::vector<Check>& checks, int gpus) {
  const int devices = gpus > 0 ? gpus : 2;  // without a GPU: two replicas on the CPU
  for (const CommonCheck& check : kCommonChecks) {
    checks.push_back({check.name, gpus > 0 ? "verify all gpus" : "verify cpu", check.title, [=]() -> Checked {
                        if (devices < 2) return {Checked::State::kSkipped, "there is one GPU"};
                        return check.run(gpus > 0 ? at::kCUDA : at::kCPU, devices);
                      }});
  }
}

/// Returns the checks in this order: the first device, all devices together, the other devices. With a time limit the
/// repeated checks of the other devices are skipped first.
std::vector<Check> all_checks(int gpus, const std::vector<std::string>& only) {
  std::vector<Check> checks;
  add_device_checks(checks, gpus > 0 ? at::Device(at::kCUDA, 0) : at::Device(at::kCPU));
  add_common_checks(checks, gpus);
  for (int i = 1; i < gpus; ++i) add_device_checks(checks, at::Device(at::kCUDA, static_cast<c10::DeviceIndex>(i)));
  std::erase_if(checks, [&](const Check& check) {
    return !only.empty() && std::find(only.begin(), only.end(), check.name) == only.end();
  });
  return checks;
}

Checked run_check(const Check& check) {
  try {
    return check.run();
  } catch (...) {
    return {Checked::State::kFailed, std::string(status_from_current_exception().message()), nullptr,
            "training on this device fails too; run `nvidia-smi` and look for errors in `dmesg`"};
  }
}

void add(Findings& findings, const Check& check, const Checked& result, double seconds) {
  constexpr const char* kWords[] = {"ok", "failed", "skipped"};
  constexpr Verdict kVerdicts[] = {Verdict::kOk, Verdict::kWarning, Verdict::kNote};
  const auto state = static_cast<size_t>(result.state);
  nlohmann::ordered_json value = {{"state", kWords[state]}, {"seconds", seconds}};
  if (!result.value.is_null()) value["figures"] = result.value;
  const std::string text = fmt::format("{}{}{}", kWords[state], result.text.empty() ? "" : ": ", result.text);
  findings.add(check.section, check.title, value, text, kVerdicts[state], result.hint);
  std::fprintf(stderr, "%s (%.1f s)\n", escape_text(text, 2000).c_str(), seconds);
}

}  // namespace

const std::vector<std::string>& check_names() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const DeviceCheck& check : kDeviceChecks) {
      if (all.empty() || all.back() != check.name) all.emplace_back(check.name);
    }
    for (const CommonCheck& check : kCommonChecks) all.emplace_back(check.name);
    return all;
  }();
  return names;
}

int verify_devices(Findings& findings, const VerifyOptions& options) {
  const int gpus = static_cast<int>(torch::cuda::device_count());
  if (gpus == 0) {
    findings.add("verify cpu", "devices", 0, "no GPU that LibTorch can use: the checks run on the CPU", Verdict::kNote);
  }
  const std::vector<Check> checks = all_checks(gpus, options.only);
  const auto begin = Clock::now();
  const auto since = [](Clock::time_point start) {
    return std::chrono::duration<double>(Clock::now() - start).count();
  };
  int failed = 0;
  for (size_t i = 0; i < checks.size(); ++i) {
    const Check& check = checks[i];
    std::fprintf(stderr, "[%zu/%zu] %s, %s: ", i + 1, checks.size(), check.section.c_str(), check.title.c_str());
    std::fflush(stderr);
    const auto start = Clock::now();
    const bool is_late = options.max_seconds > 0 && since(begin) > options.max_seconds;
    const Checked result =
        is_late ? Checked{Checked::State::kSkipped, fmt::format("time limit of {:g} s reached", options.max_seconds)}
                : run_check(check);
    failed += result.state == Checked::State::kFailed;
    add(findings, check, result, since(start));
    if (options.on_result) options.on_result();
  }
  return failed;
}

}  // namespace trainkit::tool
