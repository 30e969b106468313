#include "io/weights/weight_content.h"

#include <algorithm>

namespace trainkit::detail {

WeightContent weight_content(const ReadableFile& file) {
  std::string start(static_cast<size_t>(std::min<int64_t>(file.size_bytes(), 263)), '\0');
  if (!file.read_at(0, start.data(), start.size()).ok()) return WeightContent::kOther;
  const std::string_view text = start;
  if (text.starts_with("PK\x03\x04") || text.starts_with("PK\x05\x06")) return WeightContent::kZip;
  // A safetensors file may begin with the same bytes: the length of a header of 640 bytes.
  const bool is_header = text.size() > 8 && text.substr(4, 4) == std::string_view("\0\0\0\0", 4) && text[8] == '{';
  if (text.size() >= 2 && text[0] == '\x80' && text[1] >= 2 && text[1] <= 5 && !is_header)
    return WeightContent::kPickle;
  if (text.size() >= 262 && text.substr(257, 5) == "ustar") return WeightContent::kTar;
  const size_t first = text.find_first_not_of(" \t\r\n");
  if (first != text.npos && text[first] == '{' && !is_header) return WeightContent::kIndex;
  if (text.starts_with("version https://git-lfs")) return WeightContent::kLfsPointer;
  return WeightContent::kOther;
}

bool looks_like_safetensors(const ReadableFile& file) {
  char start[9] = {};
  return file.size_bytes() >= 10 && file.read_at(0, start, sizeof start).ok() && start[8] == '{';
}

std::string content_hint(WeightContent content) {
  switch (content) {
    case WeightContent::kZip:
      return "this is a zip archive, as torch.save writes";
    case WeightContent::kPickle:
      return "this is a pickle, as older torch.save wrote";
    case WeightContent::kTar:
      return "this is a tar file of PyTorch 0.1: load and save it again with a later PyTorch";
    case WeightContent::kLfsPointer:
      return "this is a Git LFS pointer: fetch the file itself with 'git lfs pull'";
    case WeightContent::kIndex:
      return "this is JSON, as the index of a model in several files";
    case WeightContent::kOther:
      break;
  }
  return {};
}

}  // namespace trainkit::detail
