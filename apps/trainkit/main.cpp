// trainkit: tools around training runs. Each subcommand is a function in a file of its own.
#include "trainkit/app/program.h"
#include "trainkit/command.h"

int main(int argc, char** argv) {
  using namespace trainkit::tool;
  const std::vector<Command> commands = {
      {"doctor", "what this machine has for training, and what is wrong with it", doctor_command},
      {"launch", "runs a program as several ranks on this machine", launch_command},
      {"plan", "predicts a trainer's memory on other devices, and the batch that fits", plan_command},
      {"scale", "predicts the speed-up of more devices and machines", scale_command},
      {"inspect", "lists the tensors of a file of weights or a checkpoint", inspect_command},
      {"verify-resume", "interrupts a trainer at random moments, and compares it with one left in peace",
       verify_resume_command},
      {"export", "writes a checkpoint's weights as a file that Python reads", export_command},
  };
  return trainkit::run_program([&](trainkit::Program&) { return dispatch({argv + 1, argv + argc}, commands); });
}
