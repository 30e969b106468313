#pragma once
// A race detector for CUDA: which work is known to be done before which, by vector clocks over streams; and what last
// read and wrote each byte.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim.h"

namespace cuda_sim {

/// For each stream, how much of its work is known to be done.
class Clock {
 public:
  uint32_t at(int stream) const { return static_cast<size_t>(stream) < times_.size() ? times_[stream] : 0; }
  void join(const Clock& other);
  void advance(int stream);

 private:
  std::vector<uint32_t> times_;
};

class RaceDetector {
 public:
  /// Work of `stream` with `clock` (its own time included) makes these accesses. Returns the text of a race with
  /// earlier work that is not known to be done, or nothing.
  std::string add(int stream, const Clock& clock, const std::string& name, const std::vector<Access>& accesses);
  /// The bytes were freed, with all work on them done.
  void forget(const void* begin, size_t bytes);

 private:
  struct Use {
    int stream;
    uint32_t time;
    uint32_t name;
  };
  struct Cell {
    uintptr_t end;
    std::vector<Use> writes, reads;  // at most one write; the last read of each stream
  };
  using Cells = std::map<uintptr_t, Cell>;

  /// Makes `place` the begin of a cell if it is within one.
  void split(uintptr_t place);
  uint32_t id_of(const std::string& name);
  std::string conflict(const std::vector<Use>& uses, const char* verb, int stream, const Clock& clock) const;
  std::string read(uintptr_t begin, uintptr_t end, const Use& use, const Clock& clock);
  std::string write(uintptr_t begin, uintptr_t end, const Use& use, const Clock& clock);

  Cells cells_;
  std::vector<std::string> names_;
  std::map<std::string, uint32_t> ids_;
};

}  // namespace cuda_sim
