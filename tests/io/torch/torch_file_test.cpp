#include <map>
#include <random>

#include "io/torch/torch_hostile.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace std::string_literals;

namespace {

const std::vector<at::ScalarType> kTypes = {
    torch::kFloat,  torch::kDouble, torch::kHalf,   torch::kBFloat16,      torch::kLong,         torch::kInt,
    torch::kShort,  torch::kChar,   torch::kByte,   torch::kBool,          torch::kComplexFloat, torch::kComplexDouble,
    torch::kUInt16, torch::kUInt32, torch::kUInt64, torch::kFloat8_e4m3fn, torch::kFloat8_e5m2};

TorchFile saved(const std::string& path, const NamedTensors& tensors) {
  REQUIRE(save_torch_file(Fs::posix(), path, tensors) == absl::OkStatus());
  auto file = TorchFile::open(path);
  REQUIRE(file.status() == absl::OkStatus());
  return *file;
}

bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  return a.dtype() == b.dtype() && a.sizes() == b.sizes() &&
         (a.nbytes() == 0 ||
          std::memcmp(a.contiguous().const_data_ptr(), b.contiguous().const_data_ptr(), a.nbytes()) == 0);
}

/// A small file of each format: two tensors in separate storages, names and a number.
std::string small_zip() {
  const std::string pickle = pickled(
      join({"}(", p_text("w"), p_tensor(p_storage("FloatStorage", "0", p_int(4)), "K\0"s, "K\2K\2\x86", "K\2K\1\x86"),
            p_text("b"), p_tensor(p_storage("LongStorage", "1", p_int(1)), "K\0"s, "K\1\x85", "K\1\x85"),
            p_text("epoch"), "K\7", "u"}));
  TempDir dir;
  write_zip(dir / "f", archive_of(pickle, {std::string(16, '\1'), std::string(8, '\2')}));
  return read_bytes(dir / "f");
}

}  // namespace

TEST_CASE("Tensors of every dtype are read back from a PyTorch file unchanged", "[io][torch_file]") {
  TempDir dir;
  NamedTensors written = {{"scalar", torch::tensor(1.5)}, {"none", torch::empty({0, 7})}};
  for (const auto type : kTypes) written.emplace_back(c10::toString(type), torch::randint(0, 100, {3, 5}).to(type));
  const TorchFile file = saved(dir / "m.pt", written);
  CHECK_FALSE(file.is_legacy());
  CHECK(file.state_dict_prefix().value() == "");
  const NamedTensors all = file.tensors().value();
  REQUIRE(all.size() == written.size());
  for (size_t i = 0; i < written.size(); ++i) {
    const auto& [name, tensor] = written[i];
    CAPTURE(name);
    CHECK(file.entries()[i].name == name);
    CHECK(file.entries()[i].bytes == static_cast<int64_t>(tensor.nbytes()));
    CHECK(same_bits(file.tensor(name).value(), tensor));
    CHECK(all[i].first == name);
    CHECK(same_bits(all[i].second, tensor));
    CHECK(reinterpret_cast<uintptr_t>(all[i].second.const_data_ptr()) % 16 == 0);
  }
}

