#pragma once
/// PyTorch files built byte by byte: valid ones as torch.save writes, and invalid ones.

#include <cstring>
#include <filesystem>
#include <fstream>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/bytes.h"
#include "io/torch/zip_writer.h"
#include "trainkit/core/fs.h"

namespace trainkit::test {

// Opcodes.

inline std::string p_text(std::string_view text) {
  return join({"X", little_endian(static_cast<uint32_t>(text.size())), text});
}
inline std::string p_int(int32_t value) { return join({"J", little_endian(value)}); }
inline std::string p_long(int64_t value) { return join({"\x8a\x08", little_endian(value)}); }
inline std::string p_global(std::string_view module, std::string_view name) {
  return join({"c", module, "\n", name, "\n"});
}
inline std::string p_tuple(std::initializer_list<std::string_view> items) { return join({"(", join(items), "t"}); }
inline std::string p_storage(std::string_view type, std::string_view key, std::string_view count) {
  return join({p_tuple({p_text("storage"), p_global("torch", type), p_text(key), p_text("cpu"), count}), "Q"});
}
inline std::string p_tensor(std::string_view storage, std::string_view offset, std::string_view sizes,
                            std::string_view strides, std::string_view more = {}) {
  return join({p_global("torch._utils", "_rebuild_tensor_v2"),
               p_tuple({storage, offset, sizes, strides, "\x89", p_global("collections", "OrderedDict"), ")R", more}),
               "R"});
}
/// A complete pickle of one value.
inline std::string pickled(std::string_view opcodes) { return join({"\x80\x02", opcodes, "."}); }
/// {"a": value}
inline std::string pickled_a(std::string_view value) { return pickled(join({"}", p_text("a"), value, "s"})); }

// Files.

using Entries = std::vector<std::pair<std::string, std::string>>;

inline void write_zip(const std::string& path, const Entries& entries, uint64_t zip64_from = 0xffffffff) {
  const auto [parent, name] = split_path(path);
  std::filesystem::remove(path);
  const Directory directory = Fs::posix().open_directory(parent).value();
  WritableFile file = directory.create_file(name).value();
  detail::ZipWriter zip(file, zip64_from);
  for (const auto& [entry, bytes] : entries) {
    if (!zip.add(entry, bytes).ok()) throw std::runtime_error("cannot write " + path);
  }
  if (!zip.finish().ok() || !file.close().ok()) throw std::runtime_error("cannot write " + path);
}

/// An archive of torch.save with this pickle and storages 0, 1, ...
inline Entries archive_of(const std::string& pickle, const std::vector<std::string>& storages = {}) {
  Entries entries = {{"archive/data.pkl", pickle}, {"archive/byteorder", "little"}};
  for (size_t i = 0; i < storages.size(); ++i) entries.emplace_back("archive/data/" + std::to_string(i), storages[i]);
  entries.emplace_back("archive/version", "3\n");
  return entries;
}

/// A file of the format before PyTorch 1.6: `storages` are (key, bytes) of float32.
inline std::string legacy_of(const std::string& pickle, const Entries& storages = {}) {
  std::string keys, data;
  for (const auto& [key, bytes] : storages) {
    keys += p_text(key);
    data += little_endian(static_cast<int64_t>(bytes.size() / 4)) + bytes;
  }
  const std::string magic("\x8a\x0a\x6c\xfc\x9c\x46\xf9\x20\x6a\xa8\x50\x19", 12);
  return join({pickled(magic), pickled(p_int(1001)), pickled("}"), pickle, pickled(join({"](", keys, "e"})), data});
}

}  // namespace trainkit::test
