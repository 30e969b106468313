#include "distributed/shared_memory/shared_memory.h"

#include <ATen/core/ivalue.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <stdexcept>

namespace trainkit::detail {
namespace {

constexpr size_t kMaxRanks = 64;  // every rank maps the memory of all ranks
/// Interval at which a waiting rank checks that the other rank still exists.
constexpr std::chrono::milliseconds kLivenessInterval{20};

// Note [Exchanges in shared memory]
// ~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~~
// Each rank owns one anonymous memory region (RankMemory). All ranks map it through /proc/<pid>/fd/<fd>. The mapping is
// accepted only if size and token match, which rejects an unrelated process with the same pid in another pid namespace.
// All ranks then vote through the store, so that either all use shared memory or none does.
//
// A tensor passes in pieces of at most RankMemory::kCopyBytes. For each piece:
// 1. A rank writes into a Slot where its values are, and counts `arrived` (release). A tensor that share() has moved
//    stays where it is; of another one, the rank copies the piece to its place for copies.
// 2. It waits until every rank has arrived (acquire), and checks the sizes.
// 3. All-reduce: it adds one share of the elements of all ranks and writes the sums into the memory of all ranks. So
//    each value is read once and each sum written once per rank, with any number of ranks. Reduce-scatter: it adds its
//    own part. All-gather: it copies the parts of the others.
// 4. It counts `finished`, and waits until every rank has: nobody reads or writes its values any longer.
//
// The values of a tensor of at most RankMemory::kSlotBytes are in the Slot. Every rank adds all of them, and nobody
// waits in step 4. Two slots in turn suffice: a rank that arrives at exchange n + 2 has seen every rank arrive at
// n + 1, so all have finished n.
//
// In steps 2 and 4 the ranks meet in the memory of the first one. Each counts its visit, and the last one wakes all of
// them: a rank sleeps once, with any number of ranks. Counters wrap around; `reached` compares them by signed
// difference, which is exact because they differ by at most 2. Waiters sleep on a futex for at most kLivenessInterval
// and then check that each other rank is there or still exists: its `ended` flag, or its pidfd, which becomes readable
// when the process ends. `ended` is read before the rank's own counter, since a rank may finish its last exchange and
// then end regularly. A rank that is killed between its own counter and its visit is there too. After a failure all
// later sums fail with the same exception, because the counts no longer agree. A rank that is late may then still write
// sums into a tensor of a rank that has given up: the values of a failed sum are undefined.

bool reached(uint32_t counter, uint32_t least) { return static_cast<int32_t>(counter - least) >= 0; }

/// Sleeps while `counter` equals `seen`, for at most kLivenessInterval. The futex is shared between processes.
void sleep_on(const std::atomic<uint32_t>& counter, uint32_t seen) {
  const timespec limit{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLivenessInterval).count()};
  ::syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void wake_all(const std::atomic<uint32_t>& counter) {
  ::syscall(SYS_futex, &counter, FUTEX_WAKE, std::numeric_limits<int>::max(), nullptr, nullptr, 0);
}

std::string network_namespace() {
  std::error_code error;
  return std::filesystem::read_symlink("/proc/self/ns/net", error).string();
}

/// Work of a call. Work::create_from_future would make one that swallows errors.
class CallWork final : public c10d::Work {
 public:
  explicit CallWork(c10::intrusive_ptr<c10::ivalue::Future> done) : done_(std::move(done)) {}
  bool isCompleted() override { return done_->completed(); }
  bool wait(std::chrono::milliseconds) override {
    done_->waitAndThrow();
    return true;
  }
  c10::intrusive_ptr<c10::ivalue::Future> getFuture() override { return done_; }

