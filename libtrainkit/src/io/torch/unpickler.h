#pragma once
/// Reads pickles with a restricted stack machine: only opcodes that build data, and only the few names that torch.save
/// writes. It calls nothing; see Note [Restricted unpickler].

#include <absl/status/statusor.h>

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "io/torch/pickle_input.h"
#include "io/weights/torch_dtypes.h"

namespace trainkit::detail {

/// A value of a pickle; 16 bytes.
struct PickleValue {
  enum class Kind : uint8_t {
    kNone,
    kBool,         ///< integer
    kInt,          ///< integer
    kFloat,        ///< number
    kBigInt,       ///< size bytes from offset, little-endian two's complement
    kText,         ///< size bytes from offset
    kBytes,        ///< size bytes from offset
    kTuple,        ///< size values from offset, in tuples()
    kList,         ///< lists()[offset]; also a set
    kDict,         ///< lists()[offset]: key, value, key, value, ...
    kFunction,     ///< integer is a Function
    kDtype,        ///< torch_dtypes()[integer]
    kStorageType,  ///< torch_dtypes()[integer]; -1 if untyped
    kStorage,      ///< views()[offset]
    kTensor,       ///< tensors()[offset]
    kType,         ///< a class whose objects are listed but not read: `type`
    kObject,       ///< an object of `type`; size constructor arguments from offset, in tuples()
    kUnset
  };
  Kind kind = Kind::kNone;
  /// Of kType and kObject; see object_type().
  uint8_t type = 0;
  uint32_t size = 0;
  union {
    int64_t integer = 0;
    uint64_t offset;
    double number;
  };
};

/// "torch.device", for example.
std::string object_type(uint8_t type);

/// A storage that the pickle refers to. Its bytes are outside the pickle.
struct PickledStorage {
  std::string key;
  const TorchDtype* dtype;  // nullptr: untyped
  uint64_t bytes;
};

/// A range of a storage.
struct PickledView {
  uint32_t storage;
  uint64_t begin, end;  // bytes
};

struct PickledTensor {
  uint32_t storage;
  uint16_t dtype;  // torch_dtypes()[dtype]
  bool conjugated = false, negated = false;
  uint32_t rank;
  /// Offset from the start of the storage, in elements.
  uint64_t offset;
  /// Index in dims() of `rank` sizes followed by `rank` strides.
  uint64_t dims;
};

/// Reads consecutive pickles from one input and keeps the storages and tensors of all of them. Limits memory use; see
/// Note [Restricted unpickler].
class Unpickler {
 public:
  explicit Unpickler(PickleInput& input) : input_(input) {}

  /// Reads one pickle, up to and including its STOP opcode. Errors: weights.pickle, exit code 5, with the offset of the
  /// opcode.
  absl::StatusOr<PickleValue> load();

  const PickleInput& input() const { return input_; }
  std::string_view text(const PickleValue& value) const { return input_.view(value.offset, value.size); }
  const std::vector<PickleValue>& tuples() const { return tuples_; }
  const std::vector<std::vector<PickleValue>>& lists() const { return lists_; }
  const std::vector<PickledStorage>& storages() const { return storages_; }
  const std::vector<PickledView>& views() const { return views_; }
  const std::vector<PickledTensor>& tensors() const { return tensors_; }
  const std::vector<int64_t>& dims() const { return dims_; }

 private:
  using Kind = PickleValue::Kind;
  absl::Status run(uint8_t opcode);
  absl::Status run_text(uint8_t opcode);
  absl::Status run_number(uint8_t opcode);
  absl::Status run_container(uint8_t opcode);
  absl::Status run_memo(uint8_t opcode);
  absl::Status push(PickleValue value);
  absl::Status push_text(Kind kind, int length_bytes);
  absl::Status push_integer(std::string_view little_endian);
  absl::Status push_tuple(size_t count);
  absl::Status push_list(Kind kind, std::vector<PickleValue> items);
  absl::Status push_global(std::string_view module, std::string_view name);
  absl::Status add_items(Kind kind, size_t from);
  absl::Status remember(uint64_t index);
  absl::Status recall(uint64_t index);
  absl::Status call();
  absl::Status call_function(int64_t function, const PickleValue& arguments);
  absl::Status create_object(const PickleValue& type, const PickleValue& arguments);
  absl::Status new_object();
  absl::Status build();
  absl::Status call_container(PickleValue::Kind kind, const PickleValue& arguments);
  absl::Status call_rebuild_from_type(const PickleValue& arguments);
  absl::Status call_ordered_dict(const PickleValue& arguments);
  absl::Status call_rebuild(int version, const PickleValue& arguments);
  absl::Status persistent_load();
  absl::StatusOr<uint32_t> add_storage(std::string_view key, const TorchDtype* dtype, int64_t count);
  absl::Status check_bounds(const PickledView& view, const PickledTensor& tensor) const;
  absl::StatusOr<PickleValue> pop();
  absl::StatusOr<size_t> pop_mark();
  absl::StatusOr<uint64_t> number(int bytes);
  /// Returns a tuple's first value, or nullptr if `value` is not a tuple.
  const PickleValue* tuple(const PickleValue& value) const {
    return value.kind == Kind::kTuple ? tuples_.data() + value.offset : nullptr;
  }
  absl::Status refuse(std::string problem, std::string got = {}, std::string expected = {},
                      std::string hint = {}) const;
  std::string describe(const PickleValue& value) const;

  PickleInput& input_;
  uint64_t opcode_at_ = 0;
  uint64_t values_ = 0;
  std::vector<PickleValue> stack_, memo_, tuples_;
  std::vector<size_t> marks_;
  std::vector<std::vector<PickleValue>> lists_;
  std::vector<PickledStorage> storages_;
  std::vector<PickledView> views_;
  std::vector<PickledTensor> tensors_;
  std::vector<int64_t> dims_;
  std::unordered_map<std::string, uint32_t> storage_of_key_;
};

}  // namespace trainkit::detail
