#include "train/run/steady_state.h"

#include <fmt/format.h>

#include <utility>

#include "trainkit/core/format.h"

namespace trainkit {

DeviceMemory SteadyState::predicted() const {
  if (!run_.options.predicted_memory) return {};
  const bool on_gpu = !run_.devices.device().is_cpu() && run_.options.predicted_device_memory;
  return on_gpu ? *run_.options.predicted_device_memory
                : DeviceMemory{.allocated_bytes = run_.options.predicted_memory->total()};
}

void SteadyState::begin_batch() {
  const bool begins = run_.options.predicted_memory && run_.progress.step == run_.first_step + 1 &&
                      run_.step.accumulated() == 0 && !run_.has_players() &&
                      detail::RealMemory::can_measure(run_.devices);
  if (begins) measured_.emplace(run_.devices, run_.optimizer, run_.step.averages());
}

/// Returns whether all further steps take the same memory: if they may become a CUDA graph, it must have been captured.
bool SteadyState::is_reached() const {
  return !run_.step.uses_graphs() || run_.step.graph_captures() > 0 ||
         run_.progress.step >= run_.first_step + kLateCapture;
}

bool SteadyState::end_step() {
  if (!measured_ || !is_reached()) return false;
  const MemoryBytes& classes = *run_.options.predicted_memory;
  real_ = measured_->finish(classes[MemoryClass::kBatch] + classes[MemoryClass::kCache]);
  measured_.reset();
  return true;
}

std::string SteadyState::memory_line() const {
  if (real_.allocated_bytes == 0) return "";
  const auto compared = [](int64_t planned, int64_t counted, const char* where) {
    return fmt::format("{} predicted {}, {} real ({:+.1f}%)", format_size(planned), where, format_size(counted),
                       100 * (static_cast<double>(planned) / static_cast<double>(counted) - 1));
  };
  const DeviceMemory planned = predicted();
  std::string text = "memory: " + compared(planned.allocated_bytes, real_.allocated_bytes, "at the peak of a step");
  if (planned.reserved_bytes > 0 && real_.reserved_bytes > 0) {
    text += "; " + compared(planned.reserved_bytes, real_.reserved_bytes, "reserved for it");
  }
  return text;
}

std::vector<std::string> SteadyState::graph_lines() {
  const bool first = std::exchange(captures_, run_.step.graph_captures()) == 0 && captures_ > 0;
  const bool ended = std::exchange(uses_graphs_, run_.step.uses_graphs()) && !uses_graphs_;
  const bool late = uses_graphs_ && captures_ == 0 && run_.progress.step == run_.first_step + kLateCapture;
  std::vector<std::string> lines;
  if (first) lines.push_back(fmt::format("steps run as one CUDA graph from step {} on", run_.progress.step));
  if (ended || late) lines.push_back("steps run without a CUDA graph: " + run_.step.graph_reason());
  return lines;
}

}  // namespace trainkit
