// Hostile pickles and tensors: each gives a one-line error with its location, in little memory.
#include <random>

#include "io/torch/torch_bytes.h"
#include "io/torch/torch_hostile.h"
#include "peak_memory.h"
#include "sanitizers.h"
#include "test_util.h"
#include "trainkit/io/weight_file.h"

using namespace trainkit;
using namespace trainkit::test;
using namespace std::string_literals;

TEST_CASE("A hostile pickle is refused with the location and the reason", "[io][torch_file]") {
  TempDir dir;
  const std::string dict = p_global("collections", "OrderedDict");
  const struct {
    const char* name;
    std::string pickle;
    const char* says;
  } rows[] = {
      {"os.system", pickled(call("os", "system", p_text("true"))), "data.pkl+0x2: global 'os.system' not allowed"},
      {"posix.system", pickled(call("posix", "system", p_text("true"))), "global 'posix.system' not allowed"},
      {"builtins.eval", pickled(call("builtins", "eval", p_text("1"))), "global 'builtins.eval' not allowed"},
      {"__builtin__.eval", pickled(call("__builtin__", "eval", p_text("1"))), "global '__builtin__.eval'"},
      {"builtins.getattr", pickled(call("builtins", "getattr", p_text("1"))), "global 'builtins.getattr'"},
      {"subprocess", pickled(call("subprocess", "Popen", p_text("true"))), "global 'subprocess.Popen'"},
      {"stack global", pickled(join({p_text("os"), p_text("system"), "\x93)R"})), "global 'os.system' not allowed"},
      {"in a dict's value", pickled_a(call("os", "system", p_text("true"))), "global 'os.system' not allowed"},
      {"in a tensor's hooks",
       pickled_a(join({p_global("torch._utils", "_rebuild_tensor_v2"),
                       p_tuple({kF32, "K\0"s, ")", ")", "\x89", call("os", "system", p_text("true"))}), "R"})),
       "global 'os.system' not allowed"},
      {"_load_from_bytes", pickled(call("torch.storage", "_load_from_bytes", "C\1x")), "_load_from_bytes' not allowed"},
      {"torch.load", pickled(call("torch", "load", p_text("x"))), "global 'torch.load' not allowed"},
      {"torch.jit", pickled(call("torch.jit", "load", p_text("x"))), "global 'torch.jit.load' not allowed"},
      {"torch.hub", pickled(call("torch.hub", "load", p_text("x"))), "global 'torch.hub.load' not allowed"},
      {"a prefix of an allowed name", pickled(call("torch", "FloatStorageX", p_text("x"))), "not allowed"},
      {"an allowed name elsewhere", pickled(call("evil", "OrderedDict", p_text("x"))), "global 'evil.OrderedDict'"},
      {"attributes by dots", pickled(join({p_text("collections"), p_text("OrderedDict.__init__"), "\x93)R"})),
       "not allowed"},
      {"numpy", pickled(call("numpy", "load", p_text("x"))), "global 'numpy.load' not allowed"},
      {"a tensor's unknown class",
       pickled(join({p_global("torch._tensor", "_rebuild_from_type_v2"),
                     p_tuple({p_global("torch._utils", "_rebuild_tensor_v2"), dict, ")", "}"}), "R"})),
       "a tensor of an unknown class"},
      {"a class as a function", pickled(join({p_global("torch", "Tensor"), ")R"})), "is not a function"},
      {"a parameter with state of text",
       pickled(join({p_global("torch._utils", "_rebuild_parameter_with_state"), p_tuple({"N", "N", "N", "N"}), "R"})),
       "a parameter without"},
      {"a set of text", pickled(call("builtins", "set", p_text("x"))), "a container of a value that is none"},
      {"an object's arguments", pickled(join({p_global("argparse", "Namespace"), "]R"})), "arguments are no tuple"},
      {"sparse", pickled(call("torch._utils", "_rebuild_sparse_tensor", ")")), "_rebuild_sparse_tensor' not allowed"},
      {"quantised", pickled(p_storage("QInt8Storage", "0", p_int(4))), "global 'torch.QInt8Storage' not allowed"},
      {"a whole model", pickled(join({p_global("models", "ResNet"), ")\x81"})), "global 'models.ResNet' not allowed"},
      {"a module's reference", pickled(join({p_tuple({p_text("module"), dict, p_text("x"), p_text("y")}), "Q"})),
       "holds a whole model"},
      {"control bytes in a name", pickled(p_global("a\x1b[31m", "b\x07")), "global 'a\\x1b[31m.b\\x07' not allowed"},
      {"a long name", pickled(p_global(repeat("a", 5000), "b")), "a name is too long"},
      {"an unfinished name",
       "\x80\x02"
       "cos\nsystem",
       "the pickle is cut short"},
      {"INST", pickled("(ios\nsystem\n"), "opcode not allowed (got '0x69'"},
      {"OBJ", pickled("(o"), "opcode not allowed (got '0x6f'"},
      {"NEWOBJ", pickled(join({dict, ")\x81"})), "opcode not allowed (got '0x81'"},
      {"NEWOBJ_EX", pickled(join({dict, ")}\x92"})), "opcode not allowed (got '0x92'"},
      {"EXT1", pickled("\x82\1"), "opcode not allowed (got '0x82'"},
      {"EXT4", pickled("\x84\1\1\1\1"), "opcode not allowed (got '0x84'"},
      {"PERSID", pickled("P1\n"), "opcode not allowed (got '0x50'"},
      {"NEXT_BUFFER", pickled("\x97"), "opcode not allowed (got '0x97'"},
      {"PROTO twice", pickled("\x80\x02N"), "opcode not allowed (got '0x80'"},
      {"an unknown opcode", pickled("\xff"), "opcode not allowed (got '0xff'"},
      {"protocol 0", "(dp0\n.", "no pickle of protocol 2 to 5"},
      {"protocol 6", "\x80\6N.", "no pickle of protocol 2 to 5"},
      {"BUILD on a tensor", pickled(join({sound_tensor(), "}b"})),
       "attributes are set on an object without attributes"},
      {"BUILD on a function", pickled(join({dict, "}b"})), "attributes are set on an object without attributes"},
      {"BUILD with a list", pickled("}]b"), "attributes are set on an object without attributes"},
      {"REDUCE of a dict", pickled("})R"), "the called object is not a function"},
      {"REDUCE of a dtype", pickled(join({p_global("torch", "float32"), ")R"})), "the called object is not a function"},
      {"REDUCE with a list", pickled(join({dict, "]R"})), "arguments are no tuple"},
      {"OrderedDict of text", pickled(call("collections", "OrderedDict", p_text("ab"))),
       "an OrderedDict of a value that is not a list"},
      {"OrderedDict of triples",
       pickled(call("collections", "OrderedDict",
                    "]K\1K\2K\3\x87"
                    "a")),
       "items that are not pairs"},
      {"Size of text", pickled(call("torch", "Size", p_text("ab"))), "torch.Size of a value that is not a tuple"},
      {"a parameter of text", pickled(join({p_global("torch._utils", "_rebuild_parameter"), "NNN\x87R"})),
       "a parameter without"},
      {"stack underflow", pickled("a"), "a value is missing on the stack"},
      {"tuple underflow", pickled("N\x86"), "a value is missing on the stack"},
      {"underflow past a mark", pickled("]N(a"), "a value is missing on the stack"},
      {"a call past a mark", pickled(join({dict, "()R"})), "a value is missing on the stack"},
      {"memo of nothing", pickled("q\0"s), "a value is missing on the stack"},
      {"no mark", pickled("Nt"), "a mark is missing on the stack"},
      {"no stop", "\x80\2N", "the pickle is cut short"},
      {"two values", pickled("NN"), "does not end with exactly one value (got '2'"},
      {"an open mark", pickled("N("), "exactly one value"},
      {"nothing", pickled(""), "does not end with exactly one value (got '0'"},
      {"after the stop", pickled("N") + "N.", "something follows the pickle"},
      {"memo get", pickled("h\5"), "the memo entry was never stored (got 'entry 5'"},
      {"memo get in a hole", pickled("Nq\1h\0"s), "the memo entry was never stored (got 'entry 0'"},
      {"memo put 2^31", pickled("Nr\0\0\0\x80"s), "the memo has a hole"},
      {"LONG4 of 1 GB", pickled("\x8b\0\0\0\x40"s), "the pickle is cut short"},
      {"text of 4 GB", pickled("X\xff\xff\xff\xff"), "the pickle is cut short"},
      {"text of 2^64", pickled(join({"\x8d", std::string(8, '\xff')})), "the pickle is cut short"},
      {"bytes of 2^63", pickled(join({"\x8e", little_endian(int64_t{1} << 62)})), "the pickle is cut short"},
      {"append to a dict", pickled("}Na"), "items are added to a value that is not a container"},
      {"set in a list", pickled("]NNs"), "items are added to a value that is not a container"},
      {"a key without value", pickled("}(Nu"), "a key has no value"},
      {"a key of another kind", pickled(join({"}N", sound_tensor(), "s"})), "neither text nor an integer"},
      {"a key that is not UTF-8", pickled(join({"}", p_text("\xff\xfe"), sound_tensor(), "s"})), "invalid UTF-8"},
      {"a key with an escape", pickled(join({"}", p_text("a\x1b[2J"), sound_tensor(), "s"})), "control characters"},
      {"a key twice", pickled(join({"}(", p_text("a"), sound_tensor(), p_text("a"), sound_tensor(), "u"})),
       "a: is a duplicate"},
      {"two ways to a name",
       pickled(join({"}(", p_text("a.b"), sound_tensor(), p_text("a"), "}", p_text("b"), sound_tensor(), "su"})),
       "a.b: is a duplicate"},
      {"a list that holds itself", pickled("]q\0h\0a"s), "is nested too deeply"},
      {"a dict that holds itself", pickled("}q\0K\1h\0s"s), "is nested too deeply"},
      {"a name of 1 MB", pickled(join({"}", p_text(repeat("a", 1 << 20)), sound_tensor(), "s"})),
       "has too long a name"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_zip(dir / "w.pt", archive_of(row.pickle, {kFour}));
    CHECK_THAT(error_of_file(dir / "w.pt"), Catch::Contains(row.says));
  }
  CHECK(std::size(rows) >= 54);
}

TEST_CASE("A tensor that exceeds its storage is refused", "[io][torch_file]") {
  TempDir dir;
  const auto one = [](std::string_view offset, std::string_view sizes, std::string_view strides) {
    return p_tensor(kF32, offset, sizes, strides);
  };
  const std::string huge = p_long(int64_t{1} << 62), negative = p_int(-1);
  const std::string pid_key =
      p_tuple({p_text("storage"), p_global("torch", "FloatStorage"), p_int(0), p_text("cpu"), p_int(4)});
  const struct {
    const char* name;
    std::string tensor;
    const char* says;
  } rows[] = {
      {"one too many", one(p_int(0), "K\5\x85", "K\1\x85"),
       "reaches past the end of its storage (got 'element 4', expected at most 4"},
      {"offset", one(p_int(1), "K\4\x85", "K\1\x85"), "reaches past the end of its storage"},
      {"stride", one(p_int(0), "K\2\x85", "K\4\x85"), "reaches past the end of its storage"},
      {"offset of a scalar", one(p_int(4), ")", ")"), "reaches past the end of its storage"},
      {"negative offset", one(negative, "K\1\x85", "K\1\x85"), "begins before its storage (got '-1'"},
      {"negative size", one(p_int(0), negative + "\x85", "K\1\x85"), "a size is not a non-negative integer (got '-1'"},
      {"negative stride", one(p_int(3), "K\4\x85", negative + "\x85"),
       "a stride is not a non-negative integer (got '-1'"},
      {"a size of text", one(p_int(0), p_text("4") + "\x85", "K\1\x85"),
       "a size is not a non-negative integer (got 'text'"},
      {"a size of 2^80", one(p_int(0), "\x8a\x0b" + std::string(11, '\1') + "\x85", "K\1\x85"),
       "a size is not a non-negative integer"},
      {"elements of 2^124", one(p_int(0), huge + huge + "\x86", "K\0K\0\x86"s), "sizes or strides overflow"},
      {"bytes of 2^64", one(p_int(0), huge + "\x85", "K\0\x85"s), "sizes or strides overflow"},
      {"size times stride", one(p_int(0), "K\5\x85", huge + "\x85"), "sizes or strides overflow"},
      {"offset of 2^62", one(huge, "K\1\x85", "K\1\x85"), "reaches past the end"},
      {"empty, but 2^124", one(p_int(0), huge + huge + "K\0\x87"s, "K\0K\0K\0\x87"s), "sizes or strides overflow"},
      {"sizes and strides", one(p_int(0), "K\2K\2\x86", "K\1\x85"), "differ in number (got '2 and 1'"},
      {"65 dimensions", one(p_int(0), join({"(", repeat("K\1", 65), "t"}), join({"(", repeat("K\1", 65), "t"})),
       "differ in number"},
      {"no storage", p_tensor("N", p_int(0), ")", ")"), "without a storage, an offset, sizes and strides"},
      {"an offset of text", one(p_text("0"), ")", ")"), "without a storage, an offset, sizes and strides"},
      {"too few arguments", join({p_global("torch._utils", "_rebuild_tensor_v2"), ")R"}), "a tensor without a storage"},
      {"an unknown flag", p_tensor(kF32, p_int(0), ")", ")", join({"}", p_text("evil"), "\x88s"})), "an unknown flag"},
      {"storage of -1", p_storage("FloatStorage", "0", negative), "a damaged reference to a storage"},
      {"storage of 2^63 bytes", p_storage("FloatStorage", "0", huge), "a storage of more than 2^63 bytes"},
      {"storage beyond the file", p_tensor(p_storage("FloatStorage", "0", p_int(1 << 30)), p_int(0), ")", ")"),
       "data/0: does not have the size that its tensors state (got '16 bytes'"},
      {"storage too short", p_tensor(p_storage("FloatStorage", "0", p_int(3)), p_int(0), ")", ")"),
       "does not have the size"},
      {"storage missing", p_tensor(p_storage("FloatStorage", "1", p_int(4)), p_int(0), ")", ")"),
       "data/1: is not in the archive"},
      {"storage elsewhere", p_tensor(p_storage("FloatStorage", "../data.pkl", p_int(4)), p_int(0), ")", ")"),
       "data/../data.pkl: is not in the archive"},
      {"storage twice, another type", p_tuple({kF32, p_storage("IntStorage", "0", p_int(4))}),
       "a storage is declared twice with different types or sizes"},
      {"storage twice, longer", p_tuple({kF32, p_storage("FloatStorage", "0", p_int(5))}),
       "declared twice with different types or sizes"},
      {"a key of a number", pid_key + "Q", "a damaged reference to a storage"},
      {"a reference that is not a tuple", "K\1Q", "a persistent id that is not a storage"},
      {"an empty reference", ")Q", "a persistent id that is not a storage"},
      {"a view outside",
       join({p_tuple({p_text("storage"), p_global("torch", "FloatStorage"), p_text("0"), p_text("cpu"), p_int(4),
                      p_tuple({p_text("v"), p_int(3), p_int(2)})}),
             "Q"}),
       "a view of a storage that leaves it"},
      {"a view before",
       join({p_tuple({p_text("storage"), p_global("torch", "FloatStorage"), p_text("0"), p_text("cpu"), p_int(4),
                      p_tuple({p_text("v"), p_int(-1), p_int(2)})}),
             "Q"}),
       "a view of a storage that leaves it"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_zip(dir / "w.pt", archive_of(pickled_a(row.tensor), {kFour}));
    CHECK_THAT(error_of_file(dir / "w.pt"), Catch::Contains(row.says));
  }
}

TEST_CASE("A file made to fill the memory is refused within 256 MiB", "[io][torch_file]") {
  constexpr int64_t kLimit = test::kSanitized ? int64_t{4} << 30 : 256 << 20;
  TempDir dir;
  constexpr size_t kMany = 20'000'000;
  // Each dict contains the previous one twice: 2^40 paths to the tensor.
  std::string laughs = join({"}", p_text("a"), sound_tensor(), "sq\0"s});
  for (int i = 0; i < 40; ++i) laughs += join({"(h\0h\0tq\0"s});
  const std::string many_names = join({"(", sound_tensor(), "q\0"s, repeat("h\0"s, 500'000), "t"});
  const std::string dims = join({"(", repeat("K\1", 64), "tq\0"s});
  const struct {
    const char* name;
    std::string opcodes;
  } rows[] = {
      {"lists", repeat("]", kMany)},
      {"dicts", repeat("}", kMany)},
      {"marks", repeat("(", kMany)},
      {"nothings", repeat("N", kMany)},
      {"lists in lists", repeat("]", 900'000) + repeat("a", 899'999)},
      {"tuples in tuples", join({"N", repeat("\x85", 1'900'000)})},
      {"memo", join({"N", repeat("\x94", kMany)})},
      {"memo got", "Nq\0"s + repeat("h\0"s, kMany)},
      {"a billion laughs", laughs},
      {"one tensor by many names", many_names},
      {"tensors of 64 dimensions",
       dims + repeat(join({p_global("torch._utils", "_rebuild_tensor"), "(", kF32, "K\0h\0h\0tR"s}), 150'000)},
      {"storages",
       repeat(join({"(", p_text("storage"), p_global("torch", "FloatStorage"), "X\1\0\0\0000"s, "NK\4tQ"}), 600'000)},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_zip(dir / "w.pt", archive_of(pickled(row.opcodes), {kFour}));
    test::reset_peak_memory();
    const int64_t before = test::peak_memory();
    CHECK_FALSE(error_of_file(dir / "w.pt").empty());
    CHECK(test::peak_memory() - before < kLimit);
  }
}

TEST_CASE("A tensor that is computed from its storage cannot allocate more memory than the file", "[io][torch_file]") {
  TempDir dir;
  // 2^36 elements with a stride of 0: free as a view, but negation or conversion to bool would allocate all.
  const std::string huge = join({p_long(int64_t{1} << 36), "\x85"}), still = "K\0\x85"s;
  const std::string untyped = join(
      {p_tuple({p_text("storage"), p_global("torch.storage", "UntypedStorage"), p_text("0"), p_text("cpu"), p_int(16)}),
       "Q"});
  const auto flagged = [&](std::string_view sizes, std::string_view strides) {
    return p_tensor(kF32, p_int(0), sizes, strides, join({"}", p_text("neg"), "\x88s"}));
  };
  const std::string truth = join({p_global("torch._utils", "_rebuild_tensor_v3"),
                                  p_tuple({untyped, p_int(0), huge, still, "\x89}", p_global("torch", "bool")}), "R"});
  const std::string large = p_storage("FloatStorage", "0", p_int(1 << 18));
  std::string many = "](";
  for (int i = 0; i < 100; ++i) {
    many += p_tensor(large, p_int(0), join({p_int(1 << 18), "\x85"}), "K\1\x85", join({"}", p_text("neg"), "\x88s"}));
  }
  const std::pair<std::string, std::string> rows[] = {
      {flagged(huge, still), kFour}, {truth, kFour}, {many + "e", std::string(1 << 20, '\1')}};
  for (const auto& [tensor, storage] : rows) {
    write_zip(dir / "w.pt", archive_of(pickled_a(tensor), {storage}));
    CHECK_THAT(error_of_file(dir / "w.pt"), Catch::Contains("needs more memory than twice the file"));
  }
  write_zip(dir / "w.pt", archive_of(pickled_a(p_tensor(kF32, p_int(0), huge, still)), {kFour}));
  CHECK(TorchFile::open(dir / "w.pt")->tensors().ok());
  write_zip(dir / "w.pt", archive_of(pickled_a(flagged("K\4\x85", "K\1\x85")), {kFour}));
  CHECK(TorchFile::open(dir / "w.pt")->tensors().ok());
}

TEST_CASE("Mutated pickles give an error or readable tensors", "[io][torch_file]") {
  TempDir dir;
  const std::string path = dir / "w.pt";
  const std::string pickle = pickled(
      join({p_global("collections", "OrderedDict"), ")R(", p_text("w"), p_tensor(kF32, p_int(1), "K\3\x85", "K\1\x85"),
            p_text("b"), sound_tensor(), p_text("n"), "}(", p_text("x"), "]q\2(K\1K\2e", p_text("y"), "h\2h\2\x86uu"}));
  const std::string archive_pickle =
      pickled(join({"}(", p_text("w"), p_tensor(kF32, p_int(1), "K\3\x85", "K\1\x85"), "q\1", p_text("b"),
                    sound_tensor(), p_text("again"), "h\1", p_text("n"), "]q\2(K\1K\2eu"}));
  const std::string legacy = legacy_of(archive_pickle, {{"0", kFour}});
  write_zip(path, archive_of(archive_pickle, {kFour}));
  REQUIRE(error_of_file(path).empty());
  const int count = is_full() ? 200'000 : 6'000;
  std::mt19937 random(7);
  const std::string opcodes(
      "(.01GJKMNQRTUXabcehjqrstu}])BC\x80\x85\x86\x87\x88\x89\x8a\x8b\x8c\x8d\x90\x91\x93\x94\x95", 46);
  int accepted = 0, refused = 0;
  for (int i = 0; i < count; ++i) {
    std::string bytes = i % 3 == 0 ? legacy : i % 3 == 1 ? archive_pickle : pickle;
    for (unsigned edits = 1 + random() % 3; edits > 0; --edits) {
      const size_t at = random() % bytes.size();
      switch (random() % 4) {
        case 0:
          bytes[at] = static_cast<char>(random());
          break;
        case 1:
          bytes[at] = opcodes[random() % opcodes.size()];
          break;
        case 2:
          bytes.insert(at, 1, opcodes[random() % opcodes.size()]);
          break;
        default:
          bytes.erase(at, 1 + random() % 4);
      }
      if (bytes.empty()) bytes.push_back('N');
    }
    if (i % 3 == 0) {
      write_bytes(path, bytes);
    } else {
      write_zip(path, archive_of(bytes, {kFour}));
    }
    CAPTURE(i, escape_text(bytes, 2000));
    const auto file = TorchFile::open(path);
    const auto tensors = file.ok() ? file->tensors() : absl::StatusOr<NamedTensors>(file.status());
    if (tensors.ok()) {
      for (const auto& named : *tensors) {
        if (named.second.numel() < 1'000'000) named.second.to(torch::kDouble).sum();  // reads every element
      }
      ++accepted;
    } else {
      REQUIRE(exit_code(tensors.status()) == ExitCode::kWeights);
      ++refused;
    }
  }
  CHECK(accepted > count / 200);
  CHECK(refused > count / 10);
}
