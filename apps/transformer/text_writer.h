#pragma once
/// Writes a prepared text: converted line ends and markers, and the ends of its documents.

#include <absl/status/status.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "trainkit/core/fs.h"
#include "transformer/text.h"

namespace trainkit::transformer {

/// Appends texts to a file through a buffer. Call flush() at the end.
class TextWriter {
 public:
  /// Keeps references to both.
  TextWriter(WritableFile& file, const TextOptions& options) : file_(file), options_(options) {}

  /// Appends `text`, converted as the options say.
  absl::Status append(std::string_view text);
  /// Appends a document and its end. Skips an empty one.
  absl::Status append_document(std::string_view text);
  absl::Status flush();

  /// Bytes at which a document ends, after its end mark.
  const std::vector<int64_t>& documents() const { return documents_; }
  int64_t empty_documents() const { return empty_documents_; }

 private:
  absl::Status put(std::string_view bytes);

  WritableFile& file_;
  const TextOptions& options_;
  std::string buffer_;
  std::vector<int64_t> documents_;
  int64_t empty_documents_ = 0;
};

}  // namespace trainkit::transformer
