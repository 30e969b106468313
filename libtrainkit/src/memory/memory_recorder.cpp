#include "memory/memory_recorder.h"

#include <c10/core/Allocator.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/ParallelGuard.h>
#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

namespace trainkit {
namespace {

// Note [Scratch memory in a trace]
//
// ScalableTrace aligns the traces of two batch sizes block by block, so both must have the same structure. Temporary
// memory in the body of an at::parallel_for breaks this: the number and order of its pieces depend on the batch size
// and on the number of threads. with_scratch_joined therefore replaces each run of such pieces by one block:
//
// - A block is joined if it was allocated in a parallel_for body and no other event lies between its allocation and its
//   end. A result that outlives the body stays a block of its own.
// - The joined block is opened at the first piece and closed before the next event of other memory. Its size is the
//   largest number of bytes that its pieces used at the same time, and its class is kWorkspace.

/// Returns the trace with scratch memory joined to blocks of class kWorkspace, see Note [Scratch memory in a trace].
/// @param is_scratch per block: true if it was allocated in the body of an at::parallel_for.
MemoryTrace with_scratch_joined(const MemoryTrace& trace, const std::vector<bool>& is_scratch) {
  const auto block_of = [](int32_t event) { return static_cast<size_t>(std::abs(event) - 1); };
  std::vector<int64_t> others(trace.blocks.size(), 0);  // number of events of other memory before the block
  std::vector<bool> joins(trace.blocks.size(), false);
  int64_t count = 0;
  for (const int32_t event : trace.events) {
    const size_t block = event == MemoryTrace::kEmptyCache ? 0 : block_of(event);
    if (event == MemoryTrace::kEmptyCache || !is_scratch[block])
      ++count;
    else if (event > 0)
      others[block] = count;
    else
      joins[block] = others[block] == count;
  }
  MemoryTrace joined;
  std::vector<int32_t> place(trace.blocks.size(), 0);
  const auto add = [&](const MemoryTrace::Block& block) {
    joined.blocks.push_back(block);
    return static_cast<int32_t>(joined.blocks.size());
  };
  int32_t open = 0;  // the joined block that is live now; 0 if there is none
  int64_t now = 0;
  for (const int32_t event : trace.events) {
    if (event == MemoryTrace::kEmptyCache) {
      if (open > 0) joined.events.push_back(-std::exchange(open, 0));
      joined.events.push_back(event);
      continue;
    }
    const size_t i = block_of(event);
    const MemoryTrace::Block& block = trace.blocks[i];
    if (joins[i]) {
      if (open == 0) {
        open = add(
            {.kind = MemoryClass::kWorkspace, .phase = block.phase, .freed_in = block.phase, .stream = block.stream});
        joined.events.push_back(open);
        now = 0;
      }
      now += event > 0 ? block.bytes : -block.bytes;
      int64_t& most = joined.blocks[static_cast<size_t>(open - 1)].bytes;
      most = std::max(most, now);
      continue;
    }
    if (open > 0 && !is_scratch[i]) joined.events.push_back(-std::exchange(open, 0));
    if (event > 0) place[i] = add(block);
    joined.events.push_back(event > 0 ? place[i] : -place[i]);
  }
  if (open > 0) joined.events.push_back(-open);
  return joined;
}

}  // namespace

/// State of one recorder. LibTorch allocates from several threads, so every access takes the lock.
class MemoryRecorder::State {
 public:
  State(MemoryClass kind, bool keep_trace, RecordedMemory memory)
      : memory(memory), kind_(kind), keep_trace_(keep_trace) {}

  const RecordedMemory memory;

  void enter(MemoryClass kind) {
    const std::lock_guard lock(mutex_);
    kind_ = kind;
    ++phase_;
  }

  void set_stream(int32_t stream) {
    const std::lock_guard lock(mutex_);
    stream_ = stream;
  }

  void allocated(const void* data, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    Live& live = live_[data];
    live = {.bytes = bytes, .kind = kind_};
    live.block = begin_block(bytes, kind_, c10::ParallelGuard::is_enabled());
  }

