// log_until_killed DIR STEPS: logs steps 1..STEPS to DIR/metrics.jsonl and DIR/tensorboard, writes a "checkpoint" (the
// file DIR/saved) every 20 steps, and resumes from the checkpoint when it is started again. The test may kill it at any
// moment after the line "started".
#include <fstream>
#include <iostream>
#include <thread>

#include "trainkit/core/error.h"
#include "trainkit/logging/logger.h"
#include "trainkit/logging/sinks.h"

using namespace trainkit;

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const std::string dir = argv[1];
  const int64_t steps = std::stoll(argv[2]);
  RunLogger logger({.drain_every = std::chrono::milliseconds(1)});
  logger.add(JsonlLogger::open(dir + "/metrics.jsonl").value());
  logger.add(TensorBoardLogger::open(dir + "/tensorboard").value());
  std::cout << "started" << std::endl;
  int64_t saved = 0;
  std::ifstream(dir + "/saved") >> saved;
  absl::Status status = logger.rewind(saved);
  for (int64_t step = saved + 1; status.ok() && step <= steps; ++step) {
    logger.log({.step = step, .epoch = step / 100.0, .values = {{"loss", 1.0 / step}}, .lr = {1e-3}});
    if (step % 20 == 0) {
      logger.log({.step = step, .epoch = step / 100.0, .split = "val", .values = {{"loss", 2.0 / step}}});
      status = logger.flush();
      const std::string next = dir + "/saved.next";
      std::ofstream(next) << step;
      std::rename(next.c_str(), (dir + "/saved").c_str());
    }
    if (step % 4 == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  status.Update(logger.close());
  if (!status.ok()) std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}
