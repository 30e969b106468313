#pragma once
/// Reads the arrays that references in Python write.

#include <torch/torch.h>

#include <cstdio>
#include <fstream>
#include <string>

#include "reference_util.h"

namespace trainkit::test {

/// A tensor of raw float32 values; the file must have exactly its size.
inline at::Tensor read_floats(const std::string& path, at::IntArrayRef shape) {
  at::Tensor tensor = torch::empty(shape);
  std::ifstream file(path, std::ios::binary);
  file.read(reinterpret_cast<char*>(tensor.data_ptr<float>()), tensor.nbytes());
  REQUIRE(file.gcount() == static_cast<std::streamsize>(tensor.nbytes()));
  REQUIRE(file.peek() == EOF);
  return tensor;
}

}  // namespace trainkit::test
