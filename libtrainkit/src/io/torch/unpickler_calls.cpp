// Implements the names allowed in a pickle, and the containers, storages and tensors that they create.
#include <fmt/format.h>

#include <algorithm>
#include <array>

#include "io/torch/unpickler.h"
#include "io/torch/unpickler_limits.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

/// Functions that REDUCE may "call". None of them runs anything except the code below; see Note [Restricted unpickler].
enum class Function : int64_t {
  kOrderedDict,
  kSize,
  kRebuildTensor,
  kRebuildTensorV2,
  kRebuildTensorV3,
  kRebuildParameter,
  kRebuildParameterWithState,
  kRebuildFromType,
  kTensorType,  // only an argument of kRebuildFromType
  kDefaultDict,
  kCounter,
  kSet
};

struct AllowedFunction {
  std::string_view module, name;
  Function function;
};

constexpr AllowedFunction kFunctions[] = {
    {"collections", "OrderedDict", Function::kOrderedDict},
    {"torch", "Size", Function::kSize},
    {"torch._utils", "_rebuild_tensor", Function::kRebuildTensor},
    {"torch._utils", "_rebuild_tensor_v2", Function::kRebuildTensorV2},
    {"torch._utils", "_rebuild_tensor_v3", Function::kRebuildTensorV3},
    {"torch._utils", "_rebuild_parameter", Function::kRebuildParameter},
    {"torch._utils", "_rebuild_parameter_with_state", Function::kRebuildParameterWithState},
    {"torch._tensor", "_rebuild_from_type_v2", Function::kRebuildFromType},
    {"torch", "Tensor", Function::kTensorType},
    {"torch.nn.parameter", "Parameter", Function::kTensorType},
    {"torch.nn.parameter", "Buffer", Function::kTensorType},
    {"collections", "defaultdict", Function::kDefaultDict},
    {"pytorch_lightning.utilities.parsing", "AttributeDict", Function::kDefaultDict},
    {"lightning_fabric.utilities.data", "AttributeDict", Function::kDefaultDict},
    {"lightning.fabric.utilities.data", "AttributeDict", Function::kDefaultDict},
    {"collections", "Counter", Function::kCounter},
    {"builtins", "set", Function::kSet},
    {"__builtin__", "set", Function::kSet},
    {"builtins", "frozenset", Function::kSet},
    {"__builtin__", "frozenset", Function::kSet},
};

/// Classes and functions whose results checkpoints hold next to weights. Their objects are listed, but not read.
struct ListedType {
  std::string_view module, name;
};

constexpr ListedType kTypes[] = {
    {"torch", "device"},
    {"torch.serialization", "_get_layout"},
    {"_codecs", "encode"},
    {"builtins", "bytearray"},
    {"__builtin__", "bytearray"},
    {"builtins", "complex"},
    {"__builtin__", "complex"},
    {"builtins", "slice"},
    {"__builtin__", "slice"},
    {"builtins", "range"},
    {"__builtin__", "xrange"},
    {"builtins", "int"},
    {"__builtin__", "int"},
    {"__builtin__", "long"},
    {"builtins", "float"},
    {"__builtin__", "float"},
    {"builtins", "list"},
    {"__builtin__", "list"},
    {"builtins", "dict"},
    {"__builtin__", "dict"},
    {"builtins", "str"},
    {"__builtin__", "unicode"},
    {"argparse", "Namespace"},
    {"types", "SimpleNamespace"},
    {"pathlib", "PosixPath"},
    {"pathlib", "PurePosixPath"},
    {"pathlib", "WindowsPath"},
    {"pathlib._local", "PosixPath"},
    {"datetime", "datetime"},
    {"datetime", "timedelta"},
    {"numpy", "dtype"},
    {"numpy", "ndarray"},
    {"numpy.core.multiarray", "scalar"},
    {"numpy.core.multiarray", "_reconstruct"},
    {"numpy.core.numeric", "_frombuffer"},
    {"numpy._core.multiarray", "scalar"},
    {"numpy._core.multiarray", "_reconstruct"},
    {"numpy._core.numeric", "_frombuffer"},
    {"numpy.random._pickle", "__randomstate_ctor"},
    {"numpy.random._pickle", "__bit_generator_ctor"},
    {"numpy.random._pickle", "__generator_ctor"},
    {"numpy.random._mt19937", "MT19937"},
    {"numpy.random._pcg64", "PCG64"},
};
static_assert(std::size(kTypes) < 256);

