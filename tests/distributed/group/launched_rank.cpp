// One rank of a job, for the tests of launchers: writes the values from its launcher to <folder>/rank<R>.<restart>.
//
//   launched_rank FOLDER           nothing else
//   launched_rank FOLDER exit      rank 1 exits with 1 in the first attempt
//   launched_rank FOLDER segv      rank 1 crashes with SIGSEGV in the first attempt
//   launched_rank FOLDER data      rank 1 fails with an error of exit code 4
#include <signal.h>

#include <fstream>
#include <string>

#include "trainkit/app/placement.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"

namespace {

using namespace trainkit;

absl::StatusOr<int> run(const std::string& folder, const std::string& fault) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto found, read_launch_environment());
  if (!found) return absl::FailedPreconditionError("nobody launched this process");
  const LaunchEnvironment& launch = *found;
  TRAINKIT_RETURN_IF_ERROR(check_rendezvous(launch));
  const std::string name = "/rank" + std::to_string(launch.rank) + "." + std::to_string(launch.restart_count);
  std::ofstream(folder + name) << launcher_name(launch.launcher) << " " << launch.rank << "/" << launch.world_size
                               << " " << launch.local_rank << "/" << launch.local_world_size << " " << launch.node_rank
                               << (launch.agent_store ? " agent" : " own") << "\n"
                               << launch.master_addr << ":" << launch.master_port << "\n"
                               << launch.run_id << "\n"
                               << launch.error_file << "\n";
  if (launch.rank == 1 && launch.restart_count == 0) {
    if (fault == "exit") return 1;
    if (fault == "segv") raise(SIGSEGV);
  }
  if (launch.rank == 1 && fault == "data") {
    return to_status({.exit_code = ExitCode::kData,
                      .id = "data.csv",
                      .where = "train.csv:812",
                      .field = "Emotion",
                      .problem = "unknown label",
                      .got = "hapiness"});
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  return trainkit::run_program(
      [&](trainkit::ProgramState&) { return run(argc > 1 ? argv[1] : ".", argc > 2 ? argv[2] : ""); });
}
