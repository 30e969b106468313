#pragma once
/// Builds archives of NumPy arrays byte by byte, without the library's own writer. Programs that include it link zlib.

#include <zlib.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "arrays/mat_bytes.h"
#include "io/bytes.h"

namespace trainkit::test {

/// An archive whose members are `members`, (name, bytes), as numpy.savez or savez_compressed writes it.
inline std::string npz_bytes(const std::vector<std::pair<std::string, std::string>>& members, bool deflate,
                             uint16_t method = 8) {
  std::string all, directory;
  for (const auto& [name, bytes] : members) {
    const std::string zlib = MatBytes::deflated(bytes);
    const std::string data = deflate ? zlib.substr(2, zlib.size() - 6) : bytes;  // without zlib's header and checksum
    const auto crc = static_cast<uint32_t>(::crc32(0, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
    const auto number = [](auto value) { return little_endian(value); };
    const std::string fields = number(uint16_t{20}) + number(uint16_t{0}) +
                               number(static_cast<uint16_t>(deflate ? method : 0)) + number(uint32_t{0x00210000}) +
                               number(crc) + number(static_cast<uint32_t>(data.size())) +
                               number(static_cast<uint32_t>(bytes.size())) + number(static_cast<uint16_t>(name.size()));
    directory += "PK\1\2" + number(uint16_t{20}) + fields + std::string(12, '\0') +
                 number(static_cast<uint32_t>(all.size())) + name;
    all += "PK\3\4" + fields + std::string(2, '\0') + name + data;
  }
  const auto count = static_cast<uint16_t>(members.size());
  return all + directory + "PK\5\6" + std::string(4, '\0') + little_endian(count) + little_endian(count) +
         little_endian(static_cast<uint32_t>(directory.size())) + little_endian(static_cast<uint32_t>(all.size())) +
         std::string(2, '\0');
}

}  // namespace trainkit::test
