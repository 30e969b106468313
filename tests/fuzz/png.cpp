// A PNG file; an accepted image is written and read again.
#include <ATen/Functions.h>

#include "target.h"
#include "trainkit/arrays/array_file.h"

namespace trainkit::fuzz::png {

std::vector<std::string> seeds() {
  std::vector<std::string> files;
  for (const at::Tensor& image : {at::arange(24).view({2, 4, 3}), at::full({9, 5, 3}, 200)}) {
    require(write_png(folder() + "/seed.png", image.to(at::kByte)).ok(), "a seed");
    files.push_back(read_bytes(folder() + "/seed.png"));
  }
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const auto image = read_png(memory.write(as_text(data, size)));
  if (!image.ok()) return require_named(image.status(), {"data."}), 0;
  const std::string path = folder() + "/again.png";
  require(write_png(path, *image).ok(), "an image that was read can be written");
  const auto again = read_png(path);
  require(again.ok() && same_bits(*again, *image), "and is read back: " + again.status().ToString());
  return 0;
}

const Registered target("png", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::png
