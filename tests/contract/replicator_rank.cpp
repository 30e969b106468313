// One rank of the replicator contract: replicator_rank SHARDS MICRO_BATCHES OUT none|fp16|bf16 memory|sockets CASE...
// Runs the cases one after the other and writes their results to OUT/CASE.rank<r>.safetensors. Ends with the exit code
// and the text of its error.

#include <iostream>

#include "replicator_contract.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

absl::Status run_case(const std::string& name, const std::vector<std::string>& arguments,
                      const std::shared_ptr<ProcessGroup>& group) {
  const ContractCase work = contract_case(name);
  DeviceReplicatorOptions options{.process_group = group,
                                  .bucket_bytes = 8192,  // several buckets for small models too
                                  .first_bucket_bytes = 1024,
                                  .find_unused_parameters = work.find_unused_parameters};
  if (const std::string& type = arguments.at(3); type != "none") {
    options.gradient_compression = type == "fp16" ? GradientCompression::kFp16 : GradientCompression::kBf16;
  }
  torch::manual_seed(1 + group->rank());  // rank 0's weights should reach all ranks
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(work.make, options));
  torch::manual_seed(2);
  const Trace trace =
      contract_trace(*devices, work, contract_steps(name), std::stol(arguments.at(0)), std::stol(arguments.at(1)));
  const std::string path = arguments.at(2) + "/" + name + ".rank" + std::to_string(group->rank()) + ".safetensors";
  return save_safetensors(Fs::posix(), path, NamedTensors(trace.begin(), trace.end()));
}

absl::Status run_rank(const std::vector<std::string>& arguments) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  TRAINKIT_ASSIGN_OR_RETURN(const std::shared_ptr<ProcessGroup> group,
                            ProcessGroup::create(launch.value(), {.timeout = std::chrono::seconds(60),
                                                                  .shared_memory = arguments.at(4) == "memory"}));
  for (size_t i = 5; i < arguments.size(); ++i) TRAINKIT_RETURN_IF_ERROR(run_case(arguments[i], arguments, group));
  return absl::OkStatus();
}

}  // namespace

int main(int count, char** values) {
  absl::Status status;
  try {
    at::set_num_threads(1);
    status = run_rank(std::vector<std::string>(values + 1, values + count));
  } catch (...) {
    status = status_from_current_exception();
  }
  if (status.ok()) return 0;
  std::cerr << error_text(status);
  return static_cast<int>(exit_code(status));
}
