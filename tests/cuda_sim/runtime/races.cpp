#include "races.h"

#include <algorithm>

namespace cuda_sim {

void Clock::join(const Clock& other) {
  if (times_.size() < other.times_.size()) times_.resize(other.times_.size());
  for (size_t i = 0; i < other.times_.size(); ++i) times_[i] = std::max(times_[i], other.times_[i]);
}

void Clock::advance(int stream) {
  if (times_.size() <= static_cast<size_t>(stream)) times_.resize(static_cast<size_t>(stream) + 1);
  ++times_[static_cast<size_t>(stream)];
}

uint32_t RaceDetector::id_of(const std::string& name) {
  const auto [place, is_new] = ids_.try_emplace(name, static_cast<uint32_t>(names_.size()));
  if (is_new) names_.push_back(name);
  return place->second;
}

void RaceDetector::split(uintptr_t place) {
  auto cell = cells_.upper_bound(place);
  if (cell == cells_.begin()) return;
  --cell;
  if (cell->first == place || cell->second.end <= place) return;
  Cell rest = cell->second;
  cell->second.end = place;
  cells_.emplace(place, std::move(rest));
}

std::string RaceDetector::conflict(const std::vector<Use>& uses, const char* verb, int stream,
                                   const Clock& clock) const {
  for (const Use& use : uses) {
    if (use.stream != stream && clock.at(use.stream) < use.time) {
      return names_[use.name] + " on stream " + std::to_string(use.stream) + " " + verb;
    }
  }
  return {};
}

std::string RaceDetector::read(uintptr_t begin, uintptr_t end, const Use& use, const Clock& clock) {
  std::string race;
  uintptr_t place = begin;
  for (auto cell = cells_.lower_bound(begin); place < end;) {
    if (cell == cells_.end() || cell->first > place) {  // a gap
      const uintptr_t next = cell == cells_.end() ? end : std::min(end, cell->first);
      cells_.emplace_hint(cell, place, Cell{next, {}, {use}});
      place = next;
      continue;
    }
    if (race.empty()) race = conflict(cell->second.writes, "writes", use.stream, clock);
    auto& reads = cell->second.reads;
    const auto mine =
        std::find_if(reads.begin(), reads.end(), [&](const Use& other) { return other.stream == use.stream; });
    if (mine == reads.end()) {
      reads.push_back(use);
    } else {
      *mine = use;
    }
    place = cell->second.end;
    ++cell;
  }
  return race;
}

std::string RaceDetector::write(uintptr_t begin, uintptr_t end, const Use& use, const Clock& clock) {
  std::string race;
  const auto first = cells_.lower_bound(begin);
  auto cell = first;
  for (; cell != cells_.end() && cell->first < end; ++cell) {
    if (race.empty()) race = conflict(cell->second.writes, "writes", use.stream, clock);
    if (race.empty()) race = conflict(cell->second.reads, "reads", use.stream, clock);
  }
  cells_.erase(first, cell);
  cells_.emplace(begin, Cell{end, {use}, {}});
  return race;
}

std::string RaceDetector::add(int stream, const Clock& clock, const std::string& name,
                              const std::vector<Access>& accesses) {
  const Use use{stream, clock.at(stream), id_of(name)};
  std::string race;
  for (const Access& access : accesses) {
    if (access.bytes == 0) continue;
    const auto begin = reinterpret_cast<uintptr_t>(access.begin);
    split(begin);
    split(begin + access.bytes);
    std::string found =
        access.writes ? write(begin, begin + access.bytes, use, clock) : read(begin, begin + access.bytes, use, clock);
    if (!found.empty() && race.empty()) {
      race = name + " on stream " + std::to_string(stream) + (access.writes ? " writes " : " reads ") +
             std::to_string(access.bytes) + " bytes that " + found + ", and nothing orders the two";
    }
  }
  return race;
}

void RaceDetector::forget(const void* begin, size_t bytes) {
  const auto from = reinterpret_cast<uintptr_t>(begin);
  split(from);
  split(from + bytes);
  cells_.erase(cells_.lower_bound(from), cells_.lower_bound(from + bytes));
}

}  // namespace cuda_sim
