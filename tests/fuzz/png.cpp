// A PNG file; an accepted image is written and read again.
#include <ATen/Functions.h>

#include "target.h"
#include "trainkit/arrays/array_file.h"

using namespace trainkit;

std::vector<std::string> fuzz::seeds() {
  std::vector<std::string> files;
  for (const at::Tensor& image : {at::arange(24).view({2, 4, 3}), at::full({9, 5, 3}, 200)}) {
    require(write_png(folder() + "/seed.png", image.to(at::kByte)).ok(), "a seed");
    files.push_back(read_bytes(folder() + "/seed.png"));
  }
  return files;
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static fuzz::MemoryFile memory;
  const auto image = read_png(memory.write(fuzz::as_text(data, size)));
  if (!image.ok()) return fuzz::require_named(image.status(), {"data."}), 0;
  const std::string path = fuzz::folder() + "/again.png";
  fuzz::require(write_png(path, *image).ok(), "an image that was read can be written");
  const auto again = read_png(path);
  fuzz::require(again.ok() && fuzz::same_bits(*again, *image), "and is read back: " + again.status().ToString());
  return 0;
}
