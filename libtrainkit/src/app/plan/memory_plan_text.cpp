// A memory plan as lines and as JSON.
#include <fmt/format.h>

#include <nlohmann/json.hpp>

#include "app/plan/plan_table.h"
#include "trainkit/app/memory_plan.h"
#include "trainkit/core/format.h"

namespace trainkit {
namespace {

using Json = nlohmann::ordered_json;

std::string short_time(double seconds) {
  return seconds < 1 ? fmt::format("{:.3g} ms", 1e3 * seconds) : fmt::format("{:.3g} s", seconds);
}

Json bytes_of(const MemoryBytes& bytes) {
  Json json = Json::object();
  for (size_t i = 0; i < kMemoryClasses; ++i) json[to_string(static_cast<MemoryClass>(i))] = bytes.by_class[i];
  json["total"] = bytes.total();
  return json;
}

}  // namespace

nlohmann::ordered_json detail::memory_json(const MemoryPlan& memory) {
  const BatchSizePlan& plan = memory.plan;
  const bool known = memory.known();
  Json json = {{"batch_size", plan.batch_size},
               {"devices", plan.devices},
               {"grad_accum_steps", plan.grad_accum_steps},
               {"checkpoint_segments", memory.checkpoint_segments},
               {"global_batch_size", plan.global_batch_size()},
               {"lost_rows", plan.lost_rows},
               {"steps_per_epoch", memory.steps_per_epoch},
               {"steps", memory.steps},
               {"device_bytes", memory.options.device_bytes},
               {"reserve_bytes", memory.options.reserve_bytes},
               {"fits", known ? Json(plan.fits) : Json(nullptr)},
               {"peak_bytes", known ? bytes_of(plan.memory.peak) : Json(nullptr)},
               {"largest_bytes", known ? bytes_of(memory.largest) : Json(nullptr)},
               {"allocated_bytes", known ? Json(plan.memory.device.allocated_bytes) : Json(nullptr)},
               {"reserved_bytes", known ? Json(plan.memory.device.reserved_bytes) : Json(nullptr)},
               {"check_error", known ? Json(memory.check_error) : Json(nullptr)},
               {"check_batch_size", memory.check_batch_size},
               {"rows", memory.rows},
               {"row_bytes", memory.row_bytes},
               {"row_flops", memory.row_flops},
               {"step_seconds", memory.step_seconds > 0 ? Json(memory.step_seconds) : Json(nullptr)}};
  if (known) json["largest_bytes"].erase("total");
  json["weight_bytes"] = Json::object();
  for (const auto& [name, bytes] : memory.weight_bytes) json["weight_bytes"][name] = bytes;
  if (memory.step_seconds > 0) {
    json["timed_on"] = memory.timed_on;
    json["epoch_seconds"] = memory.step_seconds * static_cast<double>(memory.steps_per_epoch);
    json["seconds"] = memory.step_seconds * static_cast<double>(memory.steps);
  }
  if (!known) json["unavailable"] = memory.unavailable;
  if (!memory.sharding_advice.empty()) json["sharding_advice"] = memory.sharding_advice;
  return json;
}

RunFacts MemoryPlan::describe() const {
  if (!known()) return {{"memory", "not predicted: " + unavailable}};
  const MemoryBytes& peak = plan.memory.peak;
  std::string parts;
  for (size_t i = 0; i < kMemoryClasses; ++i) {
    const auto kind = static_cast<MemoryClass>(i);
    if (peak[kind] == 0) continue;
    parts += fmt::format("{}{} {}", parts.empty() ? "" : ", ", to_string(kind), format_size(peak[kind]));
  }
  RunFacts facts = {{"memory", fmt::format("{} predicted per device at the peak, of {}: {}", format_size(peak.total()),
                                           format_size(options.device_bytes), parts)}};
  if (options.reserve_bytes > 0) {
    facts.emplace_back(
        "", fmt::format(
                "by CUDA's allocator {} allocated, {} reserved; without the driver's context and cuDNN's workspaces",
                format_size(plan.memory.device.allocated_bytes), format_size(plan.memory.device.reserved_bytes)));
  }
  if (!sharding_advice.empty()) facts.emplace_back("", sharding_advice);
  if (checkpoint_segments > 1) {
    facts.emplace_back(
        "", fmt::format("activations in {} segments, all but the last recomputed in backward", checkpoint_segments));
  }
  if (check_error > 0.01) {
    facts.emplace_back(
        "", fmt::format("checked at batch size {}: relative error {:.1f}%", check_batch_size, 100 * check_error));
  }
  if (plan.lost_rows != 0) {
    facts.emplace_back("", fmt::format("{} rows of the global batch of {} are lost: it is not divisible by {} devices",
                                       plan.lost_rows, options.global_batch_size, options.devices));
  }
  if (step_seconds > 0) {
    facts.emplace_back("time",
                       fmt::format("{} per step, {} per epoch, {} in total: measured on {}{}", short_time(step_seconds),
                                   format_duration(step_seconds * static_cast<double>(steps_per_epoch)),
                                   format_duration(step_seconds * static_cast<double>(steps)), timed_on,
                                   plan.devices > 1 ? ", without the gradient all-reduce" : ""));
  }
  if (!plan.fits) {
    facts.emplace_back("warning:", fmt::format("the step is not expected to fit into {}; use --batch_size auto",
                                               format_size(options.device_bytes)));
  }
  return facts;
}

std::string plan_to_json(const RunFacts& facts, const MemoryPlan& plan) {
  Json json = Json::object();
  std::string last;
  for (const auto& [name, value] : facts) {
    if (!name.empty()) last = name;
    Json& entry = json[last];
    const std::string text = format_text(value);
    if (entry.is_null()) {
      entry = text;
    } else if (entry.is_string()) {
      entry = Json::array({entry, text});
    } else {
      entry.push_back(text);
    }
  }
  json["plan"] = detail::memory_json(plan);
  return json.dump(2, ' ', false, Json::error_handler_t::replace);
}

}  // namespace trainkit
