// A safetensors file: the reader must agree with a second reader written from the specification only; an accepted file
// gives the same when written and read again.
#include "trainkit/io/safetensors.h"

#include <ATen/Functions.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdlib>
#include <cstring>
#include <map>
#include <optional>
#include <set>

#include "core/base/utf8.h"
#include "target.h"

namespace trainkit::fuzz::safetensors {

namespace {

/// A value of the header; only the parts needed by the rules are stored.
struct Json {
  enum Kind { kNull, kText, kCount, kOther, kList, kObject } kind = kOther;
  std::string text;
  uint64_t count = 0;
  std::vector<std::string> names;  // keys of an object, as many as items
  std::vector<Json> items;
};

/// JSON (RFC 8259), recursive and slow. Any error throws.
class JsonReader {
 public:
  explicit JsonReader(std::string_view text) : text_(text) {}

  Json document() {
    Json value = read(0);
    skip_space();
    expect(at_ == text_.size());
    return value;
  }

 private:
  struct Fault {};
  static void expect(bool holds) {
    if (!holds) throw Fault();
  }
  char peek() const { return at_ < text_.size() ? text_[at_] : '\0'; }
  char take() { return expect(at_ < text_.size()), text_[at_++]; }
  void skip_space() {
    while (at_ < text_.size() && std::strchr(" \t\r\n", text_[at_]) && text_[at_] != '\0') ++at_;
  }
  void take_word(std::string_view word) {
    expect(text_.substr(at_).starts_with(word));
    at_ += word.size();
  }

  Json read(int depth) {
    expect(depth <= 16);
    skip_space();
    const char c = peek();
    Json value;
    if (c == '{' || c == '[') {
      expect(depth < 16);
      read_container(value, depth);
    } else if (c == '"') {
      value.kind = Json::kText;
      value.text = read_text();
    } else if (c == 't') {
      take_word("true");
    } else if (c == 'f') {
      take_word("false");
    } else if (c == 'n') {
      take_word("null");
      value.kind = Json::kNull;
    } else {
      read_number(value);
    }
    return value;
  }

  void read_container(Json& value, int depth) {
    const bool is_object = take() == '{';
    const char close = is_object ? '}' : ']';
    value.kind = is_object ? Json::kObject : Json::kList;
    skip_space();
    if (peek() == close) return void(take());
    while (true) {
      std::string name;
      if (is_object) {
        skip_space();
        name = read_text();
        skip_space();
        expect(take() == ':');
      }
      Json item = read(depth + 1);
      if (is_object) value.names.push_back(std::move(name));
      value.items.push_back(std::move(item));
      skip_space();
      const char next = take();
      if (next == close) return;
      expect(next == ',');
    }
  }

  void read_number(Json& value) {
    const size_t begin = at_;
    const auto digits = [&] {
      const size_t first = at_;
      while (peek() >= '0' && peek() <= '9') ++at_;
      expect(at_ > first);
    };
    const bool negative = peek() == '-';
    if (negative) ++at_;
    if (peek() == '0') {
      ++at_;
    } else {
      digits();
    }
    bool whole = !negative;
    if (peek() == '.') whole = false, ++at_, digits();
    if (peek() == 'e' || peek() == 'E') {
      whole = false;
      ++at_;
      if (peek() == '+' || peek() == '-') ++at_;
      digits();
    }
    const std::string text(text_.substr(begin, at_ - begin));
    expect(std::isfinite(std::strtod(text.c_str(), nullptr)));
    errno = 0;
    value.count = whole ? std::strtoull(text.c_str(), nullptr, 10) : 0;
    if (whole && errno == 0) value.kind = Json::kCount;
  }

  uint32_t read_hex() {
    uint32_t code = 0;
    for (int i = 0; i < 4; ++i) {
      const char c = take();
      const char* digits = "0123456789abcdef";
      const char* at = std::strchr(digits, c >= 'A' && c <= 'F' ? c - 'A' + 'a' : c);
      expect(c != '\0' && at);
      code = code * 16 + static_cast<uint32_t>(at - digits);
    }
    return code;
  }

