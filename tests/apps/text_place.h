#pragma once
/// A text to learn, the flags of a small run of trainkit-transformer on it, and what such a run leaves.

#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "program.h"
#include "test_util.h"
#include "trainkit/logging/jsonl.h"
#include "transformer/demo_text.h"

namespace trainkit::test {

/// A text and a folder to run in.
struct Place {
  Place() { std::ofstream(dir / "text.txt") << demo_text(20'000, 1); }
  /// Flags of a model that takes a millisecond a step.
  std::vector<std::string> flags(const std::string& run, std::vector<std::string> more = {}) const {
    std::vector<std::string> all = {"--input",
                                    dir / "text.txt",
                                    "--output_dir",
                                    dir / run,
                                    "--hidden_dim",
                                    "16",
                                    "--n_layers",
                                    "1",
                                    "--n_heads",
                                    "2",
                                    "--block_size",
                                    "16",
                                    "--batch_size",
                                    "4",
                                    "--dropout",
                                    "0.1",
                                    "--grad_accum_steps",
                                    "2",
                                    "--device",
                                    "cpu",
                                    "--log_every",
                                    "5",
                                    "--sample_tokens",
                                    "20"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }
  TempDir dir;
};

/// What was logged of each split, without the clocks.
struct Loss {
  std::string split;
  int64_t step;
  double loss;
  bool operator==(const Loss&) const = default;
  friend std::ostream& operator<<(std::ostream& out, const Loss& l) {
    return out << l.split << " " << l.step << ": " << l.loss;
  }
};
inline std::vector<Loss> losses(const std::string& folder) {
  std::vector<Loss> list;
  const std::vector<LogRecord> records = read_jsonl(folder + "/metrics.jsonl").value();
  for (const LogRecord& record : records) {
    list.push_back({record.split, record.step, *record.find("loss")});
  }
  return list;
}

inline std::string checkpoint_bytes(const std::string& folder, const std::string& step) {
  const std::string at = folder + "/checkpoints/step-" + step;
  return read_text(at + "/model.safetensors") + read_text(at + "/optimizer.safetensors") +
         read_text(at + "/state.json");
}

}  // namespace trainkit::test
