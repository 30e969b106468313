#pragma once
/// Pieces of hostile PyTorch files, and the error that a file gives.

#include <algorithm>
#include <string>
#include <string_view>

#include "io/torch/torch_bytes.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

namespace trainkit::test {

inline const std::string kF32 = p_storage("FloatStorage", "0", p_int(4));
inline const std::string kFour(16, '\1');

inline std::string sound_tensor() { return p_tensor(kF32, p_int(0), "K\4\x85", "K\1\x85"); }

inline std::string call(std::string_view module, std::string_view name, std::string_view argument) {
  return join({p_global(module, name), argument, "\x85R"});
}

/// Opens the file and checks the format of the error. Empty if it opens and all tensors can be read.
inline std::string error_of_file(const std::string& path) {
  const auto file = TorchFile::open(path);
  absl::Status status = file.status();
  if (file.ok()) status = file->tensors().status();
  if (status.ok()) return {};
  const std::string line = error_line(status);
  CAPTURE(line);
  CHECK(exit_code(status) == ExitCode::kWeights);
  CHECK(line.starts_with("error[weights."));
  CHECK(line.size() <= 400);
  CHECK(std::none_of(line.begin(), line.end(), [](char c) { return static_cast<unsigned char>(c) < 0x20; }));
  return line;
}

}  // namespace trainkit::test
