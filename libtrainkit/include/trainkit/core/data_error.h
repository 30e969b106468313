#pragma once
/// Errors in data that name the place.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace trainkit {

/// A place in a data set: "events.csv.gz:17", "book.txt@0x1f".
struct Place {
  /// File or folder, as the user named it.
  std::string file = {};
  /// Line from 1, of the unpacked text; 0: the whole file.
  int64_t line = 0;
  /// Offset in bytes; -1: none.
  int64_t offset = -1;
  /// Column, tensor or flag.
  std::string field = {};
};

/// Makes the Status of a fault in data, with exit code 4. See Error for the arguments; `id` is "data.csv", for example.
absl::Status data_error(const std::string& id, const Place& place, const std::string& problem,
                        std::string_view got = {}, const std::string& expected = {}, const std::string& hint = {});

}  // namespace trainkit
