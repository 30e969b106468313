#pragma once
// What a test that runs on the simulated device asks of it. Linked by nothing: the functions are looked up in the
// preloaded library.
#include <dlfcn.h>

#include <nlohmann/json.hpp>
#include <string>

namespace trainkit::test {

inline bool has_cuda_sim() { return dlsym(RTLD_DEFAULT, "cuda_sim_counts") != nullptr; }

/// Changes a setting (CUDA_SIM_<name>) from now on.
inline void set_cuda_sim(const std::string& name, const std::string& value) {
  reinterpret_cast<void (*)(const char*, const char*)>(dlsym(RTLD_DEFAULT, "cuda_sim_set"))(name.c_str(),
                                                                                            value.c_str());
}

/// A setting while it lives.
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

/// What the device found since the last call, one a line; empty if nothing. The process then ends as if nothing was.
inline std::string take_cuda_sim_findings() {
  std::string text(1 << 16, '\0');
  reinterpret_cast<void (*)(char*, size_t)>(dlsym(RTLD_DEFAULT, "cuda_sim_take_findings"))(text.data(), text.size());
  return text.substr(0, text.find('\0'));
}

/// Launches, copies, bytes, synchronisations, allocations since the process began.
inline nlohmann::json cuda_sim_counts() {
  std::string text(4096, '\0');
  reinterpret_cast<void (*)(char*, size_t)>(dlsym(RTLD_DEFAULT, "cuda_sim_counts"))(text.data(), text.size());
  return nlohmann::json::parse(text.substr(0, text.find('\0')));
}

}  // namespace trainkit::test
