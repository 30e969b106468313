#include "transformer/text_writer.h"

#include <algorithm>

#include "trainkit/core/status.h"
#include "trainkit/text/tokenizer.h"

namespace trainkit::transformer {
namespace {

constexpr size_t kBufferBytes = size_t{1} << 20;
constexpr std::string_view kCrlf = "\r\n";

}  // namespace

absl::Status TextWriter::put(std::string_view bytes) {
  buffer_ += bytes;
  return buffer_.size() < kBufferBytes ? absl::OkStatus() : flush();
}

absl::Status TextWriter::flush() {
  TRAINKIT_RETURN_IF_ERROR(file_.append(buffer_));
  buffer_.clear();
  return absl::OkStatus();
}

absl::Status TextWriter::append(std::string_view text) {
  // Each search starts after the last match, so that the text is read once.
  const auto next = [&](bool wanted, std::string_view what, size_t at) {
    return wanted ? std::min(text.find(what, at), text.size()) : text.size();
  };
  size_t at = 0, crlf = next(options_.normalize_newlines, kCrlf, 0);
  size_t marker = next(options_.replace_end_of_text, Gpt2Tokenizer::kEndOfText, 0);
  while (true) {
    const size_t end = std::min(crlf, marker);
    TRAINKIT_RETURN_IF_ERROR(put(text.substr(at, end - at)));
    if (end == text.size()) return absl::OkStatus();
    if (end == crlf) {
      TRAINKIT_RETURN_IF_ERROR(put("\n"));
      at = crlf + kCrlf.size();
      crlf = next(true, kCrlf, at);
    } else {
      TRAINKIT_RETURN_IF_ERROR(put({&options_.document_end, 1}));
      at = marker + Gpt2Tokenizer::kEndOfText.size();
      marker = next(true, Gpt2Tokenizer::kEndOfText, at);
    }
  }
}

absl::Status TextWriter::append_document(std::string_view text) {
  if (text.empty()) return ++empty_documents_, absl::OkStatus();
  TRAINKIT_RETURN_IF_ERROR(append(text));
  TRAINKIT_RETURN_IF_ERROR(put({&options_.document_end, 1}));
  documents_.push_back(file_.size_bytes() + static_cast<int64_t>(buffer_.size()));
  return absl::OkStatus();
}

}  // namespace trainkit::transformer