  void add(int64_t bytes, MemoryClass kind) {
    const std::lock_guard lock(mutex_);
    begin_block(bytes, kind, /*is_scratch=*/false);
  }

  void pass(std::span<const int64_t> bytes, MemoryClass kind) {
    const std::lock_guard lock(mutex_);
    std::vector<int32_t> blocks;
    for (const int64_t some : bytes) blocks.push_back(begin_block(some, kind, /*is_scratch=*/false));
    for (size_t i = 0; i < blocks.size(); ++i) {
      if (keep_trace_) end_block(blocks[i]);
      now_[kind] -= bytes[i];
      total_ -= bytes[i];
    }
  }

  void assign_freed_since(int64_t allocation, MemoryClass kind) {
    const std::lock_guard lock(mutex_);
    for (auto block = static_cast<size_t>(allocation); block < trace_.blocks.size(); ++block) {
      if (trace_.blocks[block].freed_in != MemoryTrace::kNever) trace_.blocks[block].kind = kind;
    }
  }

  void empty_cache() {
    const std::lock_guard lock(mutex_);
    if (keep_trace_) trace_.events.push_back(MemoryTrace::kEmptyCache);
  }

  void freed(const void* data, bool by_library) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return;
    const Live& live = found->second;
    if (keep_trace_) {
      if (by_library) trace_.blocks[static_cast<size_t>(live.block)].kind = MemoryClass::kWorkspace;
      end_block(live.block);
    }
    now_[live.kind] -= live.bytes;
    total_ -= live.bytes;
    live_.erase(found);
  }

  void assign(const void* data, MemoryClass kind) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return;
    Live& live = found->second;
    now_[live.kind] -= live.bytes;
    now_[kind] += live.bytes;
    live.kind = kind;
    if (keep_trace_) trace_.blocks[static_cast<size_t>(live.block)].kind = kind;
  }

  void set_known(const void* data, bool known, bool is_part) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    if (found == live_.end()) return;
    if (is_part && known && found->second.known == false) return;
    found->second.known = known;
  }

  bool is_untouched(const void* data) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    return found != live_.end() && !found->second.known;
  }

  bool is_known(const void* data, bool is_float) {
    const std::lock_guard lock(mutex_);
    const auto found = live_.find(data);
    return found == live_.end() || found->second.known.value_or(!is_float);
  }

  template <class F>
  auto read(F what) {
    const std::lock_guard lock(mutex_);
    return what(*this);
  }

  MemoryTrace trace() const { return with_scratch_joined(trace_, is_scratch_); }

  MemoryBytes now_, peak_;
  int64_t allocations_ = 0;

 private:
  struct Live {
    int64_t bytes = 0;
    MemoryClass kind = MemoryClass::kActivations;
    int32_t block = 0;
    std::optional<bool> known = std::nullopt;
  };

  /// Records the start of a block and returns its index in the trace.
  int32_t begin_block(int64_t bytes, MemoryClass kind, bool is_scratch) {
    const auto block = static_cast<int32_t>(trace_.blocks.size());
    ++allocations_;
    if (keep_trace_) {
      trace_.blocks.push_back({.bytes = bytes, .kind = kind, .phase = phase_, .stream = stream_});
      is_scratch_.push_back(is_scratch);
      trace_.events.push_back(block + 1);
    }
    now_[kind] += bytes;
    total_ += bytes;
    if (total_ > peak_total_) {
      peak_total_ = total_;
      peak_ = now_;
    }
    return block;
  }

  void end_block(int32_t block) {
    trace_.blocks[static_cast<size_t>(block)].freed_in = phase_;
    trace_.events.push_back(-(block + 1));
  }

  std::mutex mutex_;
  MemoryClass kind_;
  const bool keep_trace_;
  MemoryTrace trace_;
  std::vector<bool> is_scratch_;  // per block of trace_
  int32_t phase_ = 0, stream_ = 0;
  int64_t total_ = 0, peak_total_ = 0;
  std::unordered_map<const void*, Live> live_;
};

