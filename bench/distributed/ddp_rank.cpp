// One rank of BM_DdpStep: ddp_rank STEPS. Rank 0 prints one "name value" per line: seconds per step in total, of
// computation only (compute), of the reduction only (communication), and of the agreement only.
#include <iostream>

#include "ddp_step.h"
#include "distributed/agreement/step_consensus.h"

using namespace trainkit;
using namespace trainkit::bench;

namespace {

double seconds_a_step(DeviceReplicator& devices, int64_t steps) {
  AdamW optimizer({.lr = 1e-4});
  TrainStep train(devices, optimizer);
  const Batch batch = wide_batch(kRowsPerReplica);
  for (int i = 0; i < 10; ++i) train(batch, wide_loss);
  return seconds([&] {
           for (int64_t i = 0; i < steps; ++i) train(batch, wide_loss);
         }) /
         static_cast<double>(steps);
}

}  // namespace

int main(int, char** values) {
  at::set_num_threads(1);
  torch::manual_seed(0);
  const int64_t steps = std::stol(values[1]);
  const auto group = ProcessGroup::create(*read_launch_environment().value()).value();
  const auto devices = DeviceReplicator::create([] { return WideMlp(); }, {.process_group = group}).value();
  const double step = seconds_a_step(*devices, steps);

  const auto alone = DeviceReplicator::create([] { return WideMlp(); }, {.device = at::kCPU}).value();
  group->barrier().IgnoreError();
  const double compute = seconds_a_step(*alone, steps);

  std::vector<at::Tensor> gradients;
  for (const at::Tensor& parameter : devices->module()->parameters())
    gradients.push_back(parameter.detach().clone().view(-1));
  const at::Tensor flat = at::cat(gradients);
  group->barrier().IgnoreError();
  const double communication = seconds([&] {
                                 for (int64_t i = 0; i < steps; ++i) group->all_reduce(flat).IgnoreError();
                               }) /
                               static_cast<double>(steps);

  StepConsensus agree(*group);
  group->barrier().IgnoreError();
  constexpr int64_t kAgreements = 2000;
  const double agreement = seconds([&] {
                             for (int64_t i = 0; i < kAgreements; ++i) agree(i, {.weight = 64}).value();
                           }) /
                           static_cast<double>(kAgreements);
  if (group->rank() == 0) {
    std::cout << "step " << step << "\ncompute " << compute << "\ncommunication " << communication << "\nagreement "
              << agreement << std::endl;
  }
}
