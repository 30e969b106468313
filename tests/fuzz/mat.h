#pragma once
/// Invariants of every accepted `.mat` file, and small files of either version.

#include <ATen/Functions.h>

#include <algorithm>

#include "target.h"
#include "trainkit/arrays/mat.h"

namespace trainkit::fuzz {

/// Writes a file of one of the versions: write_mat or test::write_mat73.
using WriteMat = decltype(write_mat);

inline std::vector<std::string> mat_seeds(WriteMat* write) {
  using Variables = std::vector<std::pair<std::string, at::Tensor>>;
  const Variables scene = {{"cube", at::arange(24, at::kShort).view({2, 3, 4})},
                           {"truth", at::ones({2, 3}, at::kByte)}};
  std::vector<std::string> files;
  for (const Variables& variables :
       {scene, Variables{{"x", at::ones({1, 2}, at::kBool)}}, Variables{{"y", at::zeros({2})}}}) {
    require(write(folder() + "/seed.mat", variables).ok(), "a seed");
    files.push_back(read_bytes(folder() + "/seed.mat"));
  }
  return files;
}

/// Reads any file; an accepted file gives the same when written and read again.
inline void check_mat(const std::string& path, WriteMat* write) {
  const auto file = MatFile::open(path, {.max_variable_bytes = 16 << 20});
  if (!file.ok()) return require_named(file.status(), {"data."});
  for (const MatVariable& variable : file->variables()) {
    const auto tensor = file->read(variable.name);
    if (!tensor.ok()) {
      require_named(tensor.status(), {"data."});
      continue;
    }
    require(tensor->sizes() == variable.sizes && tensor->scalar_type() == variable.dtype,
            "sizes and dtype equal the listed ones");
    static at::Tensor last;  // most mutations leave the values as they were
    if (tensor->numel() == 0 || tensor->nbytes() > 1 << 16 || (last.defined() && same_bits(last, *tensor))) continue;
    last = *tensor;
    const std::string copy = folder() + "/again.mat";
    const absl::Status saved = write(copy, std::vector<std::pair<std::string, at::Tensor>>{{"again", *tensor}});
    require(saved.ok(), "a value that was read can be written: " + saved.ToString());
    const auto again = MatFile::open(copy);
    require(again.ok(), "a written file can be read: " + again.status().ToString());
    const auto other = again->read("again");
    require(other.ok() && same_bits(*other, *tensor), "a variable is read back: " + other.status().ToString());
  }
}

}  // namespace trainkit::fuzz