 private:
  c10::intrusive_ptr<c10::ivalue::Future> done_;
};

}  // namespace

std::unique_ptr<SharedMemory> SharedMemory::open(c10d::Store& store, int64_t rank, int64_t world_size, bool wanted,
                                                 std::chrono::milliseconds timeout) {
  if (world_size < 2 || world_size > static_cast<int64_t>(kMaxRanks)) return nullptr;
  const auto key = [](const char* name, int64_t of_rank) { return name + std::to_string(of_rank); };
  std::random_device random;
  const uint64_t token = (uint64_t{random()} << 32) | random();

  const UniqueDescriptor own = wanted ? RankMemory::create() : UniqueDescriptor();
  std::shared_ptr<RankMemory> shown = RankMemory::map(own.get(), ::getpid());
  std::string place = "none";
  if (shown) {
    shown->head().token = token;
    place = std::to_string(::getpid()) + " " + std::to_string(own.get()) + " " + std::to_string(token) + " " +
            network_namespace();
  }
  store.set(key("shown/", rank), place);

  bool all = shown != nullptr;
  std::vector<std::shared_ptr<RankMemory>> ranks;
  for (int64_t other = 0; other < world_size; ++other) {
    if (other == rank) {
      ranks.push_back(std::move(shown));
      continue;
    }
    std::istringstream fields(store.get_to_str(key("shown/", other)));
    pid_t process = 0;
    int number = 0;
    uint64_t expected = 0;
    std::string network;
    if (!all || !(fields >> process >> number >> expected >> network) || network != network_namespace()) {
      all = false;
      continue;
    }
    const std::string path = "/proc/" + std::to_string(process) + "/fd/" + std::to_string(number);
    const UniqueDescriptor memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));  // an unrelated file on another machine
    auto theirs = RankMemory::map(memory.get(), process, expected);
    all = theirs != nullptr;
    ranks.push_back(std::move(theirs));
  }
  store.set(key("shared/", rank), std::string(all ? "yes" : "no"));
  for (int64_t other = 0; other < world_size; ++other) all &= store.get_to_str(key("shared/", other)) == "yes";
  if (!all) return nullptr;
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(ranks), rank, timeout));
}

SharedMemory::SharedMemory(std::vector<std::shared_ptr<RankMemory>> ranks, int64_t rank,
                           std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)), rank_(static_cast<size_t>(rank)), timeout_(timeout), thread_([this] { work(); }) {}

SharedMemory::~SharedMemory() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_one();
  thread_.join();
  RankMemory::Head& head = ranks_[rank_]->head();
  head.ended.store(1, std::memory_order_release);
  const RankMemory::Head& first = ranks_[0]->head();
  wake_all(first.arrivals.complete);
  wake_all(first.finishes.complete);
}

bool SharedMemory::supports(const at::Tensor& tensor) {
  return tensor.is_cpu() && tensor.is_contiguous() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kDouble);
}

c10::intrusive_ptr<c10d::Work> SharedMemory::all_reduce(const at::Tensor& tensor) {
  return start(Operation::kAllReduce, tensor);
}
c10::intrusive_ptr<c10d::Work> SharedMemory::reduce_scatter(const at::Tensor& tensor) {
  return start(Operation::kReduceScatter, tensor);
}
c10::intrusive_ptr<c10d::Work> SharedMemory::all_gather(const at::Tensor& tensor) {
  return start(Operation::kAllGather, tensor);
}

c10::intrusive_ptr<c10d::Work> SharedMemory::start(Operation operation, const at::Tensor& tensor) {
  if (operation == Operation::kAllGather) {
    TORCH_CHECK(tensor.is_cpu() && tensor.is_contiguous(), "expected a contiguous tensor on the CPU");
  } else {
    TORCH_CHECK(supports(tensor), "expected a contiguous tensor of float32 or float64 on the CPU");
  }
  TORCH_CHECK(operation == Operation::kAllReduce || tensor.numel() % static_cast<int64_t>(ranks_.size()) == 0,
              "expected one part of equal size per rank");
  auto done = c10::make_intrusive<c10::ivalue::Future>(c10::TensorType::get());
  {
    const std::lock_guard lock(mutex_);
    calls_.push_back({operation, tensor, done});
  }
  asked_.notify_one();
  return c10::make_intrusive<CallWork>(done);
}

void SharedMemory::work() {
  for (;;) {
    Call next;
    {
      std::unique_lock lock(mutex_);
      asked_.wait(lock, [&] { return stopping_ || !calls_.empty(); });
      if (calls_.empty()) return;
      next = std::move(calls_.front());
      calls_.pop_front();
    }
    try {
      if (broken_) std::rethrow_exception(broken_);
      run(next);
      next.done->markCompleted(next.tensor);
    } catch (...) {
      if (!broken_) broken_ = std::current_exception();
      next.done->setError(std::current_exception());
    }
  }
}

