#pragma once
/// `PROGRAM plan`, a command of every trainer: the memory, batch and time of a run, also on other devices
/// (docs/plan.md).

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit {

/// What a trainer's plan assumes where no flag says it, and published figures to compare it with.
struct PlanExample {
  /// Defaults of the trainer's flags and of those of `plan`: {{"plan_data", "9989"}, {"devices", "3"}}.
  Settings settings = {};
  /// The data of `settings` in words. Empty: not said.
  std::string data = {};
  /// A part of a device's memory in a published example, in MB (1e6 bytes).
  struct Part {
    std::string name;
    double least_mb = 0, most_mb = 0;
    /// The memory class ("activations"), or "total". Empty: the weights of the model's top-level `modules`.
    std::string memory_class = {};
    std::vector<std::string> modules = {};
  };
  /// The published example in words, and its parts.
  std::string guide = {};
  std::vector<Part> parts = {};
};

/// Values of the flags that `plan` has in addition to those of the trainer.
struct PlanFlags {
  std::optional<int64_t> devices = {};
  std::string gpu = {}, link = "10,11";
  /// Share of the data sheet's operations that training reaches. Source of the default: ResNet-50 in half precision
  /// trains at 1,776 images/s on one RTX 4090 (batch 256, tf_cnn_benchmarks, published at server-gear.com), with 24.5 G
  /// operations per image (forward and backward). That is 26 % of the data sheet's 165.2 T operations/s.
  double efficiency = 0.26;
  int64_t workers = 12;
  double row_rate = 0, read_gbs = 5;
};

/// Adds these flags.
void add_plan_flags(ConfigParser& parser, PlanFlags& flags);

}  // namespace trainkit