namespace {

// Note [Recording allocator]
//
// RecordingAllocator forwards to the previous CPU allocator and records each allocation. Memory that it returns is
// plain memory of that allocator, so either of the two can free it:
//
// - allocate() only replaces the deleter in the DataPtr, by free_tensor. It requires that the pointer is its own
//   context and that the deleter is the allocator's raw_deleter(); otherwise the replacement would lose information.
// - The object is never destroyed, and base_deleter_ keeps its value after remove(): memory that outlives the recorder
//   is freed through it later. For this reason two recorders in one process must wrap allocators with the same deleter.
// - Kernel libraries obtain plain pointers (Allocator::raw_allocate) and free them with raw_deleter(), which is
//   free_workspace here. Tensors are freed by free_tensor. This distinguishes workspaces from tensors.
// - Large blocks of RecordedMemory::kUntouched are mapped: Linux gives them pages of zeros when they are accessed. They
//   are in a table, since both deleters must know them, after the recorder's end too.

/// Blocks of zeros that were mapped.
class MappedBlocks {
 public:
  static constexpr size_t kLeastBytes = size_t{1} << 15;

  /// Returns nullptr if the system refuses.
  void* allocate(size_t bytes) {
    void* const data = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (data == MAP_FAILED) return nullptr;
    const std::lock_guard lock(mutex_);
    bytes_.emplace(data, bytes);
    ++count_;
    return data;
  }

  /// Returns false for other memory.
  bool free(void* data) {
    if (count_ == 0) return false;
    size_t bytes = 0;
    {
      const std::lock_guard lock(mutex_);
      const auto found = bytes_.find(data);
      if (found == bytes_.end()) return false;
      bytes = found->second;
      bytes_.erase(found);
      --count_;
    }
    munmap(data, bytes);
    return true;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<void*, size_t> bytes_;
  std::atomic<size_t> count_ = 0;
};

/// Wraps the previous CPU allocator and records its allocations. See Note [Recording allocator].
class RecordingAllocator final : public c10::Allocator {
 public:
  /// Returns the only instance. It is never destroyed: memory that outlives a recorder is freed through it.
  static RecordingAllocator& instance() {
    static auto* allocator = new RecordingAllocator;
    return *allocator;
  }

  void install(const std::shared_ptr<MemoryRecorder::State>& state) {
    const std::lock_guard lock(mutex_);
    TORCH_CHECK(!state_, "only one MemoryRecorder may exist at a time");
    c10::Allocator* present = c10::GetAllocator(c10::kCPU);
    const c10::DeleterFnPtr deleter = present->raw_deleter();
    TORCH_CHECK(deleter, "the CPU allocator has no raw_deleter(): its allocations cannot be recorded");
    const c10::DeleterFnPtr before = base_deleter_;
    TORCH_CHECK(!before || before == deleter, "the CPU allocator's deleter differs from the one recorded before");
    base_ = present;
    base_deleter_ = deleter;
    state_ = state;
    c10::SetCPUAllocator(this, kPriority);
  }

  void remove() {
    const std::lock_guard lock(mutex_);
    c10::SetCPUAllocator(base_, kPriority);
    state_.reset();
  }

  c10::DataPtr allocate(size_t bytes) override {
    const auto state = current_state();
    const bool is_untouched = state && state->memory == RecordedMemory::kUntouched;
    if (is_untouched && bytes >= MappedBlocks::kLeastBytes) {
      if (void* const data = mapped_.allocate(bytes)) {
        state->allocated(data, static_cast<int64_t>(bytes));
        return {data, data, &free_tensor, c10::Device(c10::kCPU)};
      }
    }
    c10::DataPtr memory = base_.load()->allocate(bytes);
    void* const data = memory.get();
    TORCH_CHECK(data == memory.get_context(),
                "the CPU allocator uses a separate context: its allocations cannot be recorded");
    if (!data) return memory;
    if (is_untouched) std::memset(data, 0, bytes);
    if (state) state->allocated(data, static_cast<int64_t>(bytes));
    const bool replaced = memory.compare_exchange_deleter(base_deleter_, &free_tensor);
    TORCH_CHECK(replaced, "the CPU allocator returned memory with a deleter other than raw_deleter()");
    return memory;
  }

