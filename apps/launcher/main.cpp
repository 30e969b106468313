// Starts an installed program. bin/<name> is a copy of this launcher. The program is libexec/trainkit/<series>/<name>,
// for each series of LibTorch ("2.11") that the installation has programs for, or libexec/trainkit/<series>/programs,
// one file with all of them that selects by its first word.
//
// Note [Start of installed programs]
//
// LibTorch is not part of the package: it is found at run time, so a program cannot have a RUNPATH to it. The dynamic
// loader reads LD_LIBRARY_PATH once, before main. So a separate process must set it:
//
// 1. The launcher finds a LibTorch that a program was built for and that has all LibTorch libraries of it (find_torch).
// 2. It checks the other shared libraries and names the Debian packages of missing ones. The loader's own error would
//    name only the first one.
// 3. It puts LibTorch's folders first in LD_LIBRARY_PATH, saves the old value in TRAINKIT_LD_LIBRARY_PATH, and replaces
//    itself by the program (execv).
// 4. Before main, the program restores LD_LIBRARY_PATH (restore_environment.cpp). Otherwise its child processes, such
//    as python3 or git, would load LibTorch's copies of libraries.
//
// The launcher links neither LibTorch nor our library, and the C library statically: on a system whose C library is too
// old it says so.

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <string_view>
#include <vector>

#include "launcher/files.h"
#include "launcher/torch_finder.h"

