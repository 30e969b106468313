#pragma once
/// Environment variables that control the fake driver (fake_nvml.cpp).

#include <cstdlib>

namespace trainkit::test {

/// An environment variable that is set for a scope.
class EnvironmentVariable {
 public:
  EnvironmentVariable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~EnvironmentVariable() { unsetenv(name_); }
  EnvironmentVariable(const EnvironmentVariable&) = delete;
  EnvironmentVariable& operator=(const EnvironmentVariable&) = delete;

 private:
  const char* name_;
};

}  // namespace trainkit::test
