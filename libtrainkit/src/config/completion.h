#pragma once
/// Scripts that complete a program's command line in bash and zsh.

#include <string>
#include <utility>
#include <vector>

#include "trainkit/config/config.h"

namespace trainkit::detail {

/// A flag as a shell completes it.
struct CompletedFlag {
  /// Name and aliases, without dashes.
  std::vector<std::string> names;
  std::string help = {};
  /// Words of the value, and whether it may be a path.
  std::vector<std::string> words = {};
  bool is_path = false;
  bool takes_value = true, takes_list = false, has_negation = false;
};

/// A command line to complete. A name with a space, as "trainkit plan", is that of a subcommand: its function is called
/// by the program's function.
struct CompletedProgram {
  std::string name;
  std::vector<CompletedFlag> flags = {};
  std::vector<std::pair<std::string, std::string>> commands = {};
  /// Whether words without a flag are paths: "RUN CLIP...".
  bool takes_words = false;
};

/// Returns the script for `shell`, "bash" or "zsh". Source: "Programmable Completion" of the Bash manual;
/// zshcompsys(1).
std::string completion_script(const std::string& shell, const CompletedProgram& program);
/// Same, for the flags of a parser and the shell of --completion.
std::string completion_script(const ConfigParser::State& state);

}  // namespace trainkit::detail
