// The script of --completion zsh in zsh itself.
#include <fstream>

#include "apps/runs.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

TEST_CASE("zsh reads the script, and calls the function of a command", "[apps][completion]") {
  if (std::system("command -v zsh > /dev/null") != 0) TRAINKIT_SKIP("no zsh");
  const TempDir dir;
  const Ended script = run_to_end("trainkit-hsi", {"--completion", "zsh"}, dir.path().string());
  REQUIRE(script.code == 0);
  // Without zsh's line editor, its two completion functions only print what they get.
  std::ofstream(dir / "script") << "compdef() { print -r -- compdef $@ }\n_arguments() { print -rl -- $@ }\n"
                                << script.output
                                << "words=(trainkit-hsi --model) CURRENT=2; _trainkit_hsi\n"
                                   "words=(trainkit-hsi benchmark --gp) CURRENT=3; _trainkit_hsi\n";
  REQUIRE(std::system(("zsh -f " + (dir / "script") + " > " + (dir / "out") + " 2>&1").c_str()) == 0);
  const std::string out = read_text(dir / "out");
  CHECK_THAT(out,
             Catch::StartsWith("compdef _trainkit_hsi trainkit-hsi\n") &&
                 Catch::Contains("\n--model=[Network; see docs/hsi.md.]:model:(mlp cnn2d cnn3d hybridsn ssrn)\n") &&
                 Catch::Contains("\n--gpus=[Measure 1, 2, ..., N devices"));
}
