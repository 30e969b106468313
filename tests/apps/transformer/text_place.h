#pragma once
/// A training text, and the flags of a small run of trainkit-transformer with it.

#include <algorithm>
#include <fstream>
#include <string>
#include <utility>
#include <vector>

#include "apps/program.h"
#include "apps/runs.h"
#include "test_util.h"
#include "transformer/demo_text.h"

namespace trainkit::test {

using namespace trainkit::transformer;

/// A text and a run folder.
struct Place {
  Place() { std::ofstream(dir / "text.txt") << demo_text(20'000, 1); }
  /// Flags of a model that takes about 1 ms per step.
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

/// Changes the value of `flag`, or appends the flag.
inline void set_flag(std::vector<std::string>& flags, const std::string& flag, std::string value) {
  const auto found = std::find(flags.begin(), flags.end(), flag);
  if (found == flags.end())
    flags.insert(flags.end(), {flag, std::move(value)});
  else
    found[1] = std::move(value);
}

/// Runs trainkit-transformer until it ends.
inline Ended run(const Place& place, const std::vector<std::string>& flags) {
  return run_to_end("trainkit-transformer", flags, place.dir.path().string());
}

}  // namespace trainkit::test
