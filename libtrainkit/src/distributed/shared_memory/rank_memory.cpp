#include "distributed/shared_memory/rank_memory.h"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <utility>

namespace trainkit::detail {

UniqueDescriptor RankMemory::create() {
  // A killed rank leaves nothing behind, and the size of /dev/shm does not matter.
  UniqueDescriptor memory(::memfd_create("trainkit-ranks", MFD_CLOEXEC));
  if (memory.get() >= 0 && ::ftruncate(memory.get(), kBytes) != 0) memory.reset();
  return memory;
}

std::shared_ptr<RankMemory> RankMemory::map(int memory, pid_t process, std::optional<uint64_t> token) {
  if (memory < 0 || ::lseek(memory, 0, SEEK_END) != static_cast<off_t>(kBytes)) return nullptr;
  UniqueDescriptor watch(static_cast<int>(::syscall(SYS_pidfd_open, process, 0)));
  if (watch.get() < 0) return nullptr;
  void* data = ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, memory, 0);
  if (data == MAP_FAILED) return nullptr;
  ::madvise(data, kBytes, MADV_DONTDUMP);  // a core dump would have its size
  std::shared_ptr<RankMemory> mapped(new RankMemory(static_cast<std::byte*>(data), std::move(watch)));
  return token && mapped->head().token != *token ? nullptr : mapped;
}

RankMemory::~RankMemory() { ::munmap(data_, kBytes); }

std::optional<uint64_t> RankMemory::offset_of(const std::byte* address) const {
  const auto offset = reinterpret_cast<uintptr_t>(address) - reinterpret_cast<uintptr_t>(data_);
  return offset < kBytes ? std::optional<uint64_t>(offset) : std::nullopt;
}

bool RankMemory::gone() const {
  if (head().ended.load(std::memory_order_acquire)) return true;
  pollfd ended{.fd = process_.get(), .events = POLLIN, .revents = 0};
  return ::poll(&ended, 1, 0) > 0;
}

c10::DataPtr RankMemory::allocate(size_t bytes) {
  constexpr uint64_t kPage = 4096;
  const uint64_t size = (bytes + kPage - 1) / kPage * kPage;
  const std::lock_guard lock(mutex_);
  uint64_t begin = kHeadBytes + kCopyBytes;
  for (const auto& [taken, end] : taken_) {  // the first gap
    if (taken - begin >= size) break;
    begin = end;
  }
  if (!contains(begin, size)) return {};
  taken_[begin] = begin + size;
  struct Taken {
    std::shared_ptr<RankMemory> memory;
    uint64_t begin, size;
  };
  return {data_ + begin, new Taken{shared_from_this(), begin, size},
          [](void* context) {
            const std::unique_ptr<Taken> taken(static_cast<Taken*>(context));
            taken->memory->release(taken->begin, taken->size);
          },
          at::kCPU};
}

void RankMemory::release(uint64_t offset, size_t bytes) {
  ::madvise(data_ + offset, bytes, MADV_REMOVE);  // gives the pages back
  const std::lock_guard lock(mutex_);
  taken_.erase(offset);
}

}  // namespace trainkit::detail