std::string hint_for(std::string_view module, std::string_view name) {
  if (module.starts_with("numpy")) return "in Python, make this NumPy value a tensor or a number first";
  if (name.find("sparse") != name.npos) return "sparse tensors are not read: in Python, call to_dense() first";
  if (name.starts_with('Q') || name == "_rebuild_qtensor")
    return "quantised tensors are not read: in Python, call dequantize() first";
  return kSaveAgain;
}

bool multiply(uint64_t a, uint64_t b, uint64_t& product) {
  return !__builtin_mul_overflow(a, b, &product) && product <= uint64_t{INT64_MAX};
}

}  // namespace

absl::Status Unpickler::push_global(std::string_view module, std::string_view name) {
  for (const AllowedFunction& allowed : kFunctions) {
    if (allowed.module == module && allowed.name == name)
      return push(integer_value(Kind::kFunction, static_cast<int64_t>(allowed.function)));
  }
  for (const ListedType& listed : kTypes) {
    if (listed.module != module || listed.name != name) continue;
    PickleValue type;
    type.kind = Kind::kType;
    type.type = static_cast<uint8_t>(&listed - kTypes);
    return push(type);
  }
  const auto index = [](const TorchDtype* dtype) { return dtype - torch_dtypes().data(); };
  if (module == "torch" || module == "torch.cuda") {
    if (const TorchDtype* dtype = find_torch_storage(name))
      return push(integer_value(Kind::kStorageType, index(dtype)));
  }
  if (module == "torch") {
    if (const TorchDtype* dtype = find_torch_dtype(name)) return push(integer_value(Kind::kDtype, index(dtype)));
  }
  if (name == "UntypedStorage" && (module == "torch.storage" || module == "torch"))
    return push(integer_value(Kind::kStorageType, -1));
  return refuse(fmt::format("global '{}.{}' not allowed", escape_text(module, 60), escape_text(name, 60)), "", "",
                hint_for(module, name));
}

absl::Status Unpickler::call() {
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue arguments, pop());
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue function, pop());
  if (function.kind == Kind::kType) return create_object(function, arguments);
  if (function.kind != Kind::kFunction) return refuse("the called object is not a function", describe(function));
  return call_function(function.integer, arguments);
}

absl::Status Unpickler::call_function(int64_t function, const PickleValue& arguments) {
  if (arguments.kind != Kind::kTuple) return refuse("a function's arguments are no tuple", describe(arguments));
  switch (static_cast<Function>(function)) {
    case Function::kOrderedDict:
      return call_ordered_dict(arguments);
    case Function::kSize:
      if (arguments.size != 1 || tuple(arguments)->kind != Kind::kTuple)
        return refuse("torch.Size of a value that is not a tuple");
      return push(*tuple(arguments));
    case Function::kRebuildTensor:
      return call_rebuild(1, arguments);
    case Function::kRebuildTensorV2:
      return call_rebuild(2, arguments);
    case Function::kRebuildTensorV3:
      return call_rebuild(3, arguments);
    case Function::kRebuildParameter:
      if (arguments.size != 3 || tuple(arguments)->kind != Kind::kTensor) return refuse("a parameter without a tensor");
      return push(*tuple(arguments));
    case Function::kRebuildParameterWithState:  // the attributes of a parameter are not weights
      if (arguments.size != 4 || tuple(arguments)->kind != Kind::kTensor) return refuse("a parameter without a tensor");
      return push(*tuple(arguments));
    case Function::kRebuildFromType:
      return call_rebuild_from_type(arguments);
    case Function::kDefaultDict:
      return push_list(Kind::kDict, {});
    case Function::kCounter:
      return call_container(Kind::kDict, arguments);
    case Function::kSet:
      return call_container(Kind::kList, arguments);
    case Function::kTensorType:
      break;
  }
  return refuse("the called object is not a function");
}

