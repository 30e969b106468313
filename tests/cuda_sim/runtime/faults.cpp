// Intentional device faults: wrong results, and omitted copies and replays.
#include <cstdlib>
#include <cstring>

#include "state.h"

namespace cuda_sim {
namespace {

/// A setting "<text>:<n>", or without the number.
struct Choice {
  std::string text;
  uint64_t number = 0;  // 0: all
};

Choice choice_of(const char* value) {
  Choice choice{value};
  const size_t colon = choice.text.rfind(':');
  if (colon == std::string::npos || choice.text.find_first_not_of("0123456789", colon + 1) != std::string::npos ||
      colon + 1 == choice.text.size()) {
    return choice;
  }
  choice.number = strtoull(choice.text.c_str() + colon + 1, nullptr, 10);
  choice.text.resize(colon);
  return choice;
}

/// "<n>" or "<n>:<bytes>": returns whether this is the n-th call, counting only calls of this size.
bool is_chosen(const char* value, size_t bytes, std::atomic<uint64_t>& seen) {
  if (!value) return false;
  char* end = nullptr;
  const uint64_t wanted = strtoull(value, &end, 10);
  if (*end == ':' && strtoull(end + 1, nullptr, 10) != bytes) return false;
  return ++seen == wanted;
}

}  // namespace

bool is_dropped_copy(size_t bytes) {
  static std::atomic<uint64_t> seen{0};
  return is_chosen(setting("DROP_COPY"), bytes, seen);
}

bool is_dropped_replay() {
  static std::atomic<uint64_t> seen{0};
  return is_chosen(setting("DROP_REPLAY"), 0, seen);
}

void spoil_if_chosen(const std::string& name, const std::vector<Access>& accesses) {
  static std::atomic<uint64_t> seen{0};
  const char* value = setting("WRONG_KERNEL");
  if (!value) return;
  const Choice choice = choice_of(value);
  if (name.find(choice.text) == std::string::npos) return;
  if (++seen != choice.number && choice.number > 0) return;
  for (const Access& access : accesses) {
    auto* bytes = access.writes ? static_cast<unsigned char*>(backing(access.begin)) : nullptr;
    // The highest bits of the fraction, in float32 and in each second bfloat16.
    for (size_t at = 2; bytes && at < access.bytes; at += 4) bytes[at] ^= 0x60;
  }
}

}  // namespace cuda_sim
