// The pickle of a PyTorch file. It is put into an archive with a correct directory and checksums, with storages 0 to 2
// of 16 bytes, so that mutations reach the unpickler and the code that creates tensors.
#include "io/torch/torch_bytes.h"
#include "torch_file.h"

namespace trainkit::fuzz::torch_pickle {

using namespace test;

std::vector<std::string> seeds() {
  const std::string zero("K\0", 2), floats = p_storage("FloatStorage", "0", p_int(4));
  const std::string matrix = p_tensor(floats, zero, "K\2K\2\x86", "K\2K\1\x86");
  const std::string vector = p_tensor(p_storage("LongStorage", "1", p_int(2)), zero, "K\2\x85", "K\1\x85");
  const std::string state = join({"}", p_text("epoch"), p_int(3), "s", p_text("lr"), "G?\xf0", std::string(6, '\0'),
                                  "s", p_text("model"), "}(", p_text("fc.weight"), "q\1", matrix, "q\2", p_text("tied"),
                                  "h\2", "us", p_text("list"), "](K\1\x8a\1\5Nes"});
  return {
      pickled(matrix),
      pickled_a(matrix),
      pickled_a(vector),
      pickled(join({"](", matrix, vector, "e"})),
      pickled(state),
      pickled(join({"}(", p_text("a"), vector, p_text("b"), "]", p_text("c"), "\x88", p_text("d"), p_long(-5), "u"})),
      pickled(join({p_global("collections", "OrderedDict"), ")R(", p_text("w"), matrix, "u"}))};
}

int test_one_input(const uint8_t* data, size_t size) {
  const std::string path = folder() + "/input.pt";
  const std::string storage("\0\1\2\3\4\5\6\7\x80\x81\x82\x83\xfc\xfd\xfe\xff", 16);
  test::write_zip(path, archive_of(std::string(as_text(data, size)), {storage, storage, storage}));
  check_torch_file(path);
  return 0;
}

const Registered target("torch_pickle", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::torch_pickle
