#pragma once
/// Creates the session of trainkit-emotion in the test process.

#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "apps/emotion/emotion_place.h"
#include "emotion_recognition/session.h"

namespace trainkit::test {

using namespace trainkit::emotion;

/// A session with the demonstration clips and a user's flags.
struct Given {
  Given(const EmotionPlace& place, const std::vector<std::string>& more) {
    set_run_defaults(run);
    add_run_flags(parser, run);
    add_emotion_flags(parser, options);
    std::vector<std::string> flags = place.flags("run", more);
    flags.insert(flags.begin(), "trainkit-emotion");
    std::vector<char*> argv;
    for (std::string& flag : flags) argv.push_back(flag.data());
    REQUIRE(parser.parse(static_cast<int>(argv.size()), argv.data()).ok());
  }
  emotion::Session open() const { return emotion::Session::open(run, options).value(); }

  RunOptions run;
  EmotionOptions options;
  ConfigParser parser{{.name = "trainkit-emotion"}};
};

}  // namespace trainkit::test
