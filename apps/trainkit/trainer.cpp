#include "trainkit/trainer.h"

#include <absl/strings/match.h>
#include <absl/strings/str_split.h>
#include <fmt/ranges.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>

#include "app/program/trainer_mark.h"
#include "app/program/waiting.h"
#include "trainkit/command.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/process.h"

namespace trainkit::tool {
namespace {

namespace fs = std::filesystem;

/// Where a name is looked up: the folder of this program, then those of PATH. A relative one depends on where this
/// program was started.
std::vector<std::string> program_folders() {
  std::vector<std::string> folders = {program_folder()};
  const char* path = std::getenv("PATH");
  for (const absl::string_view folder : absl::StrSplit(path ? path : "", ':')) {
    if (absl::StartsWith(folder, "/")) folders.emplace_back(folder);
  }
  return folders;
}

/// Whether a file is a trainer: of this toolkit, which may be started by a launcher, or one with the mark of run_app().
bool is_trainer(const std::string& path) {
  if (fs::path(path).filename().string().starts_with("trainkit-")) return true;
  std::ifstream file(path, std::ios::binary);
  const std::string content{std::istreambuf_iterator<char>(file), {}};
  return content.find(trainkit::detail::kTrainerMark) != content.npos;
}

bool is_program(const std::string& path) {
  std::error_code none;
  return fs::is_regular_file(path, none) && access(path.c_str(), X_OK) == 0;
}

/// Returns the first program of one of the names; empty if there is none.
std::string find_program(std::initializer_list<std::string> names) {
  for (const std::string& folder : program_folders()) {
    for (const std::string& name : names) {
      if (is_program(folder + "/" + name)) return folder + "/" + name;
    }
  }
  return {};
}

/// Names of the trainers in this program's folder, as --app takes them: file names without "trainkit-".
std::vector<std::string> trainer_names() {
  std::vector<std::string> names;
  std::error_code ignored;
  for (const auto& entry : fs::directory_iterator(program_folder(), ignored)) {
    const std::string name = entry.path().filename().string();
    if (name.starts_with("trainkit-")) names.push_back(name.substr(9));
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

absl::StatusOr<std::string> find_trainer(const ConfigParser& parser, const std::string& app) {
  if (app.find('/') != std::string::npos) {
    return is_program(app) ? absl::StatusOr<std::string>(app) : parser.invalid("app", "no such program");
  }
  if (const std::string found = find_program({"trainkit-" + app, app}); !found.empty()) return found;
  const std::vector<std::string> known = trainer_names();
  const std::string nearest = nearest_name(app, known);
  return parser.invalid("app", "no such trainer in this program's folder or on the PATH",
                        fmt::format("{}, or the path of a program", fmt::join(known, ", ")),
                        nearest.empty() ? "" : "did you mean --app " + nearest + "?");
}

absl::StatusOr<std::string> find_trainer_of(const std::string& run) {
  const std::string path = run + "/run.json";
  constexpr int64_t kMostBytes = 64 << 20;
  const auto text = Fs::posix().read_file(path, kMostBytes);
  const auto json = nlohmann::json::parse(text.value_or(""), nullptr, /*allow_exceptions=*/false);
  const bool has_name = json.is_object() && json.contains("program") && json["program"].is_string();
  const std::string name = has_name ? json["program"].get<std::string>() : "";
  const bool is_name = !name.empty() && name.find('/') == name.npos && name[0] != '.' && name != "trainkit";
  const std::string found = is_name ? find_program({name}) : "";
  if (!found.empty() && is_trainer(found)) return found;
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "cli.value",
                    .where = path,
                    .field = "program",
                    .problem = is_name && found.empty() ? "no such program in the folder of trainkit or on the PATH"
                                                        : "is not the name of a trainer",
                    .got = name,
                    .hint = "name the trainer of this run: --app NAME or --app PATH"});
}

absl::Status become(std::vector<std::string> words) {
  std::fflush(stdout);
  std::vector<char*> argv;
  argv.reserve(words.size() + 1);
  for (std::string& word : words) argv.push_back(word.data());
  argv.push_back(nullptr);
  execv(argv[0], argv.data());
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "tool.app",
                    .where = words[0],
                    .problem = std::string("cannot be started: ") + std::strerror(errno)});
}

// stdout goes through a pipe, which is read to its end. stderr goes to a memory file: a second pipe that nobody reads
// would block the program once its buffer is full.
absl::StatusOr<Ended> run_trainer(std::vector<std::string> words) {
  constexpr char kError[] = "tool.app";
  TRAINKIT_ASSIGN_OR_RETURN(Pipe output, make_pipe(kError));
  const trainkit::detail::UniqueDescriptor errors(memfd_create("stderr", MFD_CLOEXEC));
  if (errors.get() < 0) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = kError,
                      .problem = std::string("cannot create a file in memory: ") + std::strerror(errno)});
  }
  TRAINKIT_ASSIGN_OR_RETURN(
      const pid_t pid,
      start_process({.words = words, .output = output.writer.get(), .errors = errors.get(), .id = kError}));
  output.writer.reset();
  Ended ended;
  char buffer[65536];
  const trainkit::detail::Waiting waiting("running " + fs::path(words[0]).filename().string());
  for (ssize_t size = 1; size != 0;) {
    size = ::read(output.reader.get(), buffer, sizeof buffer);
    if (size < 0 && errno != EINTR) break;
    if (size > 0) ended.output.append(buffer, static_cast<size_t>(size));
  }
  int status = 0;
  waitpid(pid, &status, 0);
  ended.code = WIFEXITED(status) ? WEXITSTATUS(status) : static_cast<int>(ExitCode::kBug);
  const ssize_t size = pread(errors.get(), buffer, sizeof buffer, 0);
  ended.errors.assign(buffer, static_cast<size_t>(std::max<ssize_t>(size, 0)));
  return ended;
}

}  // namespace trainkit::tool
