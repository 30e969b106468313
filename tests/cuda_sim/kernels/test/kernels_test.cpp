// Runs every kernel of the library on the simulated device, launched by the library's own objects.
#include <algorithm>
#include <chrono>
#include <functional>
#include <map>
#include <set>

#include "faulty.h"
#include "test_support.h"

namespace {

std::map<uintptr_t, uintptr_t> merged(std::vector<std::pair<uintptr_t, uintptr_t>> ranges) {
  std::sort(ranges.begin(), ranges.end());
  std::map<uintptr_t, uintptr_t> all;
  for (const auto& [begin, end] : ranges) {
    if (begin == end) continue;
    if (!all.empty() && std::prev(all.end())->second >= begin) {
      std::prev(all.end())->second = std::max(std::prev(all.end())->second, end);
    } else {
      all[begin] = end;
    }
  }
  return all;
}

}  // namespace

void forget_launches() { fake::outcomes().clear(); }

void expect_accesses(const std::vector<Area>& areas, bool writes, const char* what) {
  std::vector<std::pair<uintptr_t, uintptr_t>> wanted, found;
  for (const Area& area : areas) {
    wanted.emplace_back(reinterpret_cast<uintptr_t>(area.begin), reinterpret_cast<uintptr_t>(area.begin) + area.bytes);
  }
  for (const auto& [name, outcome] : fake::outcomes()) {
    CHECK(outcome.error == cudaSuccess, "%s: error %d", name.c_str(), outcome.error);
    for (const auto& access : outcome.accesses) {
      const auto begin = reinterpret_cast<uintptr_t>(access.begin);
      if (access.writes == writes) found.emplace_back(begin, begin + access.bytes);
    }
  }
  CHECK(merged(wanted) == merged(found), "%s: %s", what, writes ? "writes" : "reads");
  if (writes) forget_launches();
}

void expect_no_findings(const char* what) {
  for (const auto& [kind, text] : fake::findings()) CHECK(false, "%s: %s: %s", what, kind.c_str(), text.c_str());
  fake::findings().clear();
}