  /// Distinguishes libraries from tensors, see Note [Recording allocator].
  c10::DeleterFnPtr raw_deleter() const override { return &free_workspace; }
  bool is_simple_data_ptr(const c10::DataPtr& memory) const override { return memory.get() == memory.get_context(); }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    base_.load()->copy_data(to, from, bytes);
  }

 private:
  static constexpr uint8_t kPriority = 100;  // above the default allocator's 0; equal to that of a test's allocator

  static void free_tensor(void* data) { free(data, /*by_library=*/false); }
  static void free_workspace(void* data) { free(data, /*by_library=*/true); }
  static void free(void* data, bool by_library) {
    if (!data) return;
    RecordingAllocator& self = instance();
    if (const auto state = self.current_state()) state->freed(data, by_library);
    if (!self.mapped_.free(data)) self.base_deleter_.load()(data);
  }

  std::shared_ptr<MemoryRecorder::State> current_state() {
    const std::lock_guard lock(mutex_);
    return state_;
  }

  std::mutex mutex_;
  std::shared_ptr<MemoryRecorder::State> state_;
  MappedBlocks mapped_;
  std::atomic<c10::Allocator*> base_ = nullptr;
  std::atomic<c10::DeleterFnPtr> base_deleter_ = nullptr;
};

}  // namespace

MemoryRecorder::MemoryRecorder(MemoryClass kind, bool keep_trace, RecordedMemory memory)
    : state_(std::make_shared<State>(kind, keep_trace, memory)) {
  RecordingAllocator::instance().install(state_);
}

MemoryRecorder::~MemoryRecorder() { RecordingAllocator::instance().remove(); }

void MemoryRecorder::enter(MemoryClass kind) { state_->enter(kind); }

void MemoryRecorder::set_stream(int32_t stream) { state_->set_stream(stream); }
void MemoryRecorder::add(int64_t bytes, MemoryClass kind) { state_->add(bytes, kind); }
void MemoryRecorder::pass(std::span<const int64_t> bytes, MemoryClass kind) { state_->pass(bytes, kind); }
void MemoryRecorder::assign_freed_since(int64_t allocation, MemoryClass kind) {
  state_->assign_freed_since(allocation, kind);
}
void MemoryRecorder::empty_cache() { state_->empty_cache(); }

void MemoryRecorder::assign(const at::Tensor& tensor, MemoryClass kind) {
  if (tensor.defined() && tensor.is_sparse()) {
    assign(tensor._indices(), kind);
    assign(tensor._values(), kind);
    return;
  }
  if (tensor.defined() && tensor.has_storage()) state_->assign(tensor.storage().data(), kind);
}

void MemoryRecorder::set_known(const at::Tensor& tensor, bool known) {
  if (!tensor.defined() || !tensor.has_storage()) return;
  state_->set_known(tensor.storage().data(), known, tensor.nbytes() < tensor.storage().nbytes());
}

bool MemoryRecorder::is_untouched(const at::Tensor& tensor) const {
  return state_->memory == RecordedMemory::kUntouched && tensor.has_storage() &&
         state_->is_untouched(tensor.storage().data());
}

bool MemoryRecorder::is_known(const at::Tensor& tensor) const {
  const bool is_float = !at::isIntegralType(tensor.scalar_type(), /*includeBool=*/true);
  return !tensor.has_storage() || state_->is_known(tensor.storage().data(), is_float);
}

MemoryBytes MemoryRecorder::live() const {
  return state_->read([](const State& state) { return state.now_; });
}

MemoryBytes MemoryRecorder::peak() const {
  return state_->read([](const State& state) { return state.peak_; });
}

int64_t MemoryRecorder::allocations() const {
  return state_->read([](const State& state) { return state.allocations_; });
}

MemoryTrace MemoryRecorder::trace() const {
  return state_->read([](const State& state) { return state.trace(); });
}

}  // namespace trainkit
