#include "trainkit/command.h"

#include <fmt/ranges.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <string_view>

#include "config/completion.h"
#include "config/help.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/report/summary.h"

namespace trainkit::tool {
namespace {

std::string help(const std::vector<Command>& commands) {
  ProgramInfo program{
      .name = "trainkit",
      .description = "Tools for training runs.",
      .examples = {"trainkit doctor", "trainkit doctor --app transformer -- --input book.txt",
                   "trainkit launch --nproc_per_node 4 -- trainkit-transformer --input book.txt",
                   "trainkit plan --app transformer --preset large_gpu --gpu_memory 24GiB --devices 3",
                   ("trainkit scale --step_seconds 0.21 --gradient_mb 100 --devices 8 --nodes 4 --inside nvlink4 "
                    "--between eth100"),
                   "trainkit verify-resume -- trainkit-transformer --input book.txt --max_steps 200 --save_every 20",
                   "trainkit report runs/a runs/b --out comparison.html", "trainkit watch runs/transformer",
                   "trainkit inspect pytorch_model.bin", "trainkit export runs/transformer model.pt"},
      .words = "COMMAND"};
  program.remark =
      "trainkit --version prints the versions. trainkit --completion bash prints a script that completes command "
      "lines; also for zsh. trainkit --cmake_prefix prints CMAKE_PREFIX_PATH for a project that uses the installed "
      "library.";
  for (const Command& command : commands) program.commands.emplace_back(command.name, command.summary);
  return detail::command_help(program);
}

std::string versions() {
  std::string text;
  for (const auto& [name, version] : library_versions()) text += name + " " + version + "\n";
  return text;
}

/// Prints the script that completes `trainkit` and all its commands.
absl::StatusOr<int> complete(const std::vector<std::string>& words, const std::vector<Command>& commands) {
  TRAINKIT_RETURN_IF_ERROR(ConfigParser({.name = "trainkit"}).parse(words).status());  // checks the shell's name
  const size_t equals = words[0].find('=');
  const std::string shell = equals == std::string::npos ? words.at(1) : words[0].substr(equals + 1);
  detail::CompletedProgram program{.name = "trainkit"};
  for (const char* name : {"help", "version", "completion", "cmake_prefix"}) {
    program.flags.push_back({.names = {name}, .takes_value = false});
  }
  for (const Command& command : commands) program.commands.emplace_back(command.name, command.summary);
  print(detail::completion_script(shell, program));
  for (const Command& command : commands) TRAINKIT_RETURN_IF_ERROR(command.run({.flags = words}).status());
  return 0;
}

}  // namespace

absl::StatusOr<bool> parse_or_print(ConfigParser& parser, const Arguments& arguments) {
  TRAINKIT_ASSIGN_OR_RETURN(const Request request, parser.parse(arguments.flags));
  if (request != Request::kRun) print(parser.text(request));
  return request == Request::kRun;
}

void print(const std::string& text) {
  std::fputs(text.c_str(), stdout);
  std::fflush(stdout);
}

std::string program_folder() {
  std::string path(4096, '\0');
  const ssize_t size = readlink("/proc/self/exe", path.data(), path.size());
  if (size <= 0) return ".";
  path.resize(static_cast<size_t>(size));
  path.resize(path.find_last_of('/'));
  // Installed programs are below libexec/trainkit. Child processes must start through the launchers in bin, which set
  // the library path for LibTorch (apps/launcher).
  constexpr std::string_view kInstalled = "/libexec/trainkit/";
  const size_t installed = path.rfind(kInstalled);
  if (installed != path.npos && path.find('/', installed + kInstalled.size()) == path.npos)
    path.replace(installed, path.npos, "/bin");
  return path;
}

absl::StatusOr<int> dispatch(const std::vector<std::string>& words, const std::vector<Command>& commands) {
  if (words.empty() || words[0] == "--help" || words[0] == "-h" || words[0] == "help") {
    print(help(commands));
    return words.empty() ? static_cast<int>(ExitCode::kUsage) : 0;
  }
  if (words[0] == "--version") {
    print(versions());
    return 0;
  }
  if (words[0].substr(0, words[0].find('=')) == "--completion") return complete(words, commands);
  // An installed program never gets here with this flag: its launcher handles it.
  if (words[0] == "--cmake_prefix" || words[0] == "--cmake-prefix") {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.cmake_prefix",
                      .field = "--cmake_prefix",
                      .problem = "needs an installed trainkit; this program is in a build folder",
                      .hint = "cmake --install build --prefix DIR, then DIR/bin/trainkit --cmake_prefix"});
  }
  std::vector<std::string> names;
  for (const Command& command : commands) {
    if (command.name == words[0]) {
      const auto mark = std::find(words.begin() + 1, words.end(), "--");
      Arguments arguments{.flags = {words.begin() + 1, mark}};
      if (mark != words.end()) arguments.program.assign(std::next(mark), words.end());
      return command.run(arguments);
    }
    names.push_back(command.name);
  }
  const std::string nearest = nearest_name(words[0], names);
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.unknown",
                    .field = "command",
                    .problem = "no such command",
                    .got = words[0],
                    .expected = fmt::format("{}", fmt::join(names, ", ")),
                    .hint = nearest.empty() ? "trainkit --help" : "did you mean trainkit " + nearest + "?"});
}

}  // namespace trainkit::tool
