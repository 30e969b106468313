#include "trainkit/epoch_time.h"

#include <fmt/format.h>

#include <algorithm>

#include "trainkit/core/format.h"

namespace trainkit::tool {
namespace {

using Json = nlohmann::ordered_json;

std::string line(const char* what, double seconds, const std::string& from) {
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

EpochTime predict_epoch(const Json& plan, const EpochTimeOptions& options) {
  const auto number = [&](const char* name) { return plan.at(name).get<double>(); };
  const double rows = number("rows"), steps = number("steps_per_epoch");
  const auto devices = plan.at("devices").get<int64_t>();
  EpochTime time;
  for (const auto& [name, bytes] : plan.at("weight_bytes").items()) time.gradient_bytes += bytes.get<double>();
  // The last step of an epoch may have fewer rows, so this is the mean over the steps.
  time.step_seconds = rows / steps / static_cast<double>(devices) * number("row_flops") /
                      (options.gpu.flops_per_second * options.efficiency);
  time.computing = steps * time.step_seconds;
  const StepCost step = make_step_cost(time.step_seconds, static_cast<int64_t>(time.gradient_bytes),
                                       {.micro_steps = plan.at("grad_accum_steps").get<int64_t>()});
  const ScalingPrediction all = predict_scaling(step, {.devices_per_node = devices, .inside = options.link});
  time.exchange = steps * all.exposed_seconds;
  time.reading = rows * number("row_bytes") / options.read_bytes_per_second;
  if (options.rows_per_second > 0) {
    time.decoding = rows / (options.rows_per_second * static_cast<double>(options.workers));
  }
  return time;
}

std::string describe_epoch(const Json& plan, const EpochTimeOptions& options, const EpochTime& time) {
  const double rows = plan.at("rows").get<double>(), bytes = rows * plan.at("row_bytes").get<double>();
  const auto devices = plan.at("devices").get<int64_t>();
  std::string text = fmt::format("\npredicted epoch on {} x {}\n", devices, options.gpu.name);
  text +=
      line("computing", time.computing,
           fmt::format("{:.0f} rows x {:.3g} GFLOP (counted here) / {} x {:.4g} TFLOP/s in bf16 ({}) x {:.0f}% ({})",
                       rows, plan.at("row_flops").get<double>() / 1e9, devices, options.gpu.flops_per_second / 1e12,
                       options.gpu.source, 100 * options.efficiency, options.efficiency_source));
  if (devices > 1) {
    text +=
        line("gradients", time.exchange,
             fmt::format(
                 "{:.1f} MB per step, {:.0f} us and {:.3g} GB/s (assumed, --link); the part not hidden by backward",
                 time.gradient_bytes / 1e6, options.link.latency_seconds * 1e6, options.link.bytes_per_second / 1e9));
  }
  text += line("reading", time.reading,
               fmt::format("{:.3g} GB of decoded rows at {:.3g} GB/s (assumed, --read_gbs), at the same time",
                           bytes / 1e9, options.read_bytes_per_second / 1e9));
  if (time.decoding > 0) {
    text += line("decoding", time.decoding,
                 fmt::format("instead of reading, or once for a cache: {} workers x {:.3g} rows/s (--row_rate)",
                             options.workers, options.rows_per_second));
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

Json epoch_json(const EpochTimeOptions& options, const EpochTime& time) {
  return {{"gpu", options.gpu.name},
          {"flops_per_second", options.gpu.flops_per_second},
          {"efficiency", options.efficiency},
          {"step_seconds", time.step_seconds},
          {"computing_seconds", time.computing},
          {"exchange_seconds", time.exchange},
          {"reading_seconds", time.reading},
          {"decoding_seconds", time.decoding > 0 ? Json(time.decoding) : Json(nullptr)},
          {"seconds", time.seconds()},
          {"bound_by", time.bound()}};
}

}  // namespace trainkit::tool
