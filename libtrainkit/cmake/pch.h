#pragma once
// Precompiled header of the library, the trainers, the examples and the benchmarks: third-party headers that most files
// include. It does not include LibTorch's modules (torch/nn/modules), which few files need.
#include <ATen/ATen.h>
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <fmt/format.h>
#include <torch/csrc/autograd/custom_function.h>
#include <torch/nn/module.h>
#include <torch/nn/pimpl.h>
#include <torch/types.h>
#include <torch/utils.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <set>
#include <sstream>
#include <thread>
#include <unordered_map>
#include <unordered_set>

#include "pch_instances.h"
