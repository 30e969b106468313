// Program `trainkit`: tools for training runs. Each subcommand is a function in its own file.
#include "trainkit/app/placement.h"
#include "trainkit/command.h"

int main(int argc, char** argv) {
  using namespace trainkit::tool;
  const std::vector<Command> commands = {
      {"doctor", "checks whether this machine is ready for training", doctor_command},
      {"launch", "starts a program as ranks on one or several machines", launch_command},
      {"plan", "predicts a trainer's memory and batch size on other devices", plan_command},
      {"scale", "predicts the speed-up on more devices and machines", scale_command},
      {"report", "writes a page about a run, or about several runs next to each other", report_command},
      {"watch", "shows the report of a run in a browser while it trains", watch_command},
      {"inspect", "lists the tensors of a weight file or checkpoint", inspect_command},
      {"verify-resume", "compares runs interrupted at random times with an uninterrupted run", verify_resume_command},
      {"export", "exports weights to .safetensors or .pt, or a model to .onnx", export_command},
  };
  return trainkit::run_program([&](trainkit::ProgramState&) { return dispatch({argv + 1, argv + argc}, commands); });
}
