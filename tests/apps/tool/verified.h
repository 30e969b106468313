#pragma once
/// `trainkit verify-resume` as a user runs it, with a small text.

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "apps/program.h"
#include "test_util.h"

namespace trainkit::test {

/// A training text, and scripts that replace trainers.
struct TextPlace {
  TextPlace() {
    std::ofstream text(dir / "text.txt");
    for (int i = 0; i < 700; ++i) text << "line " << i * 7919 % 1009 << " of a text\n";
  }

  /// Half a second of training, without the batch size and the learning rate.
  std::vector<std::string> flags(const std::vector<std::string>& more = {}) const {
    std::vector<std::string> all = {"--input",
                                    dir / "text.txt",
                                    "--hidden_dim",
                                    "16",
                                    "--n_layers",
                                    "1",
                                    "--n_heads",
                                    "2",
                                    "--block_size",
                                    "16",
                                    "--dropout",
                                    "0.1",
                                    "--device",
                                    "cpu",
                                    "--log_every",
                                    "5",
                                    "--max_steps",
                                    "300",
                                    "--save_every",
                                    "10",
                                    "--eval_every",
                                    "100",
                                    "--keep_last",
                                    "0",
                                    "--grad_accum_steps",
                                    "1"};
    all.insert(all.end(), more.begin(), more.end());
    return all;
  }

  /// A script that runs the trainer. On resume it runs `before` first and `after` last; $out is the output folder, and
  /// $more may hold more flags.
  std::string script(const std::string& before, const std::string& after, const std::string& fresh = "") const {
    const std::string path = dir / "trainer.sh";
    std::ofstream(path) << "#!/bin/bash\nmore= again= out= last=\n"
                           "for word; do\n"
                           "  [ \"$last\" = --output_dir ] && out=$word\n"
                           "  [ \"$word\" = --resume ] && again=1\n"
                           "  last=$word\n"
                           "done\n"
                           "if [ $again ]; then :; "
                        << before << "\nelse :; " << fresh << "\nfi\n"
                        << TRAINKIT_BIN_DIR << "/trainkit-transformer \"$@\" $more || exit $?\n"
                        << "if [ $again ]; then :; " << after << "\nfi\n";
    std::filesystem::permissions(path, std::filesystem::perms::owner_all);
    return path;
  }
  TempDir dir;
};

struct Verified {
  Verified(const TextPlace& place, std::vector<std::string> words) {
    words.insert(words.begin(), "verify-resume");
    Program program("trainkit", words, place.dir.path().string());
    code = program.wait();
    output = program.output();
    errors = program.errors();
  }
  /// The table's row for `what`.
  std::string row(const std::string& what) const {
    const size_t begin = output.find("\n" + what + " ");
    return begin == std::string::npos ? "" : output.substr(begin + 1, output.find('\n', begin + 1) - begin - 1);
  }
  int code;
  std::string output, errors;
};

inline std::vector<std::string> command(std::vector<std::string> words, const std::string& program,
                                        const std::vector<std::string>& flags) {
  words.insert(words.end(), {"--", program});
  words.insert(words.end(), flags.begin(), flags.end());
  return words;
}

}  // namespace trainkit::test
