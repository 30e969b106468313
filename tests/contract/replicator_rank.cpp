// One rank of the replicator contract: replicator_rank CASE STEPS SHARDS MICRO_BATCHES OUT [none|fp16|bf16 [sockets]].
// Writes its results to OUT/rank<r>.safetensors. Ends with the exit code and the text of its error.

#include <iostream>

#include "replicator_contract.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/io/safetensors.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

absl::Status run_rank(const std::vector<std::string>& arguments) {
  const ContractCase work = contract_case(arguments.at(0));
  TRAINKIT_ASSIGN_OR_RETURN(const auto launch, read_launch_environment());
  TRAINKIT_ASSIGN_OR_RETURN(const auto group,
                            ProcessGroup::create(launch.value(), {.timeout = std::chrono::seconds(60),
                                                                  .shared_memory = arguments.size() < 7}));
  DeviceReplicatorOptions options{.process_group = group,
                                  .bucket_bytes = 8192,  // several buckets for small models too
                                  .first_bucket_bytes = 1024,
                                  .find_unused_parameters = work.find_unused_parameters};
  if (arguments.size() > 5 && arguments[5] != "none") {
    options.gradient_compression = arguments[5] == "fp16" ? GradientCompression::kFp16 : GradientCompression::kBf16;
  }
  torch::manual_seed(1 + group->rank());  // rank 0's weights should reach all ranks
  TRAINKIT_ASSIGN_OR_RETURN(const auto devices, DeviceReplicator::create(work.make, options));
  torch::manual_seed(2);
  const Trace trace = contract_trace(*devices, work, std::stol(arguments.at(1)), std::stol(arguments.at(2)),
                                     std::stol(arguments.at(3)));
  const std::string path = arguments.at(4) + "/rank" + std::to_string(group->rank()) + ".safetensors";
  return save_safetensors(Fs::posix(), path, NamedTensors(trace.begin(), trace.end()));
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
