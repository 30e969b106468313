// Reads MAT files of version 5.
// Source: "MAT-File Format", The MathWorks, R2019b.
#include <ATen/Functions.h>
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>

#include "arrays/files/stored_array.h"
#include "arrays/matlab/mat5_element.h"
#include "arrays/matlab/mat_source.h"
#include "arrays/matlab/matio_bridge.h"
#include "core/files/array_bytes.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kHeaderBytes = 128;
constexpr uint32_t kComplexFlag = 0x0800, kLogicalFlag = 0x0200;
constexpr size_t kMostVariables = 10'000, kMostDimensions = 32, kMostNameBytes = 4096;

/// Storage types, indexed by their number in the file.
struct StorageType {
  std::string_view name;
  std::optional<at::ScalarType> dtype = {};
};
const std::array<StorageType, 14> kStorage = {{{},
                                               {"miINT8", at::kChar},
                                               {"miUINT8", at::kByte},
                                               {"miINT16", at::kShort},
                                               {"miUINT16", at::kUInt16},
                                               {"miINT32", at::kInt},
                                               {"miUINT32", at::kUInt32},
                                               {"miSINGLE", at::kFloat},
                                               {},
                                               {"miDOUBLE", at::kDouble},
                                               {},
                                               {},
                                               {"miINT64", at::kLong},
                                               {"miUINT64", at::kUInt64}}};
constexpr uint32_t kInt32 = 5, kUint32 = 6;

StorageType storage_type(uint32_t type) { return type < kStorage.size() ? kStorage[type] : StorageType{}; }

int64_t width_of(at::ScalarType dtype) { return static_cast<int64_t>(c10::elementSize(dtype)); }

/// Whether an array of `dtype` may be stored as `stored`: MATLAB uses the smallest type that holds all values.
bool may_hold(at::ScalarType dtype, at::ScalarType stored) {
  if (dtype == at::kBool) return width_of(stored) == 1;
  if (dtype == at::kDouble) return true;
  const bool is_float = c10::isFloatingType(stored);
  if (dtype == at::kFloat) return !is_float || stored == at::kFloat;
  if (is_float) return false;
  const bool is_signed = c10::isSignedType(dtype);
  if (is_signed == c10::isSignedType(stored)) return width_of(stored) <= width_of(dtype);
  return is_signed && width_of(stored) < width_of(dtype);
}

/// The header of an array before its data, raw and decoded.
struct Head {
  uint32_t flags = 0;
  int class_number = 0;
  std::string name;
  std::vector<int64_t> sizes;
};

template <class Number>
std::vector<Number> numbers_in(const std::string& bytes, bool swap) {
  std::vector<Number> numbers(bytes.size() / sizeof(Number));
  if (!numbers.empty()) std::memcpy(numbers.data(), bytes.data(), numbers.size() * sizeof(Number));
  if (swap) std::transform(numbers.begin(), numbers.end(), numbers.begin(), swapped<Number>);
  return numbers;
}

absl::Status read_sizes(ElementReader& reader, bool swap, Head& head) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto sizes, reader.read_small("sizes", kMostDimensions * sizeof(int32_t)));
  if (sizes.first != kInt32 || sizes.second.size() % sizeof(int32_t) != 0) {
    return absl::InvalidArgumentError("the sizes are not a list of miINT32");
  }
  for (const int32_t size : numbers_in<int32_t>(sizes.second, swap)) head.sizes.push_back(size);
  if (head.sizes.size() < 2)
    return absl::InvalidArgumentError(fmt::format("has {} dimensions, at least 2 are needed", head.sizes.size()));
  for (const int64_t size : head.sizes) {
    if (size < 0) return absl::InvalidArgumentError(fmt::format("a size of {}", size));
  }
  return absl::OkStatus();
}

