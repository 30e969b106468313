#include "memory/memory_recorder.h"

#include <ATen/Parallel.h>
#include <ATen/ops/_lazy_clone.h>
#include <c10/core/CPUAllocator.h>

#include <optional>
#include <thread>

#include "memory/scalable_trace.h"
#include "test_util.h"

namespace trainkit {
namespace {

constexpr int64_t kRow = 1000 * sizeof(float);

TEST_CASE("MemoryRecorder counts requested bytes by class, with the peak") {
  MemoryRecorder recorder(MemoryClass::kWeights);
  const at::Tensor weights = at::empty({1000});
  recorder.enter(MemoryClass::kActivations);
  at::Tensor a = at::empty({3, 1000});
  a = at::Tensor();
  const at::Tensor b = at::empty({2, 1000});

  CHECK(recorder.live()[MemoryClass::kWeights] == kRow);
  CHECK(recorder.live()[MemoryClass::kActivations] == 2 * kRow);
  CHECK(recorder.live().total() == 3 * kRow);
  CHECK(recorder.peak()[MemoryClass::kActivations] == 3 * kRow);
  CHECK(recorder.peak().total() == 4 * kRow);
  CHECK(recorder.allocations() == 3);
}

TEST_CASE("MemoryRecorder moves a tensor to another class, in the trace too") {
  MemoryRecorder recorder;
  const at::Tensor gradient = at::empty({1000});
  recorder.assign(gradient.view({10, 100}), MemoryClass::kGradients);  // a view shares the memory
  recorder.assign(at::Tensor(), MemoryClass::kGradients);
  CHECK(recorder.live()[MemoryClass::kGradients] == kRow);
  CHECK(recorder.live()[MemoryClass::kActivations] == 0);
  CHECK(recorder.trace().peak()[MemoryClass::kGradients] == kRow);
}

TEST_CASE("MemoryRecorder restores LibTorch's own allocator") {
  c10::Allocator* const before = c10::GetCPUAllocator();
  {
    const MemoryRecorder recorder;
    CHECK(c10::GetCPUAllocator() != before);
    CHECK_THROWS_AS(MemoryRecorder(), c10::Error);  // one at a time
  }
  CHECK(c10::GetCPUAllocator() == before);
  const MemoryRecorder again;
  CHECK(again.allocations() == 0);
}

TEST_CASE("Memory allocated before the scope and memory that outlives it are freed once, and not counted elsewhere") {
  std::optional<at::Tensor> before = at::ones({1000});
  std::optional<at::Tensor> after;
  {
    MemoryRecorder recorder;
    before.reset();
    CHECK(recorder.live().total() == 0);
    after = at::ones({1000});
    CHECK(recorder.live().total() == kRow);
  }
  {
    MemoryRecorder recorder;
    after.reset();
    CHECK(recorder.live().total() == 0);
  }
  // Memory that LibTorch allocates without a DataPtr (oneDNN's buffers) may be freed through the other allocator, in
  // both directions.
  void* raw = c10::GetCPUAllocator()->raw_allocate(4000);
  {
    MemoryRecorder recorder;
    c10::GetCPUAllocator()->raw_deallocate(raw);
    raw = c10::GetCPUAllocator()->raw_allocate(4000);
    CHECK(recorder.live().total() == 4000);
  }
  c10::GetCPUAllocator()->raw_deallocate(raw);
}

TEST_CASE("Memory that a library allocates as a plain pointer and frees is workspace; tensor memory is not") {
  MemoryRecorder recorder;
  c10::GetCPUAllocator()->raw_deallocate(c10::GetCPUAllocator()->raw_allocate(4000));
  at::empty({1000});
  const MemoryTrace trace = recorder.trace();
  CHECK(trace.blocks[0].kind == MemoryClass::kWorkspace);
  CHECK(trace.blocks[1].kind == MemoryClass::kActivations);
  CHECK(trace.without(MemoryClass::kWorkspace).blocks.size() == 1);
  CHECK(trace.without(MemoryClass::kWorkspace).events == std::vector<int32_t>{1, -1});
  // Copy-on-write asks the allocator whether it owns a tensor's memory.
  const at::Tensor lazy = at::_lazy_clone(at::ones({10}));
  CHECK(lazy.sum().item<double>() == 10);
}

TEST_CASE("Scratch memory of parallel work is one block of class workspace, regardless of the number of pieces") {
  const auto work = [](int64_t pieces) {
    MemoryRecorder recorder;
    const at::Tensor before = at::empty({1000});
    std::vector<at::Tensor> kept(2);
    at::parallel_for(0, pieces, pieces, [&](int64_t begin, int64_t end) {
      for (int64_t i = begin; i < end; ++i) {
        const at::Tensor one = at::empty({2, 1000}), other = at::empty({3, 1000});
        if (i < 2) kept[i] = at::empty({1000});
      }
    });
    const at::Tensor after = at::empty({1000});
    CHECK(recorder.trace().peak().total() == recorder.peak().total());
    CHECK(recorder.trace().live()[MemoryClass::kActivations] == 4 * kRow);
    return recorder.trace();
  };
  const MemoryTrace few = work(4), many = work(40);
  CHECK(few.blocks.size() == many.blocks.size());
  CHECK(many.events == few.events);
  CHECK(many.peak()[MemoryClass::kWorkspace] == 5 * kRow);
  CHECK(many.without(MemoryClass::kWorkspace).peak().total() == 4 * kRow);
  CHECK(ScalableTrace::create(few, 4, many, 40).ok());
}

TEST_CASE("A tensor that grows after the scope is still freed correctly") {
  at::Tensor tensor;
  {
    const MemoryRecorder recorder;
    tensor = at::ones({10});
  }
  tensor.resize_({100000});  // by the allocator that the storage stores
  tensor.fill_(2);
  CHECK(tensor.sum().item<double>() == 200000);
}

TEST_CASE("MemoryRecorder counts the allocations of all threads") {
  MemoryRecorder recorder;
  std::vector<std::thread> threads;
  std::vector<at::Tensor> kept(4);
  for (at::Tensor& tensor : kept) {
    threads.emplace_back([&tensor] {
      for (int i = 0; i < 200; ++i) tensor = at::empty({1000});
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(recorder.allocations() == 800);
  CHECK(recorder.live().total() == 4 * kRow);
  CHECK(recorder.trace().live().total() == 4 * kRow);
}

TEST_CASE("The sums are the same without a trace") {
  int64_t peak[2];
  for (const bool keep_trace : {false, true}) {
    MemoryRecorder recorder(MemoryClass::kActivations, keep_trace);
    at::Tensor x = at::ones({100, 100});
    for (int i = 0; i < 5; ++i) x = at::matmul(x, x) * 0.01;
    peak[keep_trace] = recorder.peak().total();
    CHECK(recorder.trace().blocks.empty() == !keep_trace);
    if (keep_trace) CHECK(recorder.trace().peak().total() == peak[1]);
  }
  CHECK(peak[0] == peak[1]);
}

TEST_CASE("Blocks of another device are added, permanent or temporary") {
  MemoryRecorder recorder;
  recorder.set_stream(3);
  recorder.add(100, MemoryClass::kLibraries);
  recorder.pass(std::vector<int64_t>{20, 5}, MemoryClass::kActivations);
  recorder.empty_cache();
  CHECK(recorder.live().total() == 100);
  CHECK(recorder.peak().total() == 125);
  const MemoryTrace trace = recorder.trace();
  CHECK(trace.blocks.front().stream == 3);
  CHECK(trace.peak()[MemoryClass::kLibraries] == 100);
  CHECK(trace.peak()[MemoryClass::kActivations] == 25);
  CHECK(trace.events == std::vector<int32_t>{1, 2, 3, -2, -3, MemoryTrace::kEmptyCache});
}

TEST_CASE("Memory allocated and freed since a mark can be moved to another class") {
  MemoryRecorder recorder;
  const at::Tensor before = at::empty({1000});
  const int64_t moment = recorder.allocations();
  const at::Tensor kept = at::empty({1000});
  at::empty({1000});
  recorder.assign_freed_since(moment, MemoryClass::kWorkspace);
  CHECK(recorder.trace().blocks.at(1).kind == MemoryClass::kActivations);
  CHECK(recorder.trace().blocks.at(2).kind == MemoryClass::kWorkspace);
}

}  // namespace
}  // namespace trainkit
