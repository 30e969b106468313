// An ENVI header and its data, separated by a NUL; the cube has each byte of the data once.
#include "arrays/files/envi.h"

#include <algorithm>

#include "target.h"
#include "trainkit/arrays/array_file.h"

namespace trainkit::fuzz::envi {

std::vector<std::string> seeds() {
  const std::string data("\1\2\3\4\5\6\7\10\11\12\13\14", 12);
  const auto header = [](const std::string& type, const std::string& interleave, const std::string& more) {
    return "ENVI\ndescription = {two\nlines}\nsamples = 2\nlines = 1\nbands = 3\nheader offset = 0\ndata type = " +
           type + "\ninterleave = " + interleave + "\n" + more;
  };
  using namespace std::string_literals;
  return {header("2", "bsq", "byte order = 1\n") + "\0"s + data, header("12", "bil", "; a comment\n") + "\0"s + data,
          header("1", "BIP", "wavelength = { 1,2, 3 }\n") + "\0"s + data.substr(0, 6)};
}

int test_one_input(const uint8_t* data, size_t size) {
  const auto [header, cube] = split(as_text(data, size), std::string_view("\0", 1));
  const std::string path = write_bytes("scene.hdr", header);
  write_bytes("scene.img", cube);
  const auto tensor = read_envi(path);
  if (!tensor.ok()) return require_named(tensor.status(), {"data."}), 0;
  require(tensor->dim() == 3 && tensor->is_contiguous() && tensor->nbytes() <= cube.size(), "a cube");
  const auto wavelengths = trainkit::detail::read_envi_wavelengths(path);
  if (!wavelengths.ok()) require_named(wavelengths.status(), {"data."});
  require(!wavelengths.ok() || wavelengths->empty() || static_cast<int64_t>(wavelengths->size()) == tensor->size(2),
          "a wavelength for each band");
  // For any interleave and byte order: the same bytes in another order.
  const auto* begin = static_cast<const char*>(tensor->const_data_ptr());
  std::string read(begin, tensor->nbytes()), given(cube.substr(cube.size() - tensor->nbytes()));
  std::sort(read.begin(), read.end());
  std::sort(given.begin(), given.end());
  require(read == given, "the cube has the bytes of the file");
  return 0;
}

const Registered target("envi", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::envi