absl::Status read_head(ElementReader& reader, bool swap, Head& head) {
  TRAINKIT_ASSIGN_OR_RETURN(const auto flags, reader.read_small("array flags", 8));
  if (flags.first != kUint32 || flags.second.size() != 8)
    return absl::InvalidArgumentError("the array flags are not two miUINT32");
  head.flags = numbers_in<uint32_t>(flags.second, swap)[0];
  head.class_number = static_cast<int>(head.flags & 0xff);
  if (mat_class_name(head.class_number).empty())
    return absl::InvalidArgumentError(fmt::format("class {} is not known", head.class_number));
  if (head.class_number != static_cast<int>(MatClass::kOpaque))
    TRAINKIT_RETURN_IF_ERROR(read_sizes(reader, swap, head));
  TRAINKIT_ASSIGN_OR_RETURN(auto name, reader.read_small("name", kMostNameBytes));
  const auto letters = storage_type(name.first).dtype;
  if (!letters || width_of(*letters) != 1) return absl::InvalidArgumentError("the name is not of miINT8");
  head.name = std::move(name.second);
  if (head.name.find('\0') != head.name.npos) return absl::InvalidArgumentError("the name has a zero byte");
  return absl::OkStatus();
}

MatVariable describe(const Head& head) {
  MatVariable variable{
      .name = head.name, .type = std::string(mat_class_name(head.class_number)), .dtype = {}, .sizes = head.sizes};
  if (head.flags & kComplexFlag) {
    variable.type = "complex " + variable.type;
  } else {
    variable.dtype = mat_class_dtype(head.class_number);
  }
  if (variable.dtype && (head.flags & kLogicalFlag)) {
    variable.type = "logical";
    variable.dtype = head.class_number == static_cast<int>(MatClass::kUint8) ? std::optional(at::kBool) : std::nullopt;
  }
  return variable;
}

/// Reverses the bytes of each number of a contiguous tensor.
class Mat5 final : public MatSource {
 public:
  Mat5(std::shared_ptr<const MappedFile> file, std::vector<MatVariable> variables, std::vector<Element> elements,
       bool swap, const MatOptions& options)
      : MatSource(file->path(), std::move(variables)),
        file_(std::move(file)),
        elements_(std::move(elements)),
        swap_(swap),
        options_(options) {}

  absl::StatusOr<at::Tensor> read(size_t index) const override {
    const Element& element = elements_[index];
    ElementReader reader(element, swap_);
    auto tensor = read(reader, variables()[index]);
    TRAINKIT_RETURN_IF_ERROR(file_->check());  // before reporting on bytes that may be missing
    if (tensor.ok() || error_of(tensor.status())) return tensor;
    return mat_error({.path = path(),
                      .offset = reader.offset(),
                      .variable = variables()[index].name,
                      .problem = std::string(tensor.status().message())},
                     tensor.status().code());
  }

 private:
  absl::StatusOr<at::Tensor> read(ElementReader& reader, const MatVariable& variable) const {
    TRAINKIT_RETURN_IF_ERROR(reader.open(options_.max_variable_bytes));
    Head head;
    TRAINKIT_RETURN_IF_ERROR(read_head(reader, swap_, head));
    TRAINKIT_ASSIGN_OR_RETURN(const auto tag, reader.read_tag());
    TRAINKIT_RETURN_IF_ERROR(check_data(tag, variable));
    TRAINKIT_RETURN_IF_ERROR(reader.claim(tag.bytes));

    const std::vector<int64_t> sizes(variable.sizes.rbegin(), variable.sizes.rend());
    const at::Tensor columns = at::empty(sizes, *storage_type(tag.type).dtype);
    if (tag.bytes > 0) TRAINKIT_RETURN_IF_ERROR(reader.read(columns.data_ptr(), tag.bytes));
    TRAINKIT_RETURN_IF_ERROR(reader.skip_padding(tag));
    TRAINKIT_RETURN_IF_ERROR(reader.finish());
    if (swap_) swap_bytes(columns);
    return row_major(*variable.dtype == at::kBool ? columns : columns.to(*variable.dtype), variable);
  }