  std::string read_text() {
    expect(take() == '"');
    std::string out;
    while (true) {
      const char c = take();
      if (c == '"') break;
      expect(static_cast<unsigned char>(c) >= 0x20);
      if (c != '\\') {
        out += c;
        continue;
      }
      const char escaped = take();
      const char *names = "\"\\/bfnrt", *values = "\"\\/\b\f\n\r\t";
      if (escaped == 'u') {
        uint32_t code = read_hex();
        expect(code < 0xdc00 || code > 0xdfff);
        if (code >= 0xd800 && code < 0xdc00) {
          expect(take() == '\\' && take() == 'u');
          const uint32_t low = read_hex();
          expect(low >= 0xdc00 && low <= 0xdfff);
          code = 0x10000 + ((code - 0xd800) << 10) + (low - 0xdc00);
        }
        append_utf8(out, code);
      } else {
        const char* at = escaped == '\0' ? nullptr : std::strchr(names, escaped);
        expect(at);
        out += values[at - names];
      }
    }
    expect(find_invalid_utf8(out) == out.size());
    return out;
  }

  std::string_view text_;
  size_t at_ = 0;
};

const std::map<std::string, uint64_t> kBits = {
    {"BOOL", 8},        {"F4", 4},          {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},   {"I8", 8},
    {"F8_E5M2", 8},     {"F8_E4M3", 8},     {"F8_E8M0", 8}, {"I16", 16},    {"U16", 16}, {"F16", 16},
    {"F8_E4M3FNUZ", 8}, {"F8_E5M2FNUZ", 8}, {"BF16", 16},   {"I32", 32},    {"U32", 32}, {"F32", 32},
    {"C64", 64},        {"F64", 64},        {"I64", 64},    {"U64", 64}};

bool all_unique(const Json& object) {
  return std::set<std::string>(object.names.begin(), object.names.end()).size() == object.names.size();
}

const Json* member(const Json& object, const std::string& name) {
  const auto at = std::find(object.names.begin(), object.names.end(), name);
  return at == object.names.end() ? nullptr : &object.items[static_cast<size_t>(at - object.names.begin())];
}

std::optional<std::vector<uint64_t>> counts(const Json* list) {
  if (!list || list->kind != Json::kList) return std::nullopt;
  std::vector<uint64_t> values;
  for (const Json& item : list->items) {
    if (item.kind != Json::kCount) return std::nullopt;
    values.push_back(item.count);
  }
  return values;
}

/// The bytes of one tensor, [begin, end); nullopt if it breaks a rule.
std::optional<std::pair<uint64_t, uint64_t>> place_of(const std::string& name, const Json& tensor) {
  if (tensor.kind != Json::kObject || name.size() > 65535) return std::nullopt;
  for (const unsigned char c : name) {
    if (c < 0x20 || c == 0x7f) return std::nullopt;
  }
  for (const char* key : {"dtype", "shape", "data_offsets"}) {
    if (std::count(tensor.names.begin(), tensor.names.end(), key) != 1) return std::nullopt;
  }
  const Json* dtype = member(tensor, "dtype");
  const auto shape = counts(member(tensor, "shape")), offsets = counts(member(tensor, "data_offsets"));
  if (dtype->kind != Json::kText || !kBits.contains(dtype->text) || !shape || !offsets) return std::nullopt;
  if (shape->size() > 64 || offsets->size() != 2) return std::nullopt;
  constexpr unsigned __int128 kMost = ~uint64_t{0};
  unsigned __int128 size = 1;
  for (const uint64_t dimension : *shape) {
    if (dimension > uint64_t{1} << 63 || dimension == uint64_t{1} << 63) return std::nullopt;
    size *= dimension;
    if (size > kMost) return std::nullopt;
  }
  size *= kBits.at(dtype->text);
  if (size > kMost || size % 8 != 0) return std::nullopt;
  const uint64_t begin = (*offsets)[0], end = (*offsets)[1];
  if (end < begin || end - begin != size / 8) return std::nullopt;
  return std::pair(begin, end);
}

/// The rules, in the order of the format's description.
bool is_valid(std::string_view file) {
  uint64_t length = 0;
  if (file.size() < 8) return false;
  std::memcpy(&length, file.data(), 8);
  if (length > 100'000'000 || length > file.size() - 8) return false;
  const std::string_view text = file.substr(8, length);
  if (!text.starts_with('{') || text.find('\0') != text.npos) return false;
  Json root;
  try {
    root = JsonReader(text).document();
  } catch (...) {
    return false;
  }
  if (!all_unique(root)) return false;
  std::vector<std::pair<uint64_t, uint64_t>> places;
  for (size_t i = 0; i < root.names.size(); ++i) {
    const std::string& name = root.names[i];
    const Json& value = root.items[i];
    if (name == "__metadata__") {
      if (value.kind == Json::kNull) continue;
      if (value.kind != Json::kObject || !all_unique(value)) return false;
      for (const Json& item : value.items) {
        if (item.kind != Json::kText) return false;
      }
      continue;
    }
    const auto place = place_of(name, value);
    if (!place) return false;
    places.push_back(*place);
  }
  std::sort(places.begin(), places.end());
  uint64_t covered = 0;
  for (const auto& [begin, end] : places) {
    if (begin != covered) return false;
    covered = end;
  }
  return covered == file.size() - 8 - length;
}

void check_round_trip(const SafetensorsFile& file) {
  NamedTensors tensors;
  for (const SafetensorsEntry& entry : file.entries()) {
    auto tensor = file.tensor(entry.name);
    if (!tensor.ok()) {
      const bool lacks_dtype = entry.dtype.starts_with("F4") || entry.dtype.starts_with("F6");
      const bool is_empty = entry.begin == entry.end && entry.shape.size() > 2;  // with sizes beyond LibTorch's limit
      require((lacks_dtype || is_empty) && absl::IsUnimplemented(tensor.status()), tensor.status().ToString());
      return;
    }
    require(tensor->sizes() == entry.shape, "the tensor has the entry's shape");
    require(static_cast<int64_t>(tensor->nbytes()) == entry.end - entry.begin, "and its bytes");
    tensors.emplace_back(entry.name, *tensor);
  }
  const std::string path = folder() + "/again.safetensors";
  const absl::Status saved = save_safetensors(Fs::posix(), path, tensors, file.metadata());
  require(saved.ok(), "a value that was read can be written: " + saved.ToString());
  const auto again = SafetensorsFile::open(path);
  require(again.ok(), "a written file can be read: " + again.status().ToString());
  require(again->metadata() == file.metadata(), "the metadata is read back");
  require(again->entries().size() == tensors.size(), "every tensor is read back");
  for (const auto& [name, tensor] : tensors) {
    const auto other = again->tensor(name);
    require(other.ok() && same_bits(*other, tensor), "a tensor is read back");
  }
}

}  // namespace

std::vector<std::string> seeds() {
  const NamedTensors some = {{"h.0.attn", at::arange(6).view({2, 3})},
                             {"half", at::ones({3}, at::kHalf)},
                             {"flag", at::ones({2, 2}, at::kBool)},
                             {"empty", at::empty({0, 4})},
                             {"scalar", at::scalar_tensor(1.5, at::kDouble)}};
  std::vector<std::string> files;
  for (const NamedTensors& tensors : {some, NamedTensors{some[0]}, NamedTensors{}}) {
    const std::string path = folder() + "/seed.safetensors";
    require(save_safetensors(Fs::posix(), path, tensors, {{"format", "pt"}, {"of", "a \"test\""}}).ok(), "a seed");
    files.push_back(read_bytes(path));
  }
  const auto add = [&](const std::string& header, const std::string& data) {
    const uint64_t size = header.size();
    files.push_back(std::string(reinterpret_cast<const char*>(&size), 8) + header + data);
  };
  add(R"({"a":{"dtype":"F4","shape":[4],"data_offsets":[0,2],"x":[{"y":null}]},"__metadata__":null} )", "ab");
  add(R"({"a":{"dtype":"I64","shape":[0,1099511627776,1099511627776],"data_offsets":[0,0]}})", "");
  return files;
}

int test_one_input(const uint8_t* data, size_t size) {
  static MemoryFile memory;
  const std::string_view bytes = as_text(data, size);
  const auto file = SafetensorsFile::open(memory.write(bytes));
  const bool valid = is_valid(bytes);
  require(file.ok() == valid,
          valid ? "a valid file is read: " + file.status().ToString() : "a file that breaks a rule is refused");
  if (!file.ok()) {
    require_named(file.status(), {"weights."});
  } else {
    check_round_trip(*file);
  }
  return 0;
}

const Registered target("safetensors", &seeds, &test_one_input);

}  // namespace trainkit::fuzz::safetensors
