#pragma once
// A replacement of the simulated runtime: memory of two devices, and launches that run immediately. For the test only.
#include <string>
#include <utility>
#include <vector>

#include "kernels.h"

#define FAKE_EXPORT __attribute__((visibility("default")))

namespace fake {

struct Finding {
  std::string kind, text;
};
FAKE_EXPORT std::vector<Finding>& findings();

/// Outcomes of launches, by kernel name.
FAKE_EXPORT std::vector<std::pair<std::string, cuda_sim::Outcome>>& outcomes();
/// Names that __cudaRegisterFunction was called with.
FAKE_EXPORT std::vector<std::string>& registered();

FAKE_EXPORT void* allocate(size_t bytes, int device = 0);
FAKE_EXPORT void free_all();
FAKE_EXPORT void* bytes_of(const void* address);
FAKE_EXPORT const cuda_sim::Kernel* find(const std::string& mangled_name);

}  // namespace fake
