#pragma once
/// The settings of trainkit-gpt2rec and synthetic data of a given size, without a program.

#include <stdexcept>
#include <string>
#include <vector>

#include "gpt2_recommender/session.h"

namespace trainkit::test {

using namespace trainkit::rec;

/// The flags of a program, parsed as the program does.
struct RecGiven {
  explicit RecGiven(std::vector<std::string> flags) : parser({.name = "trainkit-gpt2rec"}) {
    set_run_defaults(run);
    add_run_flags(parser, run);
    add_rec_flags(parser, options);
    add_rec_presets(parser);
    flags.insert(flags.begin(), "trainkit-gpt2rec");
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    const auto parsed = parser.parse(static_cast<int>(argv.size()), argv.data());
    if (!parsed.ok()) throw std::runtime_error(std::string(parsed.status().message()));
    run.batch_size.value = run.batch_size.value.value_or(32);
    placement.batch.batch_size = *run.batch_size.value;
  }
  rec::Session open() { return rec::Session::open(run, options).value(); }

  ConfigParser parser;
  RunOptions run;
  RecOptions options;
  Placement placement;
};

inline std::vector<std::string> planned(std::vector<std::string> more) {
  more.insert(more.end(), {"--dry_run", "--plan_data", "700x1400x9000", "--embed_dim", "16", "--n_embd", "32"});
  return more;
}

}  // namespace trainkit::test