void SharedMemory::share(const at::Tensor& tensor) {
  const c10::Storage& storage = tensor.storage();
  RankMemory& own = *ranks_[rank_];
  if (!tensor.is_cpu() || storage.nbytes() == 0 || own.offset_of(static_cast<const std::byte*>(storage.data()))) return;
  c10::DataPtr place = own.allocate(storage.nbytes());
  if (!place) return;
  std::memcpy(place.get(), storage.data(), storage.nbytes());
  storage.set_data_ptr(std::move(place));
}

void SharedMemory::run(const Call& call) {
  const size_t parts = call.operation == Operation::kAllReduce ? 1 : ranks_.size();
  const size_t part = call.tensor.nbytes() / parts;
  const size_t most = std::max(RankMemory::kCopyBytes / parts / 64 * 64, RankMemory::kSlotBytes);
  auto* const data = static_cast<std::byte*>(call.tensor.mutable_data_ptr());
  const auto deadline = Clock::now() + timeout_;
  for (size_t begin = 0; begin < part; begin += most) {
    exchange({call, data + begin, std::min(most, part - begin), parts, part, deadline});
  }
}

/// See Note [Exchanges in shared memory].
void SharedMemory::exchange(const Piece& piece) {
  const std::byte* const shown = arrive(piece);
  await_arrivals(piece);
  switch (piece.call.operation) {
    case Operation::kAllReduce:
      all_reduce(piece);
      break;
    case Operation::kReduceScatter: {
      std::byte* const target = piece.part(rank_);
      add_up(piece.call.tensor.scalar_type(), rank_, 0, piece.bytes, {&target, 1});
      break;
    }
    case Operation::kAllGather:
      for (size_t rank = 0; rank < ranks_.size(); ++rank) {
        if (rank != rank_) std::memcpy(piece.part(rank), part_of(rank, rank), piece.bytes);
      }
      break;
  }
  if (piece.is_small()) return;
  finish(piece);
  if (piece.call.operation == Operation::kAllReduce && shown != piece.data) std::memcpy(piece.data, shown, piece.bytes);
}

/// Shows this rank's values to the others. Returns where they are.
std::byte* SharedMemory::arrive(const Piece& piece) {
  RankMemory& own = *ranks_[rank_];
  RankMemory::Slot& slot = own.head().slots[arrived_ % 2];
  slot.total_bytes = piece.call.tensor.nbytes();
  std::byte* shown = piece.data;
  slot.part_stride = piece.part_stride;
  if (piece.is_small() || !own.offset_of(piece.data)) {
    shown = piece.is_small() ? slot.values.data() : own.place_for_copies();
    slot.part_stride = piece.bytes;
    for (size_t part = 0; part < piece.parts; ++part) {
      if (piece.call.operation == Operation::kAllGather && part != rank_) continue;
      std::memcpy(shown + part * piece.bytes, piece.part(part), piece.bytes);
    }
  }
  slot.first = *own.offset_of(shown);
  meet(&RankMemory::Head::arrived, &RankMemory::Head::arrivals, ++arrived_);
  return shown;
}

void SharedMemory::await_arrivals(const Piece& piece) const {
  await(&RankMemory::Head::arrived, &RankMemory::Head::arrivals, arrived_, piece.deadline);
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    if (rank == rank_) continue;
    const RankMemory::Slot& slot = ranks_[rank]->head().slots[(arrived_ - 1) % 2];
    if (slot.total_bytes != piece.call.tensor.nbytes()) {
      throw std::runtime_error("rank " + std::to_string(rank) + " sent " + std::to_string(slot.total_bytes) +
                               " bytes, this rank " + std::to_string(piece.call.tensor.nbytes()));
    }
    if (!RankMemory::contains(slot.first, (piece.parts - 1) * slot.part_stride + piece.bytes)) {
      throw std::runtime_error("rank " + std::to_string(rank) + " sent a wrong address");
    }
  }
}

/// Waits until no rank reads or writes this rank's values.
void SharedMemory::finish(const Piece& piece) {
  meet(&RankMemory::Head::finished, &RankMemory::Head::finishes, ++finished_);
  await(&RankMemory::Head::finished, &RankMemory::Head::finishes, finished_, piece.deadline);
}

/// The values of `rank` in one part of the current piece.
std::byte* SharedMemory::part_of(size_t rank, size_t number) const {
  const RankMemory::Slot& slot = ranks_[rank]->head().slots[(arrived_ - 1) % 2];
  return ranks_[rank]->at(slot.first + number * slot.part_stride);
}

