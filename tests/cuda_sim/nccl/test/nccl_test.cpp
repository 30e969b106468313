// Runs each test in a separate process, so that the first process stays single-threaded.
#include "nccl_test.h"

int main(int argc, char** argv) {
  using namespace nccl_test;
  const std::vector<std::pair<const char*, void (*)()>> tests = {{"types", types},
                                                                 {"one_process", one_process},
                                                                 {"several_processes", several_processes},
                                                                 {"capture", capture},
                                                                 {"two_streams", two_streams},
                                                                 {"eager_after_graph", eager_after_graph},
                                                                 {"both_send_first", both_send_first},
                                                                 {"split", split},
                                                                 {"refusals", refusals},
                                                                 {"mismatch", mismatch},
                                                                 {"timeout", timeout},
                                                                 {"abort", abort_releases},
                                                                 {"dead_peer", dead_peer},
                                                                 {"many_calls", many_calls}};
  setenv("CUDA_SIM_NCCL_TIMEOUT", "20", 0);
  bool good = true;
  for (const auto& [name, test] : tests) {
    if (argc > 1 && std::strcmp(argv[1], name) != 0) continue;
    std::printf("%s\n", name);
    std::fflush(stdout);
    const pid_t child = fork();
    if (child == 0) {
      test();
      std::fflush(stdout);
      _exit(0);
    }
    if (!all_succeed({child})) {
      std::printf("  FAILED\n");
      good = false;
    }
  }
  std::printf(good ? "all passed\n" : "some failed\n");
  return good ? 0 : 1;
}
