#pragma once
// A race detector for CUDA. Vector clocks over streams give the order of the work; for each byte the last reads and
// writes are stored.
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "sim.h"

namespace cuda_sim {

/// The amount of finished work known for each stream.
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
  /// Adds accesses of work on `stream` with `clock` (including its own time). Returns the text of a race with earlier
  /// unordered work, or nothing.
  std::string add(int stream, const Clock& clock, const std::string& name, const std::vector<Access>& accesses);
  /// The bytes were freed after all work on them had finished.
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

  /// Splits a cell at `place` if it contains it.
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
