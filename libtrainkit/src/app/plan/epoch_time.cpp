#include "app/plan/epoch_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/core/format.h"

namespace trainkit::detail {
namespace {

std::string time_of(const char* what, double seconds, const std::string& from) {
  return fmt::format("{:<14} {:>8}   {}\n", what,
                     seconds < 100 ? fmt::format("{:.3g} s", seconds) : format_duration(seconds), from);
}

}  // namespace

const std::vector<GpuSheet>& gpu_sheets() {
  static const std::vector<GpuSheet> sheets = {{"rtx4090", 165.2e12, "24GiB", "NVIDIA Ada GPU Architecture whitepaper"},
                                               {"rtx4080", 97.5e12, "16GiB", "NVIDIA Ada GPU Architecture whitepaper"},
                                               // Computed: 46 multiprocessors x 512 operations (as in the Ada
                                               // whitepaper's cards) x 2.475 GHz.
                                               {"rtx4070", 58.3e12, "12GiB", "NVIDIA GeForce RTX 4070 specifications"},
                                               {"rtx3090", 71e12, "24GiB", "NVIDIA Ampere GA102 whitepaper"},
                                               {"rtx3080", 59.5e12, "10GiB", "NVIDIA Ampere GA102 whitepaper"},
                                               {"a100", 312e12, "80GiB", "NVIDIA A100 80GB SXM data sheet"},
                                               {"h100", 989.4e12, "80GiB", "NVIDIA H100 SXM data sheet"},
                                               {"h200", 989.4e12, "141GB", "NVIDIA H200 SXM data sheet"}};
  return sheets;
}

const GpuSheet* find_gpu(const std::string& name) {
  for (const GpuSheet& sheet : gpu_sheets()) {
    if (sheet.name == name) return &sheet;
  }
  return nullptr;
}

std::string EpochTime::bound() const {
  if (reading > devices()) return "reading";
  return exchange > computing ? "the exchange of gradients" : "computing";
}

EpochTime predict_epoch(const MemoryPlan& memory, const EpochTimeOptions& options) {
  const auto rows = static_cast<double>(memory.rows), steps = static_cast<double>(memory.steps_per_epoch);
  const int64_t devices = memory.plan.devices;
  EpochTime time;
  for (const auto& [name, bytes] : memory.weight_bytes) time.gradient_bytes += static_cast<double>(bytes);
  // The last step of an epoch may have fewer rows, so this is the mean over the steps.
  time.step_seconds = rows / steps / static_cast<double>(devices) * memory.row_flops /
                      (options.gpu.flops_per_second * options.flags.efficiency);
  time.computing = steps * time.step_seconds;
  const StepCost step = make_step_cost(time.step_seconds, static_cast<int64_t>(time.gradient_bytes),
                                       {.micro_steps = memory.plan.grad_accum_steps});
  const ScalingPrediction all = predict_scaling(step, {.devices_per_node = devices, .inside = options.link});
  time.exchange = steps * all.exposed_seconds;
  time.reading = rows * static_cast<double>(memory.row_bytes) / (1e9 * options.flags.read_gbs);
  if (options.flags.row_rate > 0) {
    time.decoding = rows / (options.flags.row_rate * static_cast<double>(options.flags.workers));
  }
  return time;
}

std::string describe_epoch(const MemoryPlan& memory, const EpochTimeOptions& options, const EpochTime& time) {
  const auto rows = static_cast<double>(memory.rows);
  const double bytes = rows * static_cast<double>(memory.row_bytes);
  const int64_t devices = memory.plan.devices;
  std::string text = fmt::format("\npredicted epoch on {} x {}\n", devices, options.gpu.name);
  text +=
      time_of("computing", time.computing,
              fmt::format("{:.0f} rows x {:.3g} GFLOP (counted here) / {} x {:.4g} TFLOP/s in bf16 ({}) x {:.0f}% ({})",
                          rows, memory.row_flops / 1e9, devices, options.gpu.flops_per_second / 1e12,
                          options.gpu.source, 100 * options.flags.efficiency, options.efficiency_source));
  if (devices > 1) {
    text += time_of(
        "gradients", time.exchange,
        fmt::format("{:.1f} MB per step, {:.0f} us and {:.3g} GB/s (assumed, --link); the part not hidden by backward",
                    time.gradient_bytes / 1e6, options.link.latency_seconds * 1e6,
                    options.link.bytes_per_second / 1e9));
  }
  text += time_of("reading", time.reading,
                  fmt::format("{:.3g} GB of decoded rows at {:.3g} GB/s (assumed, --read_gbs), at the same time",
                              bytes / 1e9, options.flags.read_gbs));
  if (time.decoding > 0) {
    text += time_of("decoding", time.decoding,
                    fmt::format("instead of reading, or once for a cache: {} workers x {:.3g} rows/s (--row_rate)",
                                options.flags.workers, options.flags.row_rate));
  }
  text += fmt::format("{} per epoch of decoded rows, bound by {}", format_duration(time.seconds()), time.bound());
  text += fmt::format(" ({:.3g} s)", time.seconds());
  if (time.decoding > time.devices())
    text += fmt::format("; {:.3g} s if each epoch decodes its rows, bound by decoding", time.decoding);
  text += "\n";
  if (devices > 1) {
    text +=
        fmt::format("trainkit scale --step_seconds {:.4g} --gradient_mb {:.4g} --devices {} --inside {:.3g},{:.3g}\n",
                    time.step_seconds, time.gradient_bytes / 1e6, devices, options.link.latency_seconds * 1e6,
                    options.link.bytes_per_second / 1e9);
  }
  return text;
}

nlohmann::ordered_json epoch_json(const EpochTimeOptions& options, const EpochTime& time) {
  return {
      {"gpu", options.gpu.name},
      {"flops_per_second", options.gpu.flops_per_second},
      {"efficiency", options.flags.efficiency},
      {"step_seconds", time.step_seconds},
      {"computing_seconds", time.computing},
      {"exchange_seconds", time.exchange},
      {"reading_seconds", time.reading},
      {"decoding_seconds", time.decoding > 0 ? nlohmann::ordered_json(time.decoding) : nlohmann::ordered_json(nullptr)},
      {"seconds", time.seconds()},
      {"bound_by", time.bound()}};
}

}  // namespace trainkit::detail