/// Returns the container that is the only argument, or an empty one.
absl::Status Unpickler::call_container(Kind kind, const PickleValue& arguments) {
  if (arguments.size == 0) return push_list(kind, {});
  if (arguments.size != 1 || tuple(arguments)->kind != kind) return refuse("a container of a value that is none");
  return push(*tuple(arguments));
}

/// Reads a tensor with attributes, (function, type, arguments, attributes). The attributes are not weights.
absl::Status Unpickler::call_rebuild_from_type(const PickleValue& arguments) {
  const PickleValue* parts = tuple(arguments);
  const auto is = [](const PickleValue& value, Function function) {
    return value.kind == Kind::kFunction && value.integer == static_cast<int64_t>(function);
  };
  const bool rebuilds = arguments.size == 4 && is(parts[1], Function::kTensorType) &&
                        (is(parts[0], Function::kRebuildTensor) || is(parts[0], Function::kRebuildTensorV2) ||
                         is(parts[0], Function::kRebuildTensorV3) || is(parts[0], Function::kRebuildParameter));
  if (!rebuilds) return refuse("a tensor of an unknown class", "", "torch.Tensor, Parameter or Buffer", kSaveAgain);
  return call_function(parts[0].integer, parts[2]);
}

std::string object_type(uint8_t type) { return fmt::format("{}.{}", kTypes[type].module, kTypes[type].name); }

/// Pushes an object that is listed but not read.
absl::Status Unpickler::create_object(const PickleValue& type, const PickleValue& arguments) {
  if (arguments.kind != Kind::kTuple) return refuse("a function's arguments are no tuple", describe(arguments));
  PickleValue object = reference(Kind::kObject, arguments.offset, arguments.size);
  object.type = type.type;
  return push(object);
}

/// Handles NEWOBJ, the creation of an object of a class.
absl::Status Unpickler::new_object() {
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue arguments, pop());
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue type, pop());
  if (type.kind == Kind::kType) return create_object(type, arguments);
  if (type.kind == Kind::kFunction && type.integer == static_cast<int64_t>(Function::kDefaultDict))
    return push_list(Kind::kDict, {});
  return refuse("opcode not allowed", "0x81", "one that torch.save writes", kSaveAgain);
}

/// Creates an OrderedDict from OrderedDict() or, in files of Python 2, OrderedDict([[key, value], ...]).
absl::Status Unpickler::call_ordered_dict(const PickleValue& arguments) {
  std::vector<PickleValue> items;
  if (arguments.size > 1 || (arguments.size == 1 && tuple(arguments)->kind != Kind::kList))
    return refuse("an OrderedDict of a value that is not a list");
  if (arguments.size == 1) {
    for (const PickleValue& pair : lists_[tuple(arguments)->offset]) {
      const bool is_list = pair.kind == Kind::kList, is_tuple = pair.kind == Kind::kTuple;
      const size_t count = is_list ? lists_[pair.offset].size() : is_tuple ? pair.size : 0;
      if (count != 2) return refuse("an OrderedDict of items that are not pairs", describe(pair));
      const PickleValue* first = is_list ? lists_[pair.offset].data() : tuple(pair);
      items.insert(items.end(), first, first + 2);
    }
    if ((values_ += items.size()) > max_values(tensors_.size()))
      return refuse("the pickle has too many values", "", describe_max_values());
  }
  return push_list(Kind::kDict, std::move(items));
}

/// Handles BUILD, which sets attributes. Accepted only for an OrderedDict and for objects that are not read, and
/// ignored: the `_metadata` of an OrderedDict (versions of modules) is not weights.
absl::Status Unpickler::build() {
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue state, pop());
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return refuse("a value is missing on the stack");
  if (stack_.back().kind == Kind::kObject) return absl::OkStatus();
  if (state.kind != Kind::kDict || stack_.back().kind != Kind::kDict)
    return refuse("attributes are set on an object without attributes", describe(stack_.back()), "an OrderedDict",
                  kSaveAgain);
  return absl::OkStatus();
}