namespace {

std::set<std::string> names_seen;

std::map<std::string, Bits> run_cases() {
  std::map<std::string, Bits> results;
  const auto run = [&](const std::string& name, const std::function<Bits()>& body) {
    fake::free_all();
    forget_launches();
    results[name] = body();
    expect_no_findings(name.c_str());
  };
  const auto flag = [](bool value) { return value ? "1" : "0"; };
  for (const Numbers& numbers : kNumbers) {
    const std::string of =
        std::to_string(static_cast<int>(numbers.stream)) + std::to_string(static_cast<int>(numbers.product));
    for (const int64_t width : {40, 37, 4200, 8200}) {
      for (const bool more : {false, true}) {
        const std::string name = of + " " + std::to_string(width) + flag(more);
        const int64_t rows = width > 100 ? 3 : 35;
        run("norm " + name, [&] { return norm_case(numbers, rows, width, more, more); });
        run("norm gradient " + name, [&] { return norm_gradient_case(numbers, rows, width, more, more); });
        run("gelu " + name, [&] { return gelu_case(numbers, rows, width, more); });
        run("gelu gradient " + name, [&] { return gelu_gradient_case(numbers, rows, width, more); });
        run("cross entropy " + name, [&] { return cross_entropy_case(numbers, rows, width, more); });
      }
    }
  }
  for (const int64_t bands : {4, 2, 3}) {
    for (const bool turned : {false, true}) {
      run("gather " + std::to_string(bands) + flag(turned), [&] { return gather_case(bands, turned); });
    }
  }
  for (const bool shifted : {false, true}) {
    run("norm of a list " + std::string(flag(shifted)), [&] { return norm_of_list_case(shifted); });
    for (const float condition : {0.0f, 1.0f, 2.0f}) {  // 2: none
      run("copy " + std::string(flag(shifted)) + std::to_string(condition),
          [&] { return copy_case(shifted, condition); });
    }
    for (const bool other : {false, true}) {
      const std::string name = std::string(flag(shifted)) + flag(other);
      run("unscale " + name, [&] { return unscale_case(shifted, other); });
      run("cast " + name, [&] { return cast_case(shifted, other); });
      run("adam " + name, [&] { return adam_case(shifted, other, false); });
    }
  }
  run("adam skipped", [&] { return adam_case(false, true, true); });
  for (const int64_t width : {64, 37, 300}) {
    for (const int64_t distinct : {3, 500}) {
      run("embedding " + std::to_string(width) + " " + std::to_string(distinct),
          [&] { return embedding_case(width, distinct); });
    }
  }
  for (const bool popular : {false, true})
    run("triplets " + std::string(flag(popular)), [&] { return triplets_case(popular); });
  return results;
}

void test_orders() {
  const auto forward = run_cases();
  const auto compare = [&](const char* order, const char* seed) {
    setenv("CUDA_SIM_THREAD_ORDER", order, 1);
    setenv("CUDA_SIM_SEED", seed, 1);
    for (const auto& [name, bits] : run_cases()) CHECK(bits == forward.at(name), "%s: %s", order, name.c_str());
  };
  compare("reverse", "0");
  compare("random", "1");
  compare("random", "2");
  setenv("CUDA_SIM_THREAD_ORDER", "forward", 1);
}

/// Checks that all kernels compiled by nvcc are found.
void test_names() {
  for (const std::string& name : fake::registered()) CHECK(fake::find(name), "%s", name.c_str());
  CHECK(fake::registered().size() > 40, "%zu kernels", fake::registered().size());
  CHECK(!fake::find("_Z5otherPf"), "other");
}

void test_exchanges() {
  fake::free_all();
  forget_launches();
  const Items<int> out(size_t{64 * 8}), sum(std::vector<int>{0});
  launch_exchange(out.address, sum.address);
  for (int id = 0; id < 64; ++id) {
    const int lane = id % 32, first = id - lane;
    const auto at = [&](int k) { return out[static_cast<size_t>(id * 8 + k)]; };
    CHECK(at(0) == first + 5, "shfl %d", id);
    CHECK(at(1) == (lane < 3 ? id : id - 3), "up %d", id);
    CHECK(at(2) == (lane > 28 ? id : id + 3), "down %d", id);
    CHECK(at(3) == first + (lane ^ 9), "xor %d", id);
    CHECK(at(4) == (lane % 8 > 5 ? id : id + 2), "down by 8 %d", id);
    CHECK(at(5) == 0x49249249, "ballot %d", id);
    if (lane < 16) CHECK(at(6) == first + (lane + 1) % 16, "half a warp %d", id);
  }
  CHECK(sum[0] == 32, "sum %d", sum[0]);
  expect_no_findings("exchanges");
}

void expect_finding(const char* what, cudaError_t error, const std::string& kind,
                    const std::vector<std::string>& parts) {
  CHECK(fake::findings().size() == 1, "%s: %zu findings", what, fake::findings().size());
  CHECK(fake::outcomes().size() == 1 && fake::outcomes()[0].second.error == error, "%s: error", what);
  for (const auto& found : fake::findings()) {
    printf("  %s: %s: %s\n", what, found.kind.c_str(), found.text.c_str());
    CHECK(found.kind == kind, "%s", what);
    for (const std::string& part : parts)
      CHECK(found.text.find(part) != std::string::npos, "%s: no '%s'", what, part.c_str());
  }
  fake::findings().clear();
  fake::outcomes().clear();
}

void test_faults() {
  fake::free_all();
  forget_launches();
  void* const x = fake::allocate(512);
  launch(Fault::kDivergentBarrier, x, 0);
  expect_finding("divergent barrier", cudaErrorLaunchTimeout, "kernel",
                 {"divergent_kernel deadlocks", "16 threads from (0, 0, 0) at __syncthreads",
                  "16 threads from (16, 0, 0) at __shfl_xor_sync with mask 0xffffffff"});
  launch(Fault::kTrap, x, 0);
  expect_finding("trap", cudaErrorLaunchFailure, "kernel",
                 {"trap_kernel calls __trap", "thread (5, 0, 0)", "block (1, 0, 0)"});
  launch(Fault::kMissingLane, x, 0);
  expect_finding("missing lane", cudaErrorLaunchFailure, "kernel",
                 {"missing_lane_kernel calls __shfl_xor_sync", "reads lane 7", "thread (6, 0, 0)"});
  launch(Fault::kOwnLane, x, 0);
  expect_finding("own lane", cudaErrorLaunchFailure, "kernel", {"own_lane_kernel", "the mask does not name"});
  int host = 0;
  launch(Fault::kTrap, &host, 0);
  expect_finding("host pointer", cudaErrorIllegalAddress, "memory",
                 {"trap_kernel: argument 1 is no address of device memory"});
  launch(Fault::kTrap, fake::allocate(512, 1), 0);
  expect_finding("other device", cudaErrorIllegalAddress, "memory",
                 {"trap_kernel: argument 1 is an address of device 1"});
  launch(Fault::kOverrun, x, 131);
  expect_finding("overrun", cudaErrorIllegalAddress, "kernel",
                 {"overrun_kernel writes 4 bytes at 0x", "12 bytes after an allocation of 512",
                  "thread (3, 0, 0) of block (0, 0, 0)"});
  launch(Fault::kOverrun, x, -2);
  expect_finding("underrun", cudaErrorIllegalAddress, "kernel", {"8 bytes before an allocation of 512"});
  launch(Fault::kStraddle, fake::allocate(20), 1);
  expect_finding("straddle", cudaErrorIllegalAddress, "kernel", {"after an allocation of 20"});
  launch(Fault::kSharedOverrun, x, 0);
  expect_finding("shared overrun", cudaErrorIllegalAddress, "kernel",
                 {"writes 4 bytes", "shared memory", "thread (8, 0, 0)"});
  launch(Fault::kDynamicOverrun, x, 0);
  expect_finding("dynamic overrun", cudaErrorIllegalAddress, "kernel",
                 {"writes 4 bytes", "shared memory", "thread (8, 0, 0)"});
  launch(Fault::kOverrun, nullptr, 0);
  expect_finding("null pointer", cudaErrorIllegalAddress, "kernel", {"a null pointer"});
  fake::free_all();
  launch(Fault::kNone, fake::allocate(512), -96);  // host memory in the page of device memory that was just written
  expect_no_findings("host memory next to an allocation");
}

void test_time() {
  fake::free_all();
  const auto begin = std::chrono::steady_clock::now();
  norm_case({Number::kFloat, Number::kFloat}, 520, 768, true, true);
  const std::chrono::duration<double> passed = std::chrono::steady_clock::now() - begin;
  printf("  norm of 400 k elements: %.2f s with its reference\n", passed.count());
  expect_no_findings("time");
}

}  // namespace

int main() {
  setvbuf(stdout, nullptr, _IOLBF, 0);
  test_names();
  test_exchanges();
  test_faults();
  test_orders();
  test_time();
  printf("%zu kernels, %d failures\n", fake::registered().size(), failures);
  return failures > 0;
}
