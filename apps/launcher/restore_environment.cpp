/// Part of each installed program: before main, gives LD_LIBRARY_PATH the value it had before the launcher (main.cpp)
/// changed it, so that programs started from here find their own libraries. The loader has read it by then.
#include <cstdlib>

namespace {

__attribute__((constructor)) void restore_library_path() {
  const char* original = std::getenv("TRAINKIT_LD_LIBRARY_PATH");
  if (original == nullptr) return;
  if (*original == '\0') {
    unsetenv("LD_LIBRARY_PATH");
  } else {
    setenv("LD_LIBRARY_PATH", original, 1);
  }
  unsetenv("TRAINKIT_LD_LIBRARY_PATH");
}

}  // namespace
