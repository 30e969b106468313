#include "nccl_segment.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>

namespace cuda_sim::nccl {

namespace {

struct Cliques {
  std::mutex mutex;
  std::map<std::string, std::weak_ptr<Clique>> by_name;
};

Cliques& cliques() {
  static Cliques& all = *new Cliques;
  return all;
}

/// The device number before CUDA_VISIBLE_DEVICES selects and reorders.
std::string physical_device(int device) {
  const char* visible = std::getenv("CUDA_VISIBLE_DEVICES");
  std::string list = visible ? visible : "";
  for (int skipped = 0; skipped < device && !list.empty(); ++skipped) {
    const size_t comma = list.find(',');
    list = comma == std::string::npos ? "" : list.substr(comma + 1);
  }
  list = list.substr(0, list.find(','));
  return list.empty() ? std::to_string(device) : list;
}

struct flock lock_of(int rank) {
  struct flock lock {};
  lock.l_type = F_WRLCK;
  lock.l_whence = SEEK_SET;
  lock.l_start = rank;
  lock.l_len = 1;
  return lock;
}

}  // namespace

std::string Clique::new_name() {
  uint64_t random = 0;
  if (getrandom(&random, sizeof(random), 0) != sizeof(random)) random = static_cast<uint64_t>(time(nullptr));
  return "/cuda_sim_nccl_" + std::to_string(getpid()) + "_" + std::to_string(random);
}

std::shared_ptr<Clique> Clique::open(const std::string& name, int ranks, std::string* error) {
  Cliques& all = cliques();
  std::lock_guard lock(all.mutex);
  std::shared_ptr<Clique> clique = all.by_name[name].lock();
  if (!clique) {
    const int file = shm_open(name.c_str(), O_CREAT | O_RDWR | O_CLOEXEC, 0600);
    void* address = MAP_FAILED;
    if (file >= 0 && ftruncate(file, sizeof(Segment)) == 0)
      address = mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, file, 0);
    if (address == MAP_FAILED) {
      *error = "no shared memory " + name + ": " + std::strerror(errno);
      if (file >= 0) close(file);
      return nullptr;
    }
    clique = std::make_shared<Clique>(name, file, static_cast<Segment*>(address));
    all.by_name[name] = clique;
  }
  int32_t said = 0;
  if (!clique->segment_->ranks.compare_exchange_strong(said, ranks) && said != ranks) {
    *error =
        "a rank says that the communicator has " + std::to_string(ranks) + " ranks, another " + std::to_string(said);
    return nullptr;
  }
  return clique;
}

Clique::Clique(std::string name, int file, Segment* segment) : name_(std::move(name)), file_(file), segment_(segment) {}

Clique::~Clique() {
  munmap(segment_, sizeof(Segment));
  close(file_);
}

std::string Clique::join(int rank, int device) {
  int32_t nobody = 0;
  if (!slot(rank).pid.compare_exchange_strong(nobody, getpid()))
    return "rank " + std::to_string(rank) + " joined twice, from process " + std::to_string(nobody) + " and " +
           std::to_string(getpid());
  const std::string physical = physical_device(device);
  physical.copy(slot(rank).device, sizeof(Slot::device) - 1);
  // The kernel releases a process's locks when it ends in any way, and when it executes another program.
  struct flock lock = lock_of(rank);
  if (fcntl(file_, F_SETLK, &lock) != 0) return std::string("no lock of shared memory: ") + std::strerror(errno);
  slot(rank).state = State::kPresent;
  if (segment_->joined.fetch_add(1) + 1 == segment_->ranks) remove_name();
  wake();
  return "";
}

void Clique::remove_name() { shm_unlink(name_.c_str()); }

std::string Clique::shared_device() {
  for (int one = 0; one < segment_->ranks; ++one)
    for (int other = one + 1; other < segment_->ranks; ++other)
      if (std::strcmp(slot(one).device, slot(other).device) == 0)
        return "ranks " + std::to_string(one) + " and " + std::to_string(other) + " both use CUDA device " +
               slot(one).device;
  return "";
}

void Clique::wake() {
  ++segment_->changes;
  syscall(SYS_futex, &segment_->changes, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

void Clique::sleep(uint32_t seen) {
  const timespec most{0, 5'000'000};
  syscall(SYS_futex, &segment_->changes, FUTEX_WAIT, seen, &most, nullptr, 0);
}

void Clique::set_now(int rank, const Call& call) {
  const auto words = std::bit_cast<std::array<uint64_t, 3>>(call);
  for (size_t i = 0; i < words.size(); ++i) slot(rank).now[i] = words[i];
}

Call Clique::now(int rank) {
  std::array<uint64_t, 3> words;
  for (size_t i = 0; i < words.size(); ++i) words[i] = slot(rank).now[i];
  return std::bit_cast<Call>(words);
}

bool Clique::is_gone(int rank) {
  const int32_t pid = slot(rank).pid;
  if (pid == getpid() || slot(rank).state == State::kAbsent) return false;
  if (kill(pid, 0) != 0 && errno == ESRCH) return true;
  struct flock lock = lock_of(rank);
  return fcntl(file_, F_GETLK, &lock) == 0 && lock.l_type == F_UNLCK;
}

void Clique::set_broken(const std::string& text) {
  int32_t whole = 0;
  if (!segment_->broken.compare_exchange_strong(whole, 1)) return;
  text.copy(segment_->broken_text, sizeof(Segment::broken_text) - 1);
  segment_->broken = 2;
  wake();
}

std::string Clique::broken() { return segment_->broken == 2 ? segment_->broken_text : ""; }

}  // namespace cuda_sim::nccl
