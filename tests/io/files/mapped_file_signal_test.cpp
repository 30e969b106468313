// Must run before any other map of the process: it tests the handler that was installed before the first map.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "test_util.h"
#include "trainkit/io/mapped_file.h"

using namespace trainkit;

namespace {

/// Causes a fault in memory outside any MappedFile.
void fault(const std::string& path) {
  const int descriptor = ::open(path.c_str(), O_RDWR);
  const auto* bytes = static_cast<const volatile char*>(::mmap(nullptr, 4096, PROT_READ, MAP_PRIVATE, descriptor, 0));
  if (::ftruncate(descriptor, 0) != 0) ::_exit(1);
  (void)bytes[0];
  ::_exit(2);  // no fault occurred
}

/// Wait status of a child that runs `body`.
template <class F>
int status_of_child(F body) {
  const pid_t child = ::fork();
  if (child == 0) {
    body();
    ::_exit(3);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

}  // namespace

TEST_CASE("A fault outside our maps goes to the previous handler", "[io][mapped_file]") {
  const test::TempDir folder;
  std::ofstream(folder / "ours") << "text";
  std::ofstream(folder / "other") << std::string(5000, 'x');
  const int handled = status_of_child([&] {
    ::signal(SIGBUS, [](int) { ::_exit(42); });
    const auto map = MappedFile::open(folder / "ours");
    fault(folder / "other");
  });
  CHECK((WIFEXITED(handled) && WEXITSTATUS(handled) == 42));

  std::ofstream(folder / "other") << std::string(5000, 'x');
  const int unhandled = status_of_child([&] {
    ::signal(SIGBUS, SIG_DFL);
    const auto map = MappedFile::open(folder / "ours");
    fault(folder / "other");
  });
  CHECK((WIFSIGNALED(unhandled) && WTERMSIG(unhandled) == SIGBUS));
}