/// Reads a reference to a storage: ("storage", type, key, device, elements). Old files have a sixth item: None, or
/// (key, offset, elements) for a view.
absl::Status Unpickler::persistent_load() {
  TRAINKIT_ASSIGN_OR_RETURN(const PickleValue id, pop());
  const PickleValue* parts = tuple(id);
  if (id.kind != Kind::kTuple || id.size == 0 || parts[0].kind != Kind::kText || text(parts[0]) != "storage") {
    const bool module =
        id.kind == Kind::kTuple && id.size > 0 && parts[0].kind == Kind::kText && text(parts[0]) == "module";
    return refuse(module ? "holds a whole model, whose classes are code" : "a persistent id that is not a storage", "",
                  "", kSaveAgain);
  }
  const bool typed = (id.size == 5 || id.size == 6) && parts[1].kind == Kind::kStorageType &&
                     parts[2].kind == Kind::kText && parts[4].kind == Kind::kInt && parts[4].integer >= 0;
  if (!typed) return refuse("a damaged reference to a storage");
  const TorchDtype* dtype = parts[1].integer < 0 ? nullptr : &torch_dtypes()[static_cast<size_t>(parts[1].integer)];
  TRAINKIT_ASSIGN_OR_RETURN(const uint32_t storage, add_storage(text(parts[2]), dtype, parts[4].integer));
  PickledView view{.storage = storage, .begin = 0, .end = storages_[storage].bytes};
  if (id.size == 6 && parts[5].kind != Kind::kNone) {
    const PickleValue* range = tuple(parts[5]);
    const uint64_t element = dtype ? c10::elementSize(dtype->type) : 1;
    uint64_t size = 0;
    const bool fits = parts[5].kind == Kind::kTuple && parts[5].size == 3 && range[1].kind == Kind::kInt &&
                      range[2].kind == Kind::kInt && range[1].integer >= 0 && range[2].integer >= 0 &&
                      multiply(static_cast<uint64_t>(range[1].integer), element, view.begin) &&
                      multiply(static_cast<uint64_t>(range[2].integer), element, size) && view.begin <= view.end &&
                      size <= view.end - view.begin;
    if (!fits) return refuse("a view of a storage that leaves it", escape_text(text(parts[2])));
    view.end = view.begin + size;
  }
  views_.push_back(view);
  return push(reference(Kind::kStorage, views_.size() - 1));
}

absl::StatusOr<uint32_t> Unpickler::add_storage(std::string_view key, const TorchDtype* dtype, int64_t count) {
  uint64_t bytes = 0;
  if (!multiply(static_cast<uint64_t>(count), dtype ? c10::elementSize(dtype->type) : 1, bytes))
    return refuse("a storage of more than 2^63 bytes", fmt::format("{} elements", count));
  const auto [at, is_new] = storage_of_key_.try_emplace(std::string(key), static_cast<uint32_t>(storages_.size()));
  if (is_new) {
    if (storages_.size() == kMaxTensors)
      return refuse("the pickle has too many storages", "", fmt::format("at most {}", kMaxTensors));
    storages_.push_back({.key = std::string(key), .dtype = dtype, .bytes = bytes});
    return at->second;
  }
  const PickledStorage& known = storages_[at->second];
  if (known.dtype != dtype || known.bytes != bytes)
    return refuse("a storage is declared twice with different types or sizes", escape_text(key));
  return at->second;
}

