/// Part of each installed program. Restores LD_LIBRARY_PATH before main to its value before the launcher changed it, so
/// that child processes find their own libraries. The loader has already read it. See Note [Start of installed
/// programs] in main.cpp.
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