namespace trainkit::launcher {
namespace {

constexpr int kUsage = 2;  // ExitCode::kUsage of the library

/// Prints an error in the library's format, and a hint if there is one. Returns the exit code.
int failed(const std::string& text, const std::string& hint = "") {
  std::fprintf(stderr, "trainkit: error%s\n", text.c_str());
  if (!hint.empty()) std::fprintf(stderr, "  hint: %s\n", hint.c_str());
  return kUsage;
}

/// Returns the Debian 12 package that contains a shared library; empty if unknown.
std::string debian_package(std::string_view library) {
  struct Rule {
    std::string_view prefix, package;
  };
  constexpr Rule rules[] = {
      {"libhdf5", "libhdf5-103-1"},    {"libpng16.so", "libpng16-16"}, {"libz.so", "zlib1g"},
      {"libabsl_", "libabsl20220623"}, {"libmatio.so", "libmatio11"},  {"libyaml-cpp.so", "libyaml-cpp0.7"},
      {"libgomp.so", "libgomp1"},      {"libstdc++.so", "libstdc++6"},
  };
  for (const Rule& rule : rules)
    if (library.starts_with(rule.prefix)) return std::string(rule.package);
  // Debian's rule: libavcodec.so.59 is in libavcodec59.
  const size_t mark = library.find(".so.");
  if (mark == library.npos) return "";
  return std::string(library.substr(0, mark)) + std::string(library.substr(mark + 4));
}

/// Returns the path of a library in the folders that the loader searches without its cache; empty if there is none.
std::string in_folders(const std::string& library) {
  const char* first = std::getenv("LD_LIBRARY_PATH");
  std::string folders = first != nullptr ? first : "";
  folders += ":/lib/x86_64-linux-gnu:/usr/lib/x86_64-linux-gnu:/lib64:/usr/lib64:/lib:/usr/lib";
  for (size_t begin = 0; begin < folders.size();) {
    const size_t end = std::min(folders.find(':', begin), folders.size());
    const std::string path = folders.substr(begin, end - begin) + "/" + library;
    if (end != begin && exists(path)) return path;
    begin = end + 1;
  }
  return "";
}

/// Returns whether the loader finds a library outside LibTorch.
bool installed(const std::string& library, const std::string& loader_cache) {
  // ldconfig's cache contains zero-terminated names and paths. A name may also be stored as the end of a path.
  for (const char before : {'\0', '/'})
    if (loader_cache.find(before + library + '\0') != std::string::npos) return true;
  return !in_folders(library).empty();
}

/// Returns whether the system's C library has what the programs need of it. PyTorch's own LibTorch needs less.
bool has_glibc() {
  const std::string path = in_folders("libc.so.6");
  return path.empty() || read_file(path).find("GLIBC_" TRAINKIT_GLIBC) != std::string::npos;
}

/// Returns the program `name` of each series, oldest first.
std::vector<Program> installed_programs(const std::string& prefix, const std::string& name) {
  std::vector<Program> programs;
  for (const std::string& folder : matches(prefix + "/libexec/trainkit/[0-9]*.[0-9]*")) {
    for (const std::string& file : {name, std::string("programs")}) {
      if (access((folder + "/" + file).c_str(), X_OK) != 0) continue;
      programs.push_back({folder.substr(folder.rfind('/') + 1), folder + "/" + file, folder + "/without_cuda", {}});
      programs.back().needed = needed_libraries(programs.back().path);
      break;
    }
  }
  const auto minor = [](const Program& program) {
    return std::atoi(program.series.c_str() + program.series.find('.') + 1);
  };
  std::sort(programs.begin(), programs.end(), [&](const Program& a, const Program& b) {
    const int left = std::atoi(a.series.c_str()), right = std::atoi(b.series.c_str());
    return left != right ? left < right : minor(a) < minor(b);
  });
  return programs;
}

// See Note [Start of installed programs].
int run(char** argv) {
  const std::string self = real_path("/proc/self/exe");
  const std::string folder = parent(self), prefix = parent(folder), name = self.substr(folder.size() + 1);
  const std::vector<Program> programs = installed_programs(prefix, name);
  if (programs.empty())
    return failed("[program.missing] " + prefix + "/libexec/trainkit: no program " + name, "reinstall trainkit");

  const std::string_view only_argument = argv[1] != nullptr && argv[2] == nullptr ? argv[1] : "";
  // As the trainer prints it. Loading LibTorch for it would take up to half a second.
  if (name != "trainkit" && only_argument == "--version") {
    std::printf("%s %s\n", name.c_str(), TRAINKIT_VERSION);
    return 0;
  }

  if (!has_glibc()) {
    return failed("[program.glibc] " + name + ": the system's C library is older than glibc " TRAINKIT_GLIBC,
                  "Debian 12, Ubuntu 22.04, Red Hat 9 and later have a newer one");
  }
  const TorchSearch search = find_torch(folder, programs);
  if (!search.found) return failed(search.problem);

  if (name == "trainkit" && (only_argument == "--cmake_prefix" || only_argument == "--cmake-prefix")) {
    const std::string library = prefix + "/libtrainkit/" + search.program.series;  // a package has one for each series
    std::printf("%s;%s\n", (exists(library) ? library : prefix).c_str(), search.torch.root.c_str());
    return 0;
  }

  const std::string cache = read_file("/etc/ld.so.cache");
  constexpr int kNamed = 4;  // libraries named in the error; the hint lists the packages of all
  std::string missing, packages;
  int count = 0;
  for (const std::string& library : search.program.needed) {
    if (!search.torch.folder_of(library).empty() || installed(library, cache)) continue;
    if (++count <= kNamed) missing += (missing.empty() ? "" : ", ") + library;
    const std::string package = debian_package(library);
    if (!package.empty() && (" " + packages + " ").find(" " + package + " ") == std::string::npos)
      packages += (packages.empty() ? "" : " ") + package;
  }
  if (count > kNamed) missing += " and " + std::to_string(count - kNamed) + " more";
  if (!missing.empty()) {
    return failed("[program.library] " + name + ": missing shared libraries: " + missing,
                  packages.empty() ? "" : "on Debian 12: apt-get install " + packages);
  }

  const char* before = std::getenv("LD_LIBRARY_PATH");
  const std::string original = before != nullptr ? before : "";
  std::string path;
  for (const std::string& place : search.torch.folders) path += (path.empty() ? "" : ":") + place;
  if (!original.empty()) path += ":" + original;
  setenv("TRAINKIT_LD_LIBRARY_PATH", original.c_str(), 1);  // for restore_environment.cpp
  setenv("LD_LIBRARY_PATH", path.c_str(), 1);
  const std::string& program = search.program.path;
  std::string word = self;  // not that of a link to the launcher
  if (program.ends_with("/programs")) argv[0] = word.data();
  execv(program.c_str(), argv);
  return failed("[program.start] " + program + ": " + std::strerror(errno));
}

}  // namespace
}  // namespace trainkit::launcher

int main(int, char** argv) { return trainkit::launcher::run(argv); }
