#include "launcher/torch_finder.h"

#include <fcntl.h>
#include <spawn.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <string_view>

#include "launcher/files.h"

namespace trainkit::launcher {
namespace {

/// The series of the programs, in words: "2.11", "2.11, 2.12 or 2.15".
std::string series_of(const std::vector<Program>& programs) {
  std::string text = programs[0].series;
  for (size_t i = 1; i < programs.size(); ++i) text += (i + 1 == programs.size() ? " or " : ", ") + programs[i].series;
  return text;
}

/// The command that installs a LibTorch for one of the programs: for the newest.
std::string install(const std::vector<Program>& programs) {
  return "pip install \"torch==" + programs.back().series + ".*\"";
}

/// Returns the folder with LibTorch's shared libraries for `place`, which is a torch package, an unpacked LibTorch, its
/// lib folder, or a folder of Python packages. Empty if there is none.
std::string library_folder(const std::string& place) {
  for (const char* below : {"/lib", "", "/torch/lib"})
    if (exists(place + below + "/libtorch_cpu.so")) return real_path(place + below);
  return "";
}

/// Returns the version of a LibTorch without a suffix such as "+cu130"; empty if it is unknown.
std::string version_of(const std::string& root) {
  std::string text = read_file(root + "/build-version");  // in an unpacked LibTorch
  const auto from = [&](const char* file, const char* word) {
    if (!text.empty()) return;
    text = read_file(root + file);
    const size_t line = text.find(word);
    text = line == text.npos ? "" : text.substr(line);
  };
  from("/version.py", "__version__ = ");  // in a Python package
  from("/share/cmake/Torch/TorchConfigVersion.cmake", "PACKAGE_VERSION \"");
  const size_t begin = text.find_first_of("0123456789");
  return begin == text.npos ? "" : text.substr(begin, text.find_first_not_of("0123456789.", begin) - begin);
}

bool belongs_to_torch(std::string_view library) {
  for (const std::string_view prefix : {"libtorch", "libc10", "libcudart.", "libcublas", "libnccl.", "libnvrtc."})
    if (library.starts_with(prefix)) return true;
  return false;
}

/// Returns whose a LibTorch is, in words ("of conda-forge"), if it is not PyTorch's own; else empty.
/// PyTorch's own holds these libraries inside. Another one takes them from its system, and its classes may differ in
/// memory.
std::string other_builder(const std::string& libraries) {
  constexpr std::string_view inside[] = {"libprotobuf", "libonnx", "libsleef",  "libfmt.",
                                         "libabsl_",    "libuv.",  "libcpuinfo"};
  const std::vector<std::string> needed = needed_libraries(libraries + "/libtorch_cpu.so");
  const auto is_inside = [&](const std::string& library) {
    return std::any_of(std::begin(inside), std::end(inside),
                       [&](std::string_view each) { return library.starts_with(each); });
  };
  if (std::none_of(needed.begin(), needed.end(), is_inside)) return "";
  for (std::string folder = libraries; !folder.empty(); folder = parent(folder))
    if (exists(folder + "/conda-meta")) return "of conda-forge";
  return "of a distribution";
}

/// Fills `torch` from the folder of its libraries and sets `program` to the one for it. Returns the reason why it
/// cannot be used; empty if it can.
std::string inspect(const std::string& libraries, const std::vector<Program>& programs, Torch& torch,
                    Program& program) {
  torch.root = parent(libraries);
  torch.folders = {libraries};
  const std::string builder = other_builder(libraries);
  if (!builder.empty()) {
    return "[torch.build] " + torch.root + ": a LibTorch " + builder + ", not PyTorch's own: " + install(programs) +
           " in an environment of its own, or build trainkit from source";
  }
  const std::string version = version_of(torch.root);
  const auto suits = [&](const Program& each) {
    return version == each.series || version.starts_with(each.series + ".");
  };
  const auto suitable = std::find_if(programs.begin(), programs.end(), suits);
  if (suitable == programs.end() && !(version.empty() && programs.size() == 1)) {
    return "[torch.version] " + torch.root + ": unsuitable LibTorch version (got " +
           (version.empty() ? "none" : version) + ", expected " + series_of(programs) + "): " + install(programs);
  }
  program = suitable == programs.end() ? programs[0] : *suitable;
  const bool has_cuda = exists(libraries + "/libc10_cuda.so");
  const std::vector<std::string> nvidia_folders = matches(parent(torch.root) + "/nvidia/*/lib");
  for (const std::string& library : program.needed) {
    if (!belongs_to_torch(library) || !torch.folder_of(library).empty()) continue;
    const auto has = [&](const std::string& folder) { return exists(folder + "/" + library); };
    if (!has_cuda && has(program.without_cuda)) {
      torch.folders.push_back(program.without_cuda);
      continue;
    }
    const auto folder = std::find_if(nvidia_folders.begin(), nvidia_folders.end(), has);
    if (folder == nvidia_folders.end()) {
      return "[torch.library] " + torch.root + ": this LibTorch lacks " + library +
             ", which the program was built with: " + install(programs);
    }
    torch.folders.push_back(*folder);
  }
  return "";
}

/// Returns the folder of the torch package that python3 would import; empty if there is none. Does not import torch.
std::string torch_of_python() {
  int pipe[2];
  if (pipe2(pipe, O_CLOEXEC) != 0) return "";
  posix_spawn_file_actions_t actions;
  posix_spawn_file_actions_init(&actions);
  posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
  posix_spawn_file_actions_adddup2(&actions, pipe[1], 1);
  posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
  // Remove "" from sys.path: it is the working folder, which may contain any code.
  std::string words[] = {"python3", "-c",
                         "import sys; sys.path[:] = [p for p in sys.path if p]\n"
                         "import importlib.util; spec = importlib.util.find_spec('torch')\n"
                         "print(spec.submodule_search_locations[0] if spec else '')"};
  char* argv[] = {words[0].data(), words[1].data(), words[2].data(), nullptr};
  pid_t pid = -1;
  const int error = posix_spawnp(&pid, argv[0], &actions, nullptr, argv, environ);
  posix_spawn_file_actions_destroy(&actions);
  close(pipe[1]);
  std::string text;
  char buffer[4096];
  for (ssize_t size = 0; error == 0 && (size = read(pipe[0], buffer, sizeof buffer)) > 0;)
    text.append(buffer, static_cast<size_t>(size));
  close(pipe[0]);
  if (error == 0) waitpid(pid, nullptr, 0);
  return text.substr(0, text.find('\n'));
}

}  // namespace

std::string Torch::folder_of(const std::string& library) const {
  for (const std::string& folder : folders)
    if (exists(folder + "/" + library)) return folder;
  return "";
}

TorchSearch find_torch(const std::string& program_folder, const std::vector<Program>& programs) {
  TorchSearch search;
  // Returns true if the LibTorch at `place` can be used. Keeps the problem of the first one that cannot.
  const auto usable = [&](const std::string& place) {
    const std::string libraries = place.empty() ? "" : library_folder(place);
    if (libraries.empty()) return false;
    const std::string problem = inspect(libraries, programs, search.torch, search.program);
    if (search.problem.empty()) search.problem = problem;
    search.found = problem.empty();
    return search.found;
  };

  // Next to the program: an unpacked LibTorch; the torch package next to our wheel's package (program in trainkit/bin,
  // LibTorch in torch/); the packages of a Python into whose prefix the program was unpacked.
  for (const char* place : {"", "/..", "/../libtorch", "/../..", "/../../libtorch"})
    if (usable(program_folder + place)) return search;
  for (const char* packages : {"site-packages", "dist-packages"})
    for (const std::string& place : matches(program_folder + "/../lib/python3*/" + packages))
      if (usable(place)) return search;

  const char* chosen = std::getenv("TRAINKIT_TORCH");
  if (chosen != nullptr && *chosen != '\0') {
    search.problem.clear();
    if (!usable(chosen) && search.problem.empty()) {
      search.problem = std::string("[torch.place] TRAINKIT_TORCH: no LibTorch in this folder (got ") + chosen +
                       ", expected a folder with lib/libtorch_cpu.so)";
    }
    return search;
  }

  if (usable(torch_of_python())) return search;
  if (search.problem.empty()) {
    search.problem = "[torch.missing] LibTorch " + series_of(programs) +
                     " was not found next to the program, by TRAINKIT_TORCH or in python3: " + install(programs);
  }
  return search;
}

}  // namespace trainkit::launcher
