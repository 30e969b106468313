// A library for LD_PRELOAD. It stops a program before main and starts a copy of the process for each request: the copy
// has loaded its libraries and run their initialisers, which takes 0.2 to 0.5 s for LibTorch and a fork 10 ms.
//
// Requests come through the socket whose number is in PREPARED_MAIN_SOCKET; see start_program.h for their form. The
// answer is the number of the new process, or -1 if this program cannot be copied. The process is a child of the
// requester, who waits for it as for any other.
#include <dlfcn.h>
#include <fcntl.h>
#include <linux/prctl.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

namespace {

using Main = int (*)(int, char**, char**);
Main main_of_program = nullptr;

/// The texts of a request, which is a sequence of texts that end with NUL.
std::vector<char*> texts_of(std::string& request) {
  std::vector<char*> texts;
  for (size_t at = 0; at < request.size(); at = request.find('\0', at) + 1) texts.push_back(request.data() + at);
  return texts;
}

bool redirect(const char* path, int number) {
  const int file = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);
  if (file < 0 || dup2(file, number) < 0) return false;
  return file == number || close(file) == 0;
}

/// Makes `words`, each ending with NUL, the command line that /proc shows; the process's own if empty. Returns whether
/// that is possible. See proc_pid_stat(5) for the numbers.
bool show_command(const std::string& words) {
  std::ifstream file("/proc/self/stat");
  std::string text;
  std::getline(file, text, ')');
  std::array<uint64_t, 52> stat{};
  file >> text;  // the state, number 3
  for (size_t i = 4; i < stat.size(); ++i) {
    file >> text;
    stat[i] = std::strtoull(text.c_str(), nullptr, 10);
  }
  const auto begin = reinterpret_cast<uint64_t>(words.data());
  prctl_mm_map map{};
  map.start_code = stat[26];
  map.end_code = stat[27];
  map.start_stack = stat[28];
  map.start_data = stat[45];
  map.end_data = stat[46];
  map.start_brk = stat[47];
  map.brk = reinterpret_cast<uint64_t>(sbrk(0));
  map.arg_start = words.empty() ? stat[48] : begin;
  map.arg_end = words.empty() ? stat[49] : begin + words.size();
  map.env_start = stat[50];
  map.env_end = stat[51];
  map.exe_fd = static_cast<uint32_t>(-1);
  return file && prctl(PR_SET_MM, PR_SET_MM_MAP, &map, sizeof map, 0) == 0;
}

/// Runs main in a copy of the process.
int run(std::string request, char** program) {
  const std::vector<char*> texts = texts_of(request);
  umask(static_cast<mode_t>(std::atoi(texts[3])));
  if (chdir(texts[0]) != 0 || !redirect(texts[1], 1) || !redirect(texts[2], 2)) _exit(127);
  const auto count = static_cast<size_t>(std::atoi(texts[4]));
  const auto arguments = texts.begin() + 5, variables = arguments + static_cast<std::ptrdiff_t>(count);
  std::vector<char*> argv{program[0]}, environment(variables, texts.end());
  argv.insert(argv.end(), arguments, variables);
  std::string words;
  for (const char* word : argv) words.append(word).push_back('\0');
  show_command(words);
  argv.push_back(nullptr);
  environment.push_back(nullptr);
  environ = environment.data();
  std::exit(main_of_program(static_cast<int>(argv.size()) - 1, argv.data(), environ));
}

/// A copy of this process as a child of its parent. Unlike fork(), which cannot do that, it leaves it to us to name the
/// place where glibc keeps the number of the thread.
pid_t copy_for_parent(void* thread_number) {
  return static_cast<pid_t>(syscall(SYS_clone, CLONE_PARENT | CLONE_CHILD_SETTID | CLONE_CHILD_CLEARTID | SIGCHLD,
                                    nullptr, nullptr, thread_number, nullptr));
}

int serve(int, char** arguments, char**) {
  const int requests = std::atoi(std::getenv("PREPARED_MAIN_SOCKET"));
  void* thread_number = nullptr;
  const auto threads = std::filesystem::directory_iterator("/proc/self/task");
  const bool can_copy = std::distance(begin(threads), end(threads)) == 1 &&
                        prctl(PR_GET_TID_ADDRESS, &thread_number, 0, 0, 0) == 0 && thread_number && show_command("");
  redirect("/dev/null", 1);
  redirect("/dev/null", 2);
  while (true) {
    std::string request(1 << 20, '\0');
    const ssize_t size = recv(requests, request.data(), request.size(), 0);
    if (size <= 0) _exit(0);  // the requester has ended
    request.resize(static_cast<size_t>(size));
    const pid_t copy = can_copy ? copy_for_parent(thread_number) : -1;
    if (copy == 0) {
      close(requests);
      return run(std::move(request), arguments);
    }
    if (send(requests, &copy, sizeof copy, MSG_NOSIGNAL) != sizeof copy) _exit(1);
  }
}

}  // namespace

extern "C" int __libc_start_main(Main main, int count, char** arguments, void (*begin)(), void (*end)(),
                                 void (*end_of_loader)(), void* stack) {
  main_of_program = main;
  const auto next = reinterpret_cast<decltype(&__libc_start_main)>(dlsym(RTLD_NEXT, "__libc_start_main"));
  const bool serves = std::getenv("PREPARED_MAIN_SOCKET") != nullptr;
  return next(serves ? serve : main, count, arguments, begin, end, end_of_loader, stack);
}
