// How far the loss function is from the call of the user.

#include <cxxabi.h>
#include <dlfcn.h>
#include <execinfo.h>
#include <link.h>

#include <algorithm>
#include <array>
#include <cstdlib>

#include "test_util.h"
#include "train/loop_util.h"
#include "trainkit/optim/sgd.h"
#include "trainkit/train/train_step.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Returns the name of the exported function that contains an address; empty for another function.
std::string function_at(void* address) {
  Dl_info info{};
  ElfW(Sym)* symbol = nullptr;
  void* const call = static_cast<char*>(address) - 1;  // the return address may be past the end of the function
  if (dladdr1(call, &info, reinterpret_cast<void**>(&symbol), RTLD_DL_SYMENT) == 0 || !info.dli_sname || !symbol)
    return {};
  if (static_cast<char*>(call) >= static_cast<char*>(info.dli_saddr) + symbol->st_size) return {};
  int failed = 0;
  const std::unique_ptr<char, decltype(&std::free)> name(abi::__cxa_demangle(info.dli_sname, nullptr, nullptr, &failed),
                                                         &std::free);
  return failed == 0 ? name.get() : info.dli_sname;
}

/// Returns the names of the functions that are running, the innermost first.
std::vector<std::string> running_functions() {
  std::array<void*, 200> addresses{};
  const int count = backtrace(addresses.data(), static_cast<int>(addresses.size()));
  std::vector<std::string> names;
  for (int i = 0; i < count; ++i) names.push_back(function_at(addresses[static_cast<size_t>(i)]));
  return names;
}

}  // namespace

TEST_CASE("At most four calls lie between accumulate and the replicas' run", "[train][train_step]") {
  const auto devices = DeviceReplicator::create([] { return TinyNet(0); }).value();
  SGD optimizer({.lr = 0.1});
  TrainStep step(*devices, optimizer, {});
  std::vector<std::string> running;
  const LossFunction loss = make_loss_function([&](TinyNet& model, const Batch& batch) {
    running = running_functions();
    return tiny_loss(model, batch);
  });
  const auto loader = Prefetcher::create(tiny_dataset(8), SequentialSampler(8), {.batch_size = 8}).value();
  step.accumulate(*loader->next().value(), loss);
  step.finish();

  const auto find = [&](const std::string& part) {
    const auto has = [&](const std::string& name) { return name.find(part) != std::string::npos; };
    return std::find_if(running.begin(), running.end(), has) - running.begin();
  };
  const auto run = find("SingleDevice::run("), accumulate = find("TrainStep::accumulate(");
  for (const std::string& name : running) UNSCOPED_INFO(name);
  REQUIRE(accumulate < static_cast<ptrdiff_t>(running.size()));
  REQUIRE(run < accumulate);
  CHECK(accumulate - run - 1 <= 4);
}
