// Broken archives, and broken files of the format before PyTorch 1.6: each gives a one-line error with its location.
#include <cstring>

#include "io/torch/torch_bytes.h"
#include "io/torch/torch_hostile.h"
#include "test_util.h"

using namespace trainkit;
using namespace trainkit::test;

namespace {

/// Offsets of the records of a zip that we wrote.
struct ZipPlaces {
  explicit ZipPlaces(const std::string& bytes)
      : end(bytes.size() - 22), locator(end - 20), end64(locator - 56), directory(bytes.find("PK\1\2")) {}
  size_t end, locator, end64, directory;
};

std::string replaced(std::string text, std::string_view from, std::string_view to) {
  for (size_t at = text.find(from); at != std::string::npos; at = text.find(from, at + to.size()))
    text.replace(at, from.size(), to);
  return text;
}

std::string patched(std::string bytes, size_t at, std::string_view with) {
  return bytes.replace(at, with.size(), with);
}

}  // namespace

TEST_CASE("A broken archive is refused with the location and the reason", "[io][torch_file]") {
  TempDir dir;
  const std::string path = dir / "w.pt";
  const Entries entries = archive_of(pickled_a(sound_tensor()), {kFour});
  write_zip(path, entries);
  REQUIRE(error_of_file(path).empty());
  const std::string good = read_bytes(path);
  const ZipPlaces at(good);
  const auto u16 = [](uint16_t v) { return little_endian(v); };
  const auto u32 = [](uint32_t v) { return little_endian(v); };
  const auto u64 = [](uint64_t v) { return little_endian(v); };
  const size_t second = good.find("PK\1\2", at.directory + 4), third = good.find("PK\1\2", second + 4);
  const auto header_of = [&](size_t listed) {
    uint32_t header = 0;
    std::memcpy(&header, good.data() + listed + 42, 4);
    return header;
  };
  // An entry that the directory no longer lists.
  std::string unlisted = good.substr(0, second) + good.substr(third);
  const size_t lost = third - second;
  unlisted = patched(unlisted, at.end64 - lost + 24, u64(3) + u64(3) + u64(at.end64 - at.directory - lost));
  unlisted = patched(unlisted, at.locator - lost + 8, u64(at.end64 - lost));
  unlisted = patched(unlisted, at.end - lost + 8,
                     u16(3) + u16(3) + u32(static_cast<uint32_t>(at.end64 - at.directory - lost)));
  const struct {
    const char* name;
    std::string bytes;
    const char* says;
  } rows[] = {
      {"empty", "", "is not a torch.save file"},
      {"text", "hello, world", "is not a torch.save file"},
      {"tar", patched(std::string(1024, '\0'), 257, "ustar"), "is not a torch.save file"},
      {"safetensors", u64(2) + "{}", "is not a torch.save file"},
      {"no end record", good.substr(0, at.end), "its end record is not at its end"},
      {"a byte more", good + "x", "its end record is not at its end"},
      {"a comment", patched(good, at.end + 20, u16(1)) + "x", "its end record is not at its end"},
      {"two end records", good + good.substr(at.end), "has a directory that does not end at the end record"},
      {"two directories", good + good.substr(at.directory), "64-bit end record that is not where"},
      {"bytes before", "PK\3\4" + good, "64-bit end record that is not where"},
      {"end records that differ", patched(good, at.end + 8, u16(3) + u16(3)), "two end records that contradict"},
      {"64-bit offset", patched(good, at.end64 + 48, u64(7)), "contradict each other"},
      {"64-bit record moved", patched(good, at.locator + 8, u64(at.end64 - 1)), "64-bit end record that is not where"},
      {"64-bit record's length", patched(good, at.end64 + 4, u64(45)), "64-bit end record that is not where"},
      {"several disks", patched(good, at.end + 4, u16(1)), "one of several parts"},
      {"more entries", patched(patched(good, at.end64 + 24, u64(5) + u64(5)), at.end + 8, u16(5) + u16(5)),
       "damaged directory"},
      {"fewer entries", patched(patched(good, at.end64 + 24, u64(3) + u64(3)), at.end + 8, u16(3) + u16(3)),
       "longer than its entries"},
      {"2^60 entries",
       patched(patched(good, at.end64 + 24, u64(1ull << 60) + u64(1ull << 60)), at.end + 8, "\xff\xff\xff\xff"),
       "too large a directory"},
      {"an entry unlisted", unlisted, "has bytes before it that belong to no entry"},
      {"deflated", patched(good, at.directory + 10, u16(8)),
       "is compressed, which torch.save never does (got 'method 8'"},
      {"deflated inside", patched(good, 8, u16(8)), "a header that contradicts the directory"},
      {"encrypted", patched(good, at.directory + 8, u16(0x801)), "is encrypted"},
      {"sizes that differ", patched(good, at.directory + 20, u32(1)), "sizes that contradict"},
      {"size beyond the file", patched(good, at.directory + 20, u32(1 << 30) + u32(1 << 30)),
       "is longer than the archive"},
      {"64-bit size missing", patched(good, at.directory + 20, "\xff\xff\xff\xff\xff\xff\xff\xff"),
       "a damaged extra field"},
      {"a name that leads out", replaced(good, "archive/version", "archive/../ersi"), "leaves the archive's folder"},
      {"an absolute name", replaced(good, "archive/version", "/rchive/version"), "leaves the archive's folder"},
      {"a name with backslash", replaced(good, "archive/version", "archive\\version"), "leaves the archive's folder"},
      {"a name with control bytes", replaced(good, "archive/version", "archive/\1ersion"), "control characters"},
      {"names that differ", patched(good, good.find("archive/version"), "archive/Version"),
       "contradicts the directory"},
      {"another folder", replaced(good, "archive/version", "brchive/version"), "is not in the archive's single folder"},
      {"overlap", patched(good, third + 42, u32(header_of(second) + 1)), "overlaps the entry before"},
      {"beyond the entries", patched(good, third + 42, u32(static_cast<uint32_t>(at.directory))), "belong to no entry"},
      {"CRC of the pickle", patched(good, at.directory + 16, u32(1)), "data.pkl: is damaged: its CRC differs"},
      {"CRC of a storage", patched(good, third + 16, u32(1)), "data/0: is damaged: its CRC differs"},
      {"no CRC of the last entry", patched(good, good.find("PK\1\2", third + 4) + 16, u32(0)),
       "version: is damaged: its CRC differs"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_bytes(path, row.bytes);
    CHECK_THAT(error_of_file(path), Catch::Contains(row.says));
  }

  const auto with = [&](Entries more, const char* without = "") {
    Entries all;
    for (const auto& entry : entries) {
      if (entry.first != without) all.push_back(entry);
    }
    all.insert(all.end(), more.begin(), more.end());
    return all;
  };
  const struct {
    const char* name;
    Entries entries;
    const char* says;
  } archives[] = {
      {"no entries", {}, "is not a torch.save file"},
      {"no pickle", with({}, "archive/data.pkl"), "data.pkl: is not in the archive"},
      {"no version", with({}, "archive/version"), "version: is not in the archive"},
      {"no storage", with({}, "archive/data/0"), "data/0: is not in the archive"},
      {"version 99", with({{"archive/version", "99\n"}}, "archive/version"), "of a version that is not known"},
      {"version of text", with({{"archive/version", "x"}}, "archive/version"), "of a version that is not known"},
      {"version of 1 kB", with({{"archive/version", repeat("3", 1000)}}, "archive/version"), "version: is too long"},
      {"byte order", with({{"archive/byteorder", "middle"}}, "archive/byteorder"),
       "byteorder: is unknown (got 'middle'"},
      {"an entry twice", with({{"archive/version", "3\n"}}), "is a duplicate name in the archive"},
      {"TorchScript", with({{"archive/constants.pkl", pickled(")")}}), "is a TorchScript program"},
      {"TorchScript's code", with({{"archive/code/x.py", "x"}}), "is a TorchScript program"},
      {"a long name", with({{join({"archive/", repeat("x", 300)}), "x"}}), "too long for an entry's name"},
      {"a folder", with({{"archive/x/", ""}}), "leaves the archive's folder"},
  };
  for (const auto& row : archives) {
    CAPTURE(row.name);
    write_zip(path, row.entries);
    CHECK_THAT(error_of_file(path), Catch::Contains(row.says));
  }
}

TEST_CASE("Only a data descriptor may follow an entry, with or without signature, with sizes of 32 or 64 bits",
          "[io][torch_file]") {
  TempDir dir;
  const std::string path = dir / "w.pt";
  write_zip(path, archive_of(pickled_a(sound_tensor()), {kFour}));
  const std::string good = read_bytes(path);
  const ZipPlaces at(good);
  for (const size_t length : {12, 16, 20, 24, 4, 28}) {
    CAPTURE(length);
    std::string bytes = good;
    const auto add = [&](size_t place, auto number) {
      std::memcpy(&number, &bytes[place], sizeof number);
      number = static_cast<decltype(number)>(number + length);
      std::memcpy(&bytes[place], &number, sizeof number);
    };
    bytes =
        patched(patched(bytes, 6, little_endian<uint16_t>(0x808)), at.directory + 8, little_endian<uint16_t>(0x808));
    size_t header = 0;
    for (size_t next = at.directory; (next = bytes.find("PK\1\2", next + 4)) != std::string::npos;) {
      if (header == 0) std::memcpy(&header, &bytes[next + 42], 4);
      add(next + 42, uint32_t{});
    }
    add(at.end64 + 48, uint64_t{});
    add(at.locator + 8, uint64_t{});
    add(at.end + 16, uint32_t{});
    bytes.insert(header, length, '\1');
    write_bytes(path, bytes);
    const std::string error = error_of_file(path);
    INFO(error);
    CHECK((length >= 12 && length <= 24 ? error.empty() : error.find("belong to no entry") != std::string::npos));
  }
}

TEST_CASE("A broken file of the old format is refused with the location and the reason", "[io][torch_file]") {
  TempDir dir;
  const std::string path = dir / "w.pt", pickle = pickled_a(sound_tensor()), good = legacy_of(pickle, {{"0", kFour}});
  write_bytes(path, good);
  REQUIRE(error_of_file(path).empty());
  const std::string start = legacy_of("");
  const size_t header = start.find(pickled("}")) + pickled("}").size();
  const struct {
    const char* name;
    std::string bytes;
    const char* says;
  } rows[] = {
      {"another pickle", pickled_a("N"), "its magic number is missing"},
      {"a number for the magic one", pickled("K\1"), "its magic number is missing"},
      {"another version", replaced(good, p_int(1001), p_int(1002)), "of a version that is not known"},
      {"os.system first", pickled(call("os", "system", p_text("true"))), "@0x2: global 'os.system' not allowed"},
      {"os.system in the machine's part", good.substr(0, header - 4) + pickled(call("os", "system", p_text("true"))),
       "global 'os.system' not allowed"},
      {"os.system in the list of storages",
       start.substr(0, header) + pickle + pickled(call("os", "system", p_text("true"))),
       "global 'os.system' not allowed"},
      {"no list", start.substr(0, header) + pickle + pickled("N"), "the list of storages is missing"},
      {"a storage not listed", legacy_of(pickle), "is not in the file"},
      {"an unused storage", legacy_of(pickle, {{"0", kFour}, {"1", kFour}}), "a storage that no tensor refers to"},
      {"a storage twice", legacy_of(pickle, {{"0", kFour}, {"0", kFour}}), "is a duplicate"},
      {"another length", legacy_of(pickle, {{"0", kFour + kFour}}), "does not have the size that its tensors state"},
      {"cut", good.substr(0, good.size() - 1), "is cut short"},
      {"cut before", good.substr(0, good.size() - 17), "is missing: the file is cut short"},
      {"longer", good + "x", "has bytes after the last storage (got '1 bytes'"},
  };
  for (const auto& row : rows) {
    CAPTURE(row.name);
    write_bytes(path, row.bytes);
    CHECK_THAT(error_of_file(path), Catch::Contains(row.says));
  }
}