/// Adds this rank's share of the piece for all ranks, or a small piece for this rank only.
void SharedMemory::all_reduce(const Piece& piece) const {
  constexpr size_t kLine = 64;  // ranks do not write the same cache line
  const size_t share = (piece.bytes / ranks_.size() + kLine - 1) / kLine * kLine;
  const size_t begin = piece.is_small() ? 0 : std::min(piece.bytes, rank_ * share);
  const size_t end =
      piece.is_small() || rank_ + 1 == ranks_.size() ? piece.bytes : std::min(piece.bytes, begin + share);
  std::vector<std::byte*> targets;
  for (size_t rank = 0; rank < ranks_.size() && !piece.is_small(); ++rank) targets.push_back(part_of(rank, 0) + begin);
  if (piece.is_small()) targets.push_back(piece.data);
  add_up(piece.call.tensor.scalar_type(), 0, begin, end - begin, targets);
}

/// Adds the values of all ranks in one part, `bytes` bytes from `begin`, and writes the sums into all targets.
void SharedMemory::add_up(at::ScalarType type, size_t part, size_t begin, size_t bytes,
                          std::span<std::byte* const> targets) const {
  type == at::kFloat ? add_up<float>(part, begin, bytes, targets) : add_up<double>(part, begin, bytes, targets);
}

template <class T>
void SharedMemory::add_up(size_t part, size_t begin, size_t bytes, std::span<std::byte* const> targets) const {
  std::array<const T*, kMaxRanks> values{};
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    values[rank] = reinterpret_cast<const T*>(part_of(rank, part) + begin);
  }
  constexpr size_t kBlock = 1024;
  std::array<T, kBlock> sums;
  const size_t size = bytes / sizeof(T);
  for (size_t first = 0; first < size; first += kBlock) {
    const size_t count = std::min(kBlock, size - first);
    for (size_t i = 0; i < count; ++i) sums[i] = values[0][first + i] + values[1][first + i];
    for (size_t rank = 2; rank < ranks_.size(); ++rank) {
      for (size_t i = 0; i < count; ++i) sums[i] += values[rank][first + i];
    }
    for (std::byte* const target : targets) {
      std::memcpy(target + first * sizeof(T), sums.data(), count * sizeof(T));
    }
  }
}

/// Counts this rank's visit to a meeting. The last rank wakes the others.
void SharedMemory::meet(Counter own, Meeting meeting, uint32_t exchange) const {
  (ranks_[rank_]->head().*own).store(exchange, std::memory_order_release);
  RankMemory::Meeting& place = ranks_[0]->head().*meeting;
  const auto ranks = static_cast<uint32_t>(ranks_.size());
  if (place.visits.fetch_add(1, std::memory_order_acq_rel) + 1 != exchange * ranks) return;
  place.complete.store(exchange, std::memory_order_release);
  wake_all(place.complete);
}

bool SharedMemory::all_reached(Counter each, uint32_t exchange) const {
  return std::all_of(ranks_.begin(), ranks_.end(), [&](const auto& rank) {
    return reached((rank->head().*each).load(std::memory_order_acquire), exchange);
  });
}

/// Sleeps until all ranks have reached an exchange.
void SharedMemory::await(Counter each, Meeting meeting, uint32_t exchange, Clock::time_point deadline) const {
  const std::atomic<uint32_t>& complete = (ranks_[0]->head().*meeting).complete;
  for (;;) {
    const uint32_t seen = complete.load(std::memory_order_acquire);
    if (reached(seen, exchange)) return;
    sleep_on(complete, seen);
    if (reached(complete.load(std::memory_order_acquire), exchange)) return;
    bool one_is_gone = false;  // read before the counters: a rank may have ended regularly
    for (const auto& rank : ranks_) {
      const bool gone = rank->gone();
      one_is_gone |= gone && !reached((rank->head().*each).load(std::memory_order_acquire), exchange);
    }
    if (all_reached(each, exchange)) return;
    if (one_is_gone) throw std::runtime_error("Connection closed by peer");
    if (stopping_) throw std::runtime_error("this rank has left");
    if (Clock::now() > deadline) throw std::runtime_error("Timed out");
  }
}

}  // namespace trainkit::detail
