#include "io/torch/pickle_names.h"

#include <fmt/format.h>

#include <algorithm>
#include <unordered_set>

#include "core/base/utf8.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int kMaxNestedNames = 64;
constexpr size_t kMaxPickledNameBytes = 65535;
// The same container can be in many others, so a small pickle could expand to any number of names.
constexpr size_t kMaxVisits = 4'000'000;
constexpr size_t kMaxNamedTensors = 1 << 18;
constexpr size_t kMaxAllNamesBytes = 64 << 20;
constexpr size_t kMaxNamedValues = 1 << 16;

class Namer {
 public:
  using Kind = PickleValue::Kind;
  Namer(const Unpickler& pickle, const std::string& path) : pickle_(pickle), path_(path) {}

  absl::Status visit(const PickleValue& value, int depth) {
    if (++visits_ > kMaxVisits) return refuse("holds too many values");
    switch (value.kind) {
      case Kind::kTensor:
      case Kind::kStorage:
        return add_tensor(value);
      case Kind::kTuple:
        return visit_items(pickle_.tuples().data() + value.offset, value.size, depth);
      case Kind::kList: {
        const auto& items = pickle_.lists()[value.offset];
        return visit_items(items.data(), items.size(), depth);
      }
      case Kind::kDict:
        return visit_dict(pickle_.lists()[value.offset], depth);
      default:
        add_value(value);
        return absl::OkStatus();
    }
  }

  PickleNames names;

 private:
  absl::Status refuse(std::string problem, std::string got = {}, std::string expected = {}) const {
    return to_status({.exit_code = ExitCode::kWeights,
                      .id = "weights.pickle",
                      .where = path_,
                      .field = name_.substr(0, 120),
                      .problem = std::move(problem),
                      .got = std::move(got),
                      .expected = std::move(expected)});
  }

  absl::Status visit_items(const PickleValue* items, size_t count, int depth) {
    for (size_t i = 0; i < count; ++i) TRAINKIT_RETURN_IF_ERROR(visit_child(std::to_string(i), items[i], depth));
    return absl::OkStatus();
  }

  absl::Status visit_dict(const std::vector<PickleValue>& items, int depth) {
    for (size_t i = 0; i + 1 < items.size(); i += 2) {
      const PickleValue& key = items[i];
      if (key.kind == Kind::kText) {
        const std::string_view text = pickle_.text(key);
        const auto is_control = [](char c) { return static_cast<unsigned char>(c) < 0x20 || c == 0x7f; };
        if (find_invalid_utf8(text) != text.size() || std::any_of(text.begin(), text.end(), is_control))
          return refuse("has a key with control characters or invalid UTF-8", escape_text(text));
        TRAINKIT_RETURN_IF_ERROR(visit_child(text, items[i + 1], depth));
      } else if (key.kind == Kind::kInt) {
        TRAINKIT_RETURN_IF_ERROR(visit_child(std::to_string(key.integer), items[i + 1], depth));
      } else {
        return refuse("has a key that is neither text nor an integer");
      }
    }
    return absl::OkStatus();
  }

  absl::Status visit_child(std::string_view key, const PickleValue& value, int depth) {
    const size_t length = name_.size();
    container_bytes_.push_back(length);
    if (depth > 0) name_ += '.';
    name_ += key;
    if (name_.size() > kMaxPickledNameBytes) return refuse("has too long a name");
    if (depth == kMaxNestedNames)
      return refuse("is nested too deeply", "", fmt::format("at most {} levels", kMaxNestedNames));
    absl::Status status = visit(value, depth + 1);
    if (status.ok()) name_.resize(length);
    container_bytes_.pop_back();
    return status;
  }

  absl::Status add_tensor(const PickleValue& value) {
    if (!seen_.insert(name_).second) return refuse("is a duplicate");
    all_names_bytes_ += name_.size();
    if (names.tensors.size() == kMaxNamedTensors || all_names_bytes_ > kMaxAllNamesBytes)
      return refuse("holds too many tensors", "", fmt::format("at most {}", kMaxNamedTensors));
    names.tensors.emplace_back(name_, value);
    const std::string container = container_bytes_.empty() ? "" : name_.substr(0, container_bytes_.back());
    if (containers_.insert(container).second) names.containers.push_back(container);
    return absl::OkStatus();
  }

  void add_value(const PickleValue& value) {
    if (names.values.size() == kMaxNamedValues || all_names_bytes_ > kMaxAllNamesBytes) return;
    all_names_bytes_ += name_.size();
    names.values.emplace_back(name_, describe(value));
  }

  std::string describe(const PickleValue& value) const {
    switch (value.kind) {
      case Kind::kNone:
        return "None";
      case Kind::kBool:
        return value.integer ? "True" : "False";
      case Kind::kInt:
        return std::to_string(value.integer);
      case Kind::kFloat:
        return fmt::format("{}", value.number);
      case Kind::kText:
        return escape_text(pickle_.text(value));
      case Kind::kDtype:
        return fmt::format("torch.{}", torch_dtypes()[static_cast<size_t>(value.integer)].name);
      case Kind::kBigInt:
        return fmt::format("an integer of {} bytes", value.size);
      case Kind::kBytes:
        return fmt::format("{} bytes", value.size);
      case Kind::kObject:
        return describe_object(value);
      default:
        return "a type";
    }
  }

  std::string describe_object(const PickleValue& value) const {
    const std::string type = object_type(value.type);
    const PickleValue* arguments = pickle_.tuples().data() + value.offset;
    if (type != "torch.device" && type != "torch.serialization._get_layout") return type + " (not read)";
    std::string text;
    for (uint32_t i = 0; i < value.size; ++i) {
      const bool is_plain = arguments[i].kind == Kind::kText || arguments[i].kind == Kind::kInt;
      if (is_plain) text += (i == 0 ? "" : ":") + describe(arguments[i]);
    }
    return text;  // "cuda:0", "torch.strided"
  }

  const Unpickler& pickle_;
  const std::string& path_;
  std::string name_;
  std::vector<size_t> container_bytes_;  // name lengths of the enclosing containers
  size_t visits_ = 0, all_names_bytes_ = 0;
  std::unordered_set<std::string> seen_, containers_;
};

}  // namespace

absl::StatusOr<PickleNames> name_values(const Unpickler& pickle, const PickleValue& root, const std::string& path) {
  Namer namer(pickle, path);
  TRAINKIT_RETURN_IF_ERROR(namer.visit(root, 0));
  return std::move(namer.names);
}

}  // namespace trainkit::detail
