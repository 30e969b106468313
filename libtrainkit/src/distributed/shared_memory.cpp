#include "distributed/shared_memory.h"

#include <ATen/core/ivalue.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <random>
#include <sstream>
#include <stdexcept>

#include "core/streaming_copy.h"
#include "core/unique_descriptor.h"

namespace trainkit::detail {
namespace {

constexpr size_t kMaxRanks = 8;  // every rank reads the values of all ranks
constexpr size_t kPieceBytes = 512 << 10;
constexpr uint32_t kPieces = 16;
/// Interval at which a waiting rank checks that the other rank still exists.
constexpr std::chrono::milliseconds kLivenessInterval{20};

// Note [Shared-memory ring]
// ~~~~~~~~~~~~~~~~~~~~~~~~~
// Each rank owns one anonymous memory region (memfd): a Head, then a ring of kPieces pieces. Only the owner writes it;
// the other ranks map it through /proc/<pid>/fd/<fd>. The mapping is accepted only if size and token match, which
// rejects an unrelated process with the same pid in another pid namespace. All ranks then vote through the store, so
// that either all use shared memory or none does.
//
// A tensor of any size passes through the ring in pieces:
// 1. The owner copies piece i into slot i mod kPieces, stores its size, then publishes `written` = i + 1 (release).
// 2. A reader waits until `written` of every rank exceeds i (acquire), checks the sizes and adds the pieces of all
// ranks in rank order.
// 3. The reader publishes `read` = i + 1. A slot is overwritten only when every other rank's `read` has passed the
// piece that it holds. Calls write ahead as far as the ring allows, then alternate between reading and writing, so a
// rank never waits for space while it has something to read; otherwise two ranks could wait for each other.
//
// A reduce-scatter and an all-gather pass through the ring in the same way, as all ranks count the same pieces. But a
// rank copies only what others read: all parts but its own, or its own part. It reads only its own part, or all others.
//
// Counters wrap around; `reached` compares them by signed difference, which is exact because they differ by at most
// kPieces. Waiters sleep on a futex for at most kLivenessInterval and then check that the other rank still exists: its
// `ended` flag, or its pidfd, which becomes readable when the process ends. `ended` is read before the counter, since a
// rank may finish its last piece and then end regularly. After a failure all later sums fail with the same exception,
// because ring positions no longer agree.

/// Header before the pieces, written only by its rank. The counters wrap around.
struct Head {
  uint64_t token;
  std::array<uint32_t, kPieces> piece_bytes;
  alignas(64) std::atomic<uint32_t> written;  // pieces written so far
  alignas(64) std::atomic<uint32_t> read;     // pieces of all ranks that this rank has added
  alignas(64) std::atomic<uint32_t> ended;
};
static_assert(std::atomic<uint32_t>::is_always_lock_free && sizeof(std::atomic<uint32_t>) == sizeof(uint32_t));

constexpr size_t kFirstPiece = 4096;
constexpr size_t kShownBytes = kFirstPiece + kPieces * kPieceBytes;
static_assert(sizeof(Head) <= kFirstPiece);

bool reached(uint32_t counter, uint32_t least) { return static_cast<int32_t>(counter - least) >= 0; }

/// Sleeps while `counter` equals `seen`, for at most kLivenessInterval. The futex is shared between processes.
void sleep_on(const std::atomic<uint32_t>& counter, uint32_t seen) {
  const timespec limit{.tv_sec = 0, .tv_nsec = std::chrono::nanoseconds(kLivenessInterval).count()};
  ::syscall(SYS_futex, &counter, FUTEX_WAIT, seen, &limit, nullptr, 0);
}

void publish(std::atomic<uint32_t>& counter, uint32_t value) {
  counter.store(value, std::memory_order_release);
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

/// Maps the memory of one rank into this process.
class SharedMemory::RankMemory {
 public:
  /// Returns null if the memory cannot be mapped or the process cannot be watched.
  static std::unique_ptr<RankMemory> map(int memory, pid_t process) {
    detail::UniqueDescriptor watch(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
    if (watch.get() < 0) return nullptr;
    void* data = ::mmap(nullptr, kShownBytes, PROT_READ | PROT_WRITE, MAP_SHARED, memory, 0);
    if (data == MAP_FAILED) return nullptr;
    return std::unique_ptr<RankMemory>(new RankMemory(static_cast<std::byte*>(data), std::move(watch)));
  }
  ~RankMemory() { ::munmap(data_, kShownBytes); }
  RankMemory(const RankMemory&) = delete;
  RankMemory& operator=(const RankMemory&) = delete;

  Head& head() const { return *reinterpret_cast<Head*>(data_); }
  std::byte* piece(uint32_t number) const { return data_ + kFirstPiece + number % kPieces * kPieceBytes; }
  bool gone() const {
    if (head().ended.load(std::memory_order_acquire)) return true;
    pollfd ended{.fd = process_.get(), .events = POLLIN, .revents = 0};
    return ::poll(&ended, 1, 0) > 0;
  }

 private:
  RankMemory(std::byte* data, detail::UniqueDescriptor process) : data_(data), process_(std::move(process)) {}
  std::byte* data_;
  detail::UniqueDescriptor process_;  // pidfd, readable once the process has ended
};

std::unique_ptr<SharedMemory> SharedMemory::open(c10d::Store& store, int64_t rank, int64_t world_size, bool wanted,
                                                 std::chrono::milliseconds timeout) {
  if (world_size < 2 || world_size > static_cast<int64_t>(kMaxRanks)) return nullptr;
  const auto key = [](const char* name, int64_t of_rank) { return name + std::to_string(of_rank); };
  std::random_device random;
  const uint64_t token = (uint64_t{random()} << 32) | random();

  // Anonymous memory: a killed rank leaves nothing behind, and the size of /dev/shm does not matter.
  const detail::UniqueDescriptor own(wanted ? ::memfd_create("trainkit-ranks", MFD_CLOEXEC) : -1);
  std::unique_ptr<RankMemory> shown;
  if (own.get() >= 0 && ::ftruncate(own.get(), kShownBytes) == 0) shown = RankMemory::map(own.get(), ::getpid());
  std::string place = "none";
  if (shown) {
    shown->head().token = token;
    place = std::to_string(::getpid()) + " " + std::to_string(own.get()) + " " + std::to_string(token) + " " +
            network_namespace();
  }
  store.set(key("shown/", rank), place);

  bool all = shown != nullptr;
  std::vector<std::unique_ptr<RankMemory>> ranks;
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
    const detail::UniqueDescriptor memory(::open(path.c_str(), O_RDWR | O_CLOEXEC));
    // On another machine this path may be an unrelated file.
    const off_t bytes = memory.get() < 0 ? -1 : ::lseek(memory.get(), 0, SEEK_END);
    auto theirs = bytes == static_cast<off_t>(kShownBytes) ? RankMemory::map(memory.get(), process) : nullptr;
    all = theirs && theirs->head().token == expected;
    ranks.push_back(std::move(theirs));
  }
  store.set(key("shared/", rank), std::string(all ? "yes" : "no"));
  for (int64_t other = 0; other < world_size; ++other) all &= store.get_to_str(key("shared/", other)) == "yes";
  if (!all) return nullptr;
  return std::unique_ptr<SharedMemory>(new SharedMemory(std::move(ranks), rank, timeout));
}

SharedMemory::SharedMemory(std::vector<std::unique_ptr<RankMemory>> ranks, int64_t rank,
                           std::chrono::milliseconds timeout)
    : ranks_(std::move(ranks)), rank_(static_cast<size_t>(rank)), timeout_(timeout), thread_([this] { work(); }) {}

SharedMemory::~SharedMemory() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  asked_.notify_one();
  thread_.join();
  Head& head = ranks_[rank_]->head();
  head.ended.store(1, std::memory_order_release);
  publish(head.written, written_);  // wakes ranks that wait for them
  publish(head.read, read_);
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

std::vector<SharedMemory::Piece> SharedMemory::pieces_of(const Call& call) const {
  const std::span<std::byte> bytes(static_cast<std::byte*>(call.tensor.mutable_data_ptr()), call.tensor.nbytes());
  const size_t parts = call.operation == Operation::kAllReduce ? 1 : ranks_.size();
  const size_t part_bytes = bytes.size() / parts;
  std::vector<Piece> pieces;
  for (size_t part = 0; part < parts; ++part) {
    for (size_t begin = 0; begin < part_bytes; begin += kPieceBytes) {
      pieces.push_back({bytes.subspan(part * part_bytes + begin, std::min(kPieceBytes, part_bytes - begin)), part});
    }
  }
  return pieces;
}

/// Writes ahead as far as the ring allows, then reads piece by piece. See Note [Shared-memory ring].
void SharedMemory::run(const Call& call) {
  const auto deadline = Clock::now() + timeout_;
  const std::vector<Piece> pieces = pieces_of(call);
  size_t shown = 0, done = 0;
  while (done < pieces.size()) {
    if (shown < pieces.size() && may_write()) {
      write(call.operation, pieces[shown++]);
      continue;
    }
    if (done == shown) {  // the ring is full of pieces that other ranks have not read
      for (size_t other = 0; other < ranks_.size(); ++other) {
        if (other != rank_) await(ranks_[other]->head().read, written_ - kPieces + 1, other, deadline);
      }
      continue;
    }
    read(call, pieces[done++], deadline);
  }
}

bool SharedMemory::may_write() const {
  for (size_t other = 0; other < ranks_.size(); ++other) {
    const uint32_t read = ranks_[other]->head().read.load(std::memory_order_acquire);
    if (other != rank_ && !reached(read, written_ - kPieces + 1)) return false;
  }
  return true;
}

void SharedMemory::write(Operation operation, const Piece& piece) {
  const RankMemory& own = *ranks_[rank_];
  const bool is_read =
      operation == Operation::kAllReduce || (operation == Operation::kAllGather) == (piece.owner == rank_);
  // Backward works on this core: the copy must not evict its data.
  if (is_read) streaming_copy(own.piece(written_), piece.bytes.data(), piece.bytes.size());
  own.head().piece_bytes[written_ % kPieces] = static_cast<uint32_t>(piece.bytes.size());
  publish(own.head().written, ++written_);
}

void SharedMemory::read(const Call& call, const Piece& piece, Clock::time_point deadline) {
  const bool is_own = piece.owner == rank_;
  if (call.operation == Operation::kAllGather) {
    const size_t bytes = piece.bytes.size();
    if (!is_own) std::memcpy(piece.bytes.data(), piece_of(piece.owner, bytes, deadline), bytes);
  } else if (call.operation == Operation::kAllReduce || is_own) {
    const auto numbers = [&]<class T>(T*) {
      return std::span(reinterpret_cast<T*>(piece.bytes.data()), piece.bytes.size() / sizeof(T));
    };
    if (call.tensor.scalar_type() == at::kFloat) {
      add_up(numbers(static_cast<float*>(nullptr)), deadline);
    } else {
      add_up(numbers(static_cast<double*>(nullptr)), deadline);
    }
  }
  publish(ranks_[rank_]->head().read, ++read_);
}

/// Waits for the next piece of `rank`, and checks its size.
const std::byte* SharedMemory::piece_of(size_t rank, size_t bytes, Clock::time_point deadline) const {
  const RankMemory& other = *ranks_[rank];
  await(other.head().written, read_ + 1, rank, deadline);
  const size_t sent = other.head().piece_bytes[read_ % kPieces];
  if (sent == bytes) return other.piece(read_);
  throw std::runtime_error("rank " + std::to_string(rank) + " sent " + std::to_string(sent) + " bytes, this rank " +
                           std::to_string(bytes));
}

/// Waits for the next piece of every rank and writes the sum into `piece`, which holds this rank's values.
template <class T>
void SharedMemory::add_up(std::span<T> piece, Clock::time_point deadline) {
  std::array<const T*, kMaxRanks> parts{};
  for (size_t rank = 0; rank < ranks_.size(); ++rank) {
    parts[rank] =
        rank == rank_ ? piece.data() : reinterpret_cast<const T*>(piece_of(rank, piece.size_bytes(), deadline));
  }
  constexpr size_t kBlock = 1024;
  std::array<T, kBlock> sums;
  for (size_t begin = 0; begin < piece.size(); begin += kBlock) {
    const size_t count = std::min(kBlock, piece.size() - begin);
    for (size_t i = 0; i < count; ++i) sums[i] = parts[0][begin + i] + parts[1][begin + i];
    for (size_t rank = 2; rank < ranks_.size(); ++rank) {
      for (size_t i = 0; i < count; ++i) sums[i] += parts[rank][begin + i];
    }
    std::copy_n(sums.begin(), count, piece.begin() + static_cast<std::ptrdiff_t>(begin));
  }
}

/// Sleeps until `counter` of `rank` is at least `least`.
void SharedMemory::await(const std::atomic<uint32_t>& counter, uint32_t least, size_t rank,
                         Clock::time_point deadline) const {
  while (!reached(counter.load(std::memory_order_acquire), least)) {
    const bool gone = ranks_[rank]->gone();  // read before the counter: the rank may have ended regularly
    const uint32_t seen = counter.load(std::memory_order_acquire);
    if (reached(seen, least)) return;
    if (gone) throw std::runtime_error("Connection closed by peer");
    if (stopping_) throw std::runtime_error("this rank has left");
    if (Clock::now() > deadline) throw std::runtime_error("Timed out");
    sleep_on(counter, seen);
  }
}

}  // namespace trainkit::detail
