#include <torch/cuda.h>

#include <algorithm>

#include "trainkit/command.h"
#include "trainkit/config/config.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/launch.h"
#include "trainkit/report/summary.h"

namespace trainkit::tool {
namespace {

struct LaunchFlags {
  IntOrAuto nproc_per_node = {};
  int64_t nnodes = 1, node_rank = 0, master_port = 0;
  std::string master_addr = {};
  Seconds grace{15}, stop_timeout{300};
};

void add_flags(ConfigParser& parser, LaunchFlags& flags) {
  parser.add("nproc_per_node", &flags.nproc_per_node,
             {.help = "Ranks on this machine. auto: one per GPU, or 1 without a GPU.",
              .group = "Ranks",
              .min = 1,
              .max = 4096});
  parser.add("nnodes", &flags.nnodes, {.help = "Number of machines.", .group = "Ranks", .min = 1, .max = 65536});
  parser.add("node_rank", &flags.node_rank,
             {.help = "Index of this machine, from 0.", .group = "Ranks", .min = 0, .max = 65535});
  parser.add("master_addr", &flags.master_addr,
             {.help = "Host of machine 0. Required with several machines; default with one: the loopback interface.",
              .group = "Meeting point",
              .metavar = "HOST"});
  parser.add("master_port", &flags.master_port,
             {.help = "Port on machine 0. Required with several machines. 0: any free port.",
              .group = "Meeting point",
              .min = 0,
              .max = 65535});
  parser.add("grace", &flags.grace,
             {.help = "Time between SIGTERM and SIGKILL for the other ranks after one has failed.",
              .group = "Ending",
              .min = 0});
  parser.add(
      "stop_timeout", &flags.stop_timeout,
      {.help = "Time for the other ranks to save after a signal has stopped one rank.", .group = "Ending", .min = 0});
}

absl::StatusOr<LaunchOptions> options_of(const ConfigParser& parser, const LaunchFlags& flags) {
  if (flags.node_rank >= flags.nnodes)
    return parser.invalid("node_rank", "out of range", "0.." + std::to_string(flags.nnodes - 1));
  if (flags.nnodes > 1 && (flags.master_addr.empty() || flags.master_port == 0)) {
    return parser.invalid(flags.master_addr.empty() ? "master_addr" : "master_port", "needed with several machines", "",
                          "give every machine the same --master_addr (machine 0) and --master_port");
  }
  const int64_t gpus = std::max<int64_t>(static_cast<int64_t>(torch::cuda::device_count()), 1);
  return LaunchOptions{.nproc_per_node = flags.nproc_per_node.value.value_or(gpus),
                       .nnodes = flags.nnodes,
                       .node_rank = flags.node_rank,
                       .master_addr = flags.master_addr.empty() ? "127.0.0.1" : flags.master_addr,
                       .master_port = static_cast<uint16_t>(flags.master_port),
                       .grace = flags.grace,
                       .stop_timeout = flags.stop_timeout};
}

}  // namespace

absl::StatusOr<int> launch_command(const Arguments& arguments) {
  ConfigParser parser(
      {.name = "trainkit launch",
       .version = library_versions()["trainkit"],
       .description = "Starts a program as several ranks: trainkit launch [flags] -- program [its flags].\n"
                      "Each output line starts with its rank. If one rank fails, all ranks end. The exit code is that "
                      "of the first\nrank that failed, or 8 if it was killed.",
       .examples = {"trainkit launch --nproc_per_node 2 -- trainkit-transformer --input book.txt",
                    "trainkit launch --nnodes 2 --node_rank 1 --master_addr node0 --master_port 29500 "
                    "--nproc_per_node 4 -- trainkit-transformer --input book.txt --dist_bind eth0"}});
  LaunchFlags flags;
  add_flags(parser, flags);
  TRAINKIT_ASSIGN_OR_RETURN(const bool wanted, parse_or_print(parser, arguments));
  if (!wanted) return 0;
  TRAINKIT_ASSIGN_OR_RETURN(const LaunchOptions options, options_of(parser, flags));
  if (arguments.program.empty()) {
    return to_status({.exit_code = ExitCode::kUsage,
                      .id = "cli.missing",
                      .field = "program",
                      .problem = "none given",
                      .hint = "give it after two dashes: trainkit launch --nproc_per_node 2 -- program --its_flag"});
  }
  return launch(options, arguments.program);
}

}  // namespace trainkit::tool