  absl::Status check_data(const ElementReader::Tag& tag, const MatVariable& variable) const {
    const StorageType stored = storage_type(tag.type);
    if (!stored.dtype) return absl::InvalidArgumentError(fmt::format("data of type {} is not known", tag.type));
    if (!may_hold(*variable.dtype, *stored.dtype)) {
      return absl::InvalidArgumentError(fmt::format("an array of {} cannot hold {}", variable.type, stored.name));
    }
    const int64_t bytes = array_bytes(variable.sizes, width_of(*variable.dtype));
    const std::string sizes = describe_sizes(variable.sizes);
    if (bytes < 0) return absl::InvalidArgumentError(fmt::format("a size of {} overflows", sizes));
    if (bytes > std::min<int64_t>(options_.max_variable_bytes, std::numeric_limits<int32_t>::max())) {
      return absl::InvalidArgumentError(fmt::format("an array of {} takes {}, more than version 5 and the limit allow",
                                                    sizes, describe_bytes(bytes)));
    }
    const int64_t expected = array_bytes(variable.sizes, width_of(*stored.dtype));
    if (tag.bytes != expected) {
      return absl::DataLossError(fmt::format("an array of {} {} needs {} bytes of data, the file has {} (truncated?)",
                                             sizes, stored.name, expected, tag.bytes));
    }
    return absl::OkStatus();
  }

  std::shared_ptr<const MappedFile> file_;
  std::vector<Element> elements_;
  bool swap_;
  MatOptions options_;
};

/// Returns the top-level element at `offset`.
absl::StatusOr<Element> element_at(std::span<const std::byte> bytes, int64_t offset, bool swap) {
  const int64_t left = static_cast<int64_t>(bytes.size()) - offset;
  if (left < kMatTagBytes)
    return absl::DataLossError(fmt::format("{} bytes, too few for a variable (truncated?)", left));
  std::array<uint32_t, 2> tag;
  std::memcpy(tag.data(), bytes.data() + offset, sizeof tag);
  if (swap) tag = {swapped(tag[0]), swapped(tag[1])};
  const auto [type, claimed] = tag;
  if (type != kMatMatrix && type != kMatCompressed)
    return absl::InvalidArgumentError(fmt::format("element of type {} is not a variable", type));
  if (claimed > left - kMatTagBytes) {
    return absl::DataLossError(
        fmt::format("element claims {} bytes, {} remain (truncated?)", claimed, left - kMatTagBytes));
  }
  return Element{offset, bytes.subspan(static_cast<size_t>(offset + kMatTagBytes), claimed), type == kMatCompressed};
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MatSource>> open_mat5(std::shared_ptr<const MappedFile> file,
                                                           const MatOptions& options) {
  const auto bytes = file->bytes();
  const bool swap = static_cast<char>(bytes[126]) == (std::endian::native == std::endian::little ? 'M' : 'I');
  std::vector<MatVariable> variables;
  std::vector<Element> elements;
  for (int64_t offset = kHeaderBytes; offset < static_cast<int64_t>(bytes.size());) {
    const auto fail = [&](const absl::Status& status, int64_t where, const std::string& name) {
      if (absl::Status shrunk = file->check(); !shrunk.ok()) return shrunk;
      return mat_error(
          {.path = file->path(), .offset = where, .variable = name, .problem = std::string(status.message())},
          status.code());
    };
    const auto element = element_at(bytes, offset, swap);
    if (!element.ok()) return fail(element.status(), offset, "");
    ElementReader reader(*element, swap);
    Head head;
    absl::Status status = reader.open(std::numeric_limits<uint32_t>::max());
    if (status.ok()) status = read_head(reader, swap, head);
    if (!status.ok()) return fail(status, reader.offset(), head.name);
    offset = element->offset + kMatTagBytes + static_cast<int64_t>(element->bytes.size());
    if (head.name.empty()) continue;  // MATLAB's internal objects
    if (variables.size() == kMostVariables)
      return fail(absl::InvalidArgumentError(fmt::format("more than {} variables", kMostVariables)), element->offset,
                  "");
    variables.push_back(describe(head));
    elements.push_back(*element);
  }
  TRAINKIT_RETURN_IF_ERROR(file->check());
  return std::make_shared<const Mat5>(std::move(file), std::move(variables), std::move(elements), swap, options);
}

}  // namespace trainkit::detail