TEST_CASE("A PyTorch file stores the elements that views show, and tied tensors once", "[io][torch_file]") {
  TempDir dir;
  const at::Tensor base = torch::arange(24.).view({4, 6}), tied = torch::randn({1000});
  const NamedTensors tensors = {{"turned", base.t()},
                                {"strided", base.slice(1, 0, 6, 2)},
                                {"expanded", torch::ones({1}).expand({5})},
                                {"needs_grad", torch::ones({2}).requires_grad_()},
                                {"conj", torch::randn({3}, torch::kComplexFloat).conj()},
                                {"tied.a", tied},
                                {"tied.b", tied},
                                {"untied", tied.slice(0, 0, 500)}};
  const TorchFile file = saved(dir / "f", tensors);
  std::map<std::string, at::Tensor> read;
  const NamedTensors all = file.tensors().value();
  for (const auto& [name, tensor] : all) read[name] = tensor;
  for (const auto& [name, tensor] : tensors) {
    CAPTURE(name);
    CHECK(torch::equal(read[name], tensor.detach()));
    CHECK_FALSE(read[name].requires_grad());
  }
  CHECK(read["tied.a"].data_ptr() == read["tied.b"].data_ptr());
  CHECK(read["tied.a"].data_ptr() != read["untied"].data_ptr());
  CHECK(read_bytes(dir / "f").size() < 12'000);  // 4,000 for the tied tensors, 2,000 for the slice
}

TEST_CASE("A PyTorch file has the same bytes each time, and its data is aligned to 64", "[io][torch_file]") {
  TempDir dir;
  const NamedTensors tensors = {{"b", torch::arange(7.)}, {"a", torch::ones({3}, torch::kByte)}};
  saved(dir / "1", tensors);
  saved(dir / "2", tensors);
  const std::string bytes = read_bytes(dir / "1");
  CHECK(bytes == read_bytes(dir / "2"));
  const float value = 1.0f;
  const size_t at = bytes.find(little_endian(0.0f) + little_endian(value) + little_endian(2.0f));
  REQUIRE(at != std::string::npos);
  CHECK(at % 64 == 0);
}

TEST_CASE("A value that a PyTorch file cannot store is reported by name, and the previous file stays",
          "[io][torch_file]") {
  TempDir dir;
  saved(dir / "f", {{"a", torch::ones({2})}});
  const std::string before = read_bytes(dir / "f");
  const struct {
    std::string field;
    NamedTensors tensors;
  } rows[] = {{"x", {{"x", at::Tensor()}}},
              {"x", {{"x", torch::ones({2}, torch::kMeta)}}},
              {"x", {{"x", torch::eye(2).to_sparse()}}},
              {"x", {{"x", at::quantize_per_tensor(torch::ones({2}), 0.1, 0, torch::kQInt8)}}},
              {"x", {{"x", torch::ones({2})}, {"y", torch::ones({2})}, {"x", torch::ones({2})}}},
              {"\\xff", {{"\xff", torch::ones({2})}}},
              {"", {{"a\tb", torch::ones({2})}}},
              {std::string(120, 'n'), {{std::string(65'536, 'n'), torch::ones({2})}}}};
  for (const auto& row : rows) {
    const absl::Status status = save_torch_file(Fs::posix(), dir / "f", row.tensors);
    CHECK(absl::IsInvalidArgument(status));
    CHECK(error_of(status)->field == row.field);
    CHECK(read_bytes(dir / "f") == before);
  }
  CHECK(exit_code(save_torch_file(Fs::posix(), dir / "no/f", {})) == ExitCode::kStorage);
}

TEST_CASE("A checkpoint of dicts is read with the names of its keys", "[io][torch_file]") {
  TempDir dir;
  const auto tensor = [](const char* key) {
    return p_tensor(p_storage("FloatStorage", key, p_int(2)), "K\0"s, "K\2\x85", "K\1\x85");
  };
  const std::string model = join({"}(", p_text("fc.weight"), tensor("0"), p_text("fc.bias"), tensor("1"), "u"});
  const std::string optimizer = join({"}(", p_text("state"), "}K\0"s, "}", p_text("m"), tensor("2"), "s", "s", "u"});
  write_zip(dir / "f",
            archive_of(pickled(join({"}(", p_text("epoch"), "K\3", p_text("state_dict"), model, p_text("optimizer"),
                                     optimizer, p_text("note"), p_text("tab\there"), "u"})),
                       std::vector<std::string>(3, little_endian(1.0f) + little_endian(2.0f))));
  const TorchFile file = TorchFile::open(dir / "f").value();
  CHECK(file.names() == std::vector<std::string>{"state_dict.fc.weight", "state_dict.fc.bias", "optimizer.state.0.m"});
  CHECK(file.values() == std::vector<std::pair<std::string, std::string>>{{"epoch", "3"}, {"note", "tab\\x09here"}});
  REQUIRE(file.state_dict_prefix().value() == "state_dict");
  const NamedTensors weights = file.tensors("state_dict").value();
  REQUIRE(weights.size() == 2);
  CHECK(weights[0].first == "fc.weight");
  CHECK(torch::equal(weights[1].second, torch::tensor({1.0f, 2.0f})));
  CHECK(file.tensor("optimizer.state.0.m").ok());
  const auto wrong = file.tensors("state_dikt");
  CHECK(absl::IsNotFound(wrong.status()));
  CHECK(error_of(wrong.status())->hint == "did you mean 'state_dict'?");
  const auto near = file.tensor("state_dict.fc.wait");
  CHECK(absl::IsNotFound(near.status()));
  CHECK(error_of(near.status())->hint == "did you mean 'state_dict.fc.weight'?");
}

TEST_CASE("Several sets of tensors without a known name are listed", "[io][torch_file]") {
  TempDir dir;
  const std::string tensor = p_tensor(p_storage("FloatStorage", "0", p_int(1)), "K\0"s, ")", ")");
  const std::string one = join({"}", p_text("x"), tensor, "s"});
  write_zip(dir / "f",
            archive_of(pickled(join({"}(", p_text("encoder"), one, p_text("decoder"), one, "u"})), {"abcd"}));
  const auto prefix = TorchFile::open(dir / "f")->state_dict_prefix();
  CHECK(absl::IsInvalidArgument(prefix.status()));
  CHECK(error_of(prefix.status())->got == "encoder, decoder");
  write_zip(dir / "none", archive_of(pickled("}")));
  CHECK(absl::IsNotFound(TorchFile::open(dir / "none")->state_dict_prefix().status()));
}

TEST_CASE("Objects next to weights are listed by their class, and tensors with attributes are read",
          "[io][torch_file]") {
  TempDir dir;
  const std::string tensor = p_tensor(p_storage("FloatStorage", "0", p_int(1)), "K\0"s, "K\1\x85", "K\1\x85");
  const std::string hooks = join({p_global("collections", "OrderedDict"), ")R"});
  const std::string attributes = join({"}", p_text("extra"), p_text("hello"), "s"});
  const std::string rebuild = p_global("torch._utils", "_rebuild_tensor_v2");
  const std::string arguments =
      p_tuple({p_storage("FloatStorage", "0", p_int(1)), "K\0"s, "K\1\x85", "K\1\x85", "\x89", hooks});
  const std::string dtype = join({p_global("numpy", "dtype"), p_tuple({p_text("f8"), "\x89", "\x88"}), "R",
                                  p_tuple({"K\3", p_text("<"), "N"}), "b"});
  const std::string bytes = join({p_global("_codecs", "encode"), p_text("abcdefgh"), p_text("latin1"), "\x86R"});
  const std::vector<std::pair<std::string, std::string>> entries = {
      {"w", join({p_global("torch._utils", "_rebuild_parameter_with_state"),
                  p_tuple({tensor, "\x88", hooks, attributes}), "R"})},
      {"b", join({p_global("torch._tensor", "_rebuild_from_type_v2"),
                  p_tuple({rebuild, p_global("torch.nn.parameter", "Buffer"), arguments, attributes}), "R"})},
      {"device", join({p_global("torch", "device"), p_text("cuda"), "K\1\x86R"})},
      {"layout", call("torch.serialization", "_get_layout", p_text("torch.strided"))},
      {"best_acc1", join({p_global("numpy._core.multiarray", "scalar"), dtype, bytes, "\x86R"})},
      {"args", join({p_global("argparse", "Namespace"), ")\x81", attributes, "b"})},
      {"counts",
       join({p_global("collections", "defaultdict"), p_global("__builtin__", "int"), "\x85R", p_text("a"), "K\7s"})}};
  std::string pickle = "}";
  for (const auto& [name, value] : entries) pickle += p_text(name) + value + "s";
  write_zip(dir / "f", archive_of(pickled(pickle), {little_endian(4.0f)}));
  const auto file = TorchFile::open(dir / "f");
  REQUIRE(file.status() == absl::OkStatus());
  CHECK(file->names() == std::vector<std::string>{"w", "b"});
  CHECK(file->tensor("w")->item<float>() == 4);
  CHECK(file->values() ==
        std::vector<std::pair<std::string, std::string>>{{"device", "cuda:1"},
                                                         {"layout", "torch.strided"},
                                                         {"best_acc1", "numpy._core.multiarray.scalar (not read)"},
                                                         {"args", "argparse.Namespace (not read)"},
                                                         {"counts.a", "7"}});
}

TEST_CASE("An OrderedDict of Python 2 and one with attributes are read", "[io][torch_file]") {
  TempDir dir;
  const std::string tensor = p_tensor(p_storage("FloatStorage", "0", p_int(1)), "K\0"s, "K\1\x85", "K\1\x85");
  const std::string dict = p_global("collections", "OrderedDict");
  const std::string two = pickled(join({dict, "(]](U\1a", tensor, "eatR"}));
  const std::string attributes = pickled(join({dict, ")R", p_text("a"), tensor, "s}", p_text("_metadata"), "}sb"}));
  for (const std::string& pickle : {two, attributes}) {
    write_zip(dir / "f", archive_of(pickle, {little_endian(4.0f)}));
    const auto file = TorchFile::open(dir / "f");
    REQUIRE(file.status() == absl::OkStatus());
    CHECK(file->names() == std::vector<std::string>{"a"});
    CHECK(file->tensor("a")->item<float>() == 4.0f);
  }
}

TEST_CASE("A view of a storage in a file of the old format is read", "[io][torch_file]") {
  TempDir dir;
  const std::string storage = join({p_tuple({p_text("storage"), p_global("torch.cuda", "FloatStorage"), p_text("7"),
                                             p_text("cuda:0"), p_int(4), p_tuple({p_text("8"), p_int(1), p_int(3)})}),
                                    "Q"});
  std::string data;
  for (const float value : {10.f, 11.f, 12.f, 13.f}) data += little_endian(value);
  write_bytes(dir / "f", legacy_of(pickled_a(p_tensor(storage, p_int(1), "K\2\x85", "K\1\x85")), {{"7", data}}));
  const auto file = TorchFile::open(dir / "f");
  REQUIRE(file.status() == absl::OkStatus());
  CHECK(file->is_legacy());
  CHECK(torch::equal(file->tensor("a").value(), torch::tensor({12.f, 13.f})));
  write_bytes(dir / "f", legacy_of(pickled_a(p_tensor(storage, p_int(2), "K\2\x85", "K\1\x85")), {{"7", data}}));
  CHECK(error_of(TorchFile::open(dir / "f").status())->problem == "a tensor reaches past the end of its storage");
}

TEST_CASE("A boolean of a PyTorch file with any bit set is true", "[io][torch_file]") {
  TempDir dir;
  const std::string typed = p_tensor(p_storage("BoolStorage", "0", p_int(3)), "K\0"s, "K\3\x85", "K\1\x85");
  const std::string untyped = join({p_global("torch._utils", "_rebuild_tensor_v3"),
                                    p_tuple({p_tuple({p_text("storage"), p_global("torch.storage", "UntypedStorage"),
                                                      p_text("0"), p_text("cpu"), p_int(3)}),
                                             "Q", "K\0"s, "K\3\x85", "K\1\x85", "\x89}", p_global("torch", "bool")}),
                                    "R"});
  for (const std::string& tensor : {typed, untyped}) {
    write_zip(dir / "f", archive_of(pickled_a(tensor), {std::string("\0\2\xff", 3)}));
    const at::Tensor read = TorchFile::open(dir / "f")->tensor("a").value();
    REQUIRE(read.dtype() == torch::kBool);
    const auto* bytes = static_cast<const uint8_t*>(read.const_data_ptr());
    CHECK((bytes[0] == 0 && bytes[1] == 1 && bytes[2] == 1));
  }
}

TEST_CASE("Archives with 64-bit fields are written and read", "[io][torch_file]") {
  TempDir dir;
  const std::string pickle =
      pickled_a(p_tensor(p_storage("FloatStorage", "0", p_int(2)), "K\0"s, "K\2\x85", "K\1\x85"));
  for (const uint64_t from : {0, 8, 200}) {
    write_zip(dir / "f", archive_of(pickle, {little_endian(1.f) + little_endian(2.f)}), from);
    const auto file = TorchFile::open(dir / "f");
    REQUIRE(file.status() == absl::OkStatus());
    CHECK(torch::equal(file->tensor("a").value(), torch::tensor({1.f, 2.f})));
  }
}

TEST_CASE("Damage to a tensor's bytes in an archive is detected when it is read", "[io][torch_file]") {
  TempDir dir;
  saved(dir / "f", {{"a", torch::arange(100.)}, {"b", torch::ones({3})}});
  std::string bytes = read_bytes(dir / "f");
  bytes[bytes.find(little_endian(42.0f))] ^= 1;
  write_bytes(dir / "f", bytes);
  const TorchFile file = TorchFile::open(dir / "f").value();
  CHECK(file.tensor("b").ok());
  for (const absl::Status& status : {file.tensor("a").status(), file.tensors().status()}) {
    CHECK(exit_code(status) == ExitCode::kWeights);
    CHECK(error_of(status)->id == "weights.digest");
    CHECK(error_of(status)->field == "data/0");
  }
}

TEST_CASE("Every prefix of a PyTorch file is refused", "[io][torch_file]") {
  TempDir dir;
  const std::string tensor = p_tensor(p_storage("FloatStorage", "0", p_int(2)), "K\0"s, "K\2\x85", "K\1\x85");
  for (const std::string& whole : {small_zip(), legacy_of(pickled_a(tensor), {{"0", std::string(8, '\1')}})}) {
    write_bytes(dir / "f", whole);
    REQUIRE(TorchFile::open(dir / "f").ok());
    for (size_t length = 0; length < whole.size(); ++length) {
      write_bytes(dir / "f", whole.substr(0, length));
      const auto file = TorchFile::open(dir / "f");
      CAPTURE(length);
      REQUIRE_FALSE(file.ok());
      REQUIRE(exit_code(file.status()) == ExitCode::kWeights);
    }
  }
}

TEST_CASE("No changed byte of an archive changes the result without an error", "[io][torch_file]") {
  TempDir dir;
  const std::string whole = small_zip();
  write_bytes(dir / "f", whole);
  const TorchFile right = TorchFile::open(dir / "f").value();
  const NamedTensors expected = right.tensors().value();
  std::mt19937 random(1);
  int refused = 0, read = 0;
  for (size_t at = 0; at < whole.size(); ++at) {
    for (int i = 0; i < 4; ++i) {
      std::string bytes = whole;
      bytes[at] = static_cast<char>(i < 2 ? bytes[at] ^ (1 << random() % 8) : random());
      write_bytes(dir / "f", bytes);
      CAPTURE(at, static_cast<int>(bytes[at]));
      const auto file = TorchFile::open(dir / "f");
      const auto tensors = file.ok() ? file->tensors() : absl::StatusOr<NamedTensors>(file.status());
      if (!tensors.ok()) {
        REQUIRE(exit_code(tensors.status()) == ExitCode::kWeights);
        ++refused;
        continue;
      }
      ++read;
      REQUIRE(file->values() == right.values());
      REQUIRE(tensors->size() == expected.size());
      for (size_t t = 0; t < expected.size(); ++t) {
        REQUIRE((*tensors)[t].first == expected[t].first);
        REQUIRE(same_bits((*tensors)[t].second, expected[t].second));
      }
    }
  }
  CHECK(refused > 1500);  // the others change a date, an attribute or padding
  CHECK(read > 100);
}

TEST_CASE("A PyTorch file that shrinks after it was opened is an error that names it", "[io][torch_file]") {
  TempDir dir;
  const TorchFile file = saved(dir / "f", {{"a", torch::ones({1000})}});
  std::filesystem::resize_file(dir / "f", 100);
  const auto tensor = file.tensor("a");
  CHECK(absl::IsDataLoss(tensor.status()));
  CHECK(exit_code(tensor.status()) == ExitCode::kWeights);
}
