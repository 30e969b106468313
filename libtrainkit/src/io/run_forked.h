#pragma once
/// Libraries that a damaged file can bring down, at arm's length.

#include <absl/status/statusor.h>

#include <functional>
#include <string>

namespace trainkit::detail {

/// What `work` returns, called in a copy of this process (fork): whatever it does to its memory, this process goes on.
/// The copy has this thread alone, so `work` takes no lock that another thread may hold; it hears no more of stderr,
/// dies with this process, and after five minutes on the processor. Memory that was mapped MAP_SHARED before is shared.
/// Blocks until `work` is done. Any thread. kDataLoss, with what ended it, if it does not come to its end;
/// kResourceExhausted if there can be no copy.
absl::StatusOr<std::string> run_forked(const std::function<std::string()>& work);

/// Memory that a copy of this process shares, zeroed.
class SharedPages {
 public:
  /// nullptr in data() if there is no memory.
  explicit SharedPages(size_t bytes);
  ~SharedPages();
  SharedPages(const SharedPages&) = delete;
  SharedPages& operator=(const SharedPages&) = delete;
  void* data() const { return data_; }

 private:
  size_t bytes_;
  void* data_;
};

}  // namespace trainkit::detail