/// Creates a tensor from (storage, offset, sizes, strides). Version 2 adds requires_grad and hooks, version 3 also a
/// dtype. {"conj": bool, "neg": bool} may follow.
absl::Status Unpickler::call_rebuild(int version, const PickleValue& arguments) {
  constexpr std::array<uint32_t, 3> kCounts = {4, 6, 7};
  const uint32_t count = kCounts.at(static_cast<size_t>(version - 1));
  const PickleValue* parts = tuple(arguments);
  const bool shaped = (arguments.size == count || (version > 1 && arguments.size == count + 1)) &&
                      parts[0].kind == Kind::kStorage && parts[1].kind == Kind::kInt && parts[2].kind == Kind::kTuple &&
                      parts[3].kind == Kind::kTuple && (version < 3 || parts[6].kind == Kind::kDtype);
  if (!shaped) return refuse("a tensor without a storage, an offset, sizes and strides");
  const PickledView& view = views_[parts[0].offset];
  const TorchDtype* dtype =
      version == 3 ? &torch_dtypes()[static_cast<size_t>(parts[6].integer)] : storages_[view.storage].dtype;
  if (!dtype) dtype = find_torch_dtype("uint8");
  PickledTensor tensor{.storage = view.storage,
                       .dtype = static_cast<uint16_t>(dtype - torch_dtypes().data()),
                       .rank = parts[2].size,
                       .offset = 0,
                       .dims = dims_.size()};
  if (tensor.rank != parts[3].size || tensor.rank > kMaxRank)
    return refuse("a tensor whose sizes and strides differ in number",
                  fmt::format("{} and {}", tensor.rank, parts[3].size));
  if (tensors_.size() == kMaxTensors || dims_.size() > kMaxDims)
    return refuse("the pickle has too many tensors", "", fmt::format("at most {}", kMaxTensors));
  for (const PickleValue* list : {&parts[2], &parts[3]}) {
    for (uint32_t i = 0; i < tensor.rank; ++i) {
      const PickleValue& dim = tuple(*list)[i];
      if (dim.kind != Kind::kInt || dim.integer < 0)
        return refuse(
            list == &parts[2] ? "a size is not a non-negative integer" : "a stride is not a non-negative integer",
            dim.kind == Kind::kInt ? fmt::format("{}", dim.integer) : describe(dim));
      dims_.push_back(dim.integer);
    }
  }
  if (parts[1].integer < 0)
    return refuse("a tensor that begins before its storage", fmt::format("{}", parts[1].integer));
  tensor.offset = static_cast<uint64_t>(parts[1].integer);
  TRAINKIT_RETURN_IF_ERROR(check_bounds(view, tensor));
  tensor.offset += view.begin / c10::elementSize(dtype->type);
  if (arguments.size == count + 1 && parts[count].kind == Kind::kDict) {
    const auto& flags = lists_[parts[count].offset];
    for (size_t i = 0; i + 1 < flags.size(); i += 2) {
      const bool set = flags[i + 1].kind == Kind::kBool && flags[i + 1].integer != 0;
      const std::string_view name = flags[i].kind == Kind::kText ? text(flags[i]) : std::string_view();
      if (name == "conj") {
        tensor.conjugated = set;
      } else if (name == "neg") {
        tensor.negated = set;
      } else {
        return refuse("a tensor with an unknown flag", escape_text(name));
      }
    }
  }
  tensors_.push_back(tensor);
  return push(reference(Kind::kTensor, tensors_.size() - 1));
}

/// Checks that every element lies in the view. `offset` still counts from the start of the view.
absl::Status Unpickler::check_bounds(const PickledView& view, const PickledTensor& tensor) const {
  const uint64_t element = c10::elementSize(torch_dtypes()[tensor.dtype].type);
  const int64_t* sizes = dims_.data() + tensor.dims;
  const int64_t* strides = sizes + tensor.rank;
  uint64_t elements = 1, bytes = 0;
  bool empty = false;
  uint64_t last = tensor.offset;
  for (uint32_t i = 0; i < tensor.rank; ++i) {
    empty = empty || sizes[i] == 0;
    const auto size = static_cast<uint64_t>(std::max<int64_t>(sizes[i], 1));
    uint64_t step = 0;
    const bool fits = multiply(elements, size, elements) &&
                      multiply(size - 1, static_cast<uint64_t>(strides[i]), step) &&
                      !__builtin_add_overflow(last, step, &last);
    if (!fits) return refuse("a tensor whose sizes or strides overflow");
  }
  if (!multiply(elements, element, bytes)) return refuse("a tensor whose sizes or strides overflow");
  if (empty) return absl::OkStatus();
  if (view.begin % element != 0) return refuse("a tensor that begins within an element");
  uint64_t end = 0;
  if (last == UINT64_MAX || !multiply(last + 1, element, end) || end > view.end - view.begin) {
    return refuse("a tensor reaches past the end of its storage", fmt::format("element {}", last),
                  fmt::format("at most {} elements", (view.end - view.begin) / element));
  }
  return absl::OkStatus();
}

}  // namespace trainkit::detail
