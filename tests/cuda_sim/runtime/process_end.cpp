// Stops the streams when a program ends. On a real device the kernels that are still queued need nothing from the
// host's memory. Ours run LibTorch's operations for the CPU, whose static objects the program's exit destroys. An exit
// handler of ours would come too late: objects that operations create at their first use are destroyed before it.
#include <dlfcn.h>

#include <cstdlib>

#include "sim.h"

namespace {

using Main = int (*)(int, char**, char**);
Main main_of_program = nullptr;

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(dlsym(RTLD_NEXT, name));
}

int main_then_stop(int count, char** arguments, char** environment) {
  const int code = main_of_program(count, arguments, environment);
  cuda_sim::stop_streams();
  return code;
}

}  // namespace

extern "C" {

int __libc_start_main(Main main, int count, char** arguments, void (*begin)(), void (*end)(), void (*end_of_loader)(),
                      void* stack) {
  main_of_program = main;
  return next<decltype(&__libc_start_main)>("__libc_start_main")(main_then_stop, count, arguments, begin, end,
                                                                 end_of_loader, stack);
}

void exit(int code) noexcept {
  cuda_sim::stop_streams();
  next<void (*)(int)>("exit")(code);
  __builtin_unreachable();
}

}  // extern "C"
