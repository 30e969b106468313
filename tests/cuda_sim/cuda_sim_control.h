#pragma once
// Controls the simulated device from a test. Nothing is linked: the functions are looked up in the preloaded library.
#include <dlfcn.h>

#include <nlohmann/json.hpp>
#include <string>

namespace trainkit::test {

inline bool has_cuda_sim() { return dlsym(RTLD_DEFAULT, "cuda_sim_counts") != nullptr; }

/// Changes a setting (CUDA_SIM_<name>).
inline void set_cuda_sim(const std::string& name, const std::string& value) {
  reinterpret_cast<void (*)(const char*, const char*)>(dlsym(RTLD_DEFAULT, "cuda_sim_set"))(name.c_str(),
                                                                                            value.c_str());
}

/// Changes a setting during its lifetime.
class CudaSimSetting {
 public:
  CudaSimSetting(std::string name, const std::string& value, std::string after = "0")
      : name_(std::move(name)), after_(std::move(after)) {
    set_cuda_sim(name_, value);
  }
  ~CudaSimSetting() { set_cuda_sim(name_, after_); }
  CudaSimSetting(const CudaSimSetting&) = delete;
  CudaSimSetting& operator=(const CudaSimSetting&) = delete;

 private:
  std::string name_, after_;
};

/// The device's findings since the last call, one per line; empty if there are none. They no longer affect the exit
/// code.
inline std::string take_cuda_sim_findings() {
  std::string text(1 << 16, '\0');
  reinterpret_cast<void (*)(char*, size_t)>(dlsym(RTLD_DEFAULT, "cuda_sim_take_findings"))(text.data(), text.size());
  return text.substr(0, text.find('\0'));
}

/// Launches, copies, bytes, synchronisations and allocations since the start of the process.
inline nlohmann::json cuda_sim_counts() {
  std::string text(4096, '\0');
  reinterpret_cast<void (*)(char*, size_t)>(dlsym(RTLD_DEFAULT, "cuda_sim_counts"))(text.data(), text.size());
  return nlohmann::json::parse(text.substr(0, text.find('\0')));
}

}  // namespace trainkit::test
