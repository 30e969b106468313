#include <ATen/core/Tensor.h>
#include <c10/util/Exception.h>
#include <c10/util/strides.h>
#include <fmt/format.h>

#include <bit>
#include <functional>
#include <map>
#include <tuple>
#include <unordered_set>

#include "core/base/utf8.h"
#include "core/device/host_tensors.h"
#include "io/torch/pickle_input.h"
#include "io/torch/pickle_names.h"
#include "io/torch/unpickler.h"
#include "io/torch/zip_writer.h"
#include "io/weights/torch_dtypes.h"
#include "trainkit/core/status.h"
#include "trainkit/io/weight_file.h"

namespace trainkit {
namespace {

using detail::TorchDtype;

absl::Status refuse_tensor(const std::string& name, std::string problem, std::string got = {},
                           std::string expected = {}) {
  return to_status({.exit_code = ExitCode::kBug,
                    .id = "weights.write",
                    .field = name,
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected)},
                   absl::StatusCode::kInvalidArgument);
}

absl::Status check(const NamedTensors& tensors) {
  std::unordered_set<std::string_view> names;
  for (const auto& [name, tensor] : tensors) {
    if (find_invalid_utf8(name) != name.size()) return refuse_tensor(escape_text(name), "is not UTF-8");
    if (!names.insert(name).second) return refuse_tensor(name, "is a duplicate");
    if (!tensor.defined()) return refuse_tensor(name, "is an undefined tensor");
    if (tensor.layout() != at::kStrided || tensor.is_quantized() || tensor.is_meta())
      return refuse_tensor(name, "has no dense data in memory");
    if (!detail::find_torch_dtype(tensor.scalar_type()))
      return refuse_tensor(name, "has a dtype that PyTorch's files lack", c10::toString(tensor.scalar_type()));
  }
  return absl::OkStatus();
}

/// Assigns a storage index to each tensor. Tensors that are the same view of the same memory share one.
std::vector<size_t> number_storages(const NamedTensors& tensors) {
  using View = std::tuple<const void*, at::ScalarType, std::vector<int64_t>, std::vector<int64_t>, bool, bool>;
  std::map<View, size_t> views;
  std::vector<size_t> numbers;
  size_t next = 0;
  for (const auto& named : tensors) {
    const at::Tensor& tensor = named.second;
    const void* data = tensor.numel() == 0 ? nullptr : tensor.const_data_ptr();
    size_t number = next;
    if (data) {
      View view{data,           tensor.scalar_type(), tensor.sizes().vec(), tensor.strides().vec(), tensor.is_conj(),
                tensor.is_neg()};
      number = views.try_emplace(std::move(view), next).first->second;
    }
    next += number == next;
    numbers.push_back(number);
  }
  return numbers;
}

/// Writes the opcodes of torch.save in protocol 2, which torch.load(weights_only=True) requires.
class Pickler {
 public:
  Pickler() { out_ = "\x80\x02"; }

  void global(std::string_view module, std::string_view name) {
    if (recall(fmt::format("{} {}", module, name))) return;
    out_ += fmt::format("c{}\n{}\n", module, name);
    remember();
  }
  void text(std::string_view text) {
    out_ += 'X';
    put(static_cast<uint32_t>(text.size()));
    out_ += text;
  }
  /// Writes a repeated string once, and then by reference to the memo.
  void word(std::string_view word) {
    if (recall(std::string(word))) return;
    text(word);
    remember();
  }
  void integer(int64_t value) {
    if (value >= 0 && value < 256) {
      out_ += 'K';
      out_ += static_cast<char>(value);
    } else if (value >= INT32_MIN && value <= INT32_MAX) {
      out_ += 'J';
      put(static_cast<int32_t>(value));
    } else {
      out_ += "\x8a\x08";
      put(value);
    }
  }
  void real(double value) {  // big-endian, unlike all other values
    uint64_t bits = std::bit_cast<uint64_t>(value);
    out_ += 'G';
    for (int shift = 56; shift >= 0; shift -= 8) out_ += static_cast<char>(bits >> shift);
  }
  void tuple(at::IntArrayRef values) {
    out_ += '(';
    for (const int64_t value : values) integer(value);
    out_ += 't';
  }
  void raw(std::string_view opcodes) { out_ += opcodes; }
  const std::string& bytes() const { return out_; }

 private:
  template <class T>
  void put(T value) {
    out_.append(reinterpret_cast<const char*>(&value), sizeof(T));
  }
  bool recall(const std::string& what) {
    const auto [at, is_new] = memo_.try_emplace(what, memo_.size());
    if (is_new) return false;
    out_ += 'h';
    out_ += static_cast<char>(at->second);
    return true;
  }
  /// Stores the top of the stack as the next memo entry. There are fewer than 256 entries: types and a few words.
  void remember() {
    out_ += 'q';
    out_ += static_cast<char>(memo_.size() - 1);
  }
  std::string out_;
  std::map<std::string, size_t> memo_;
};

void pickle_ordered_dict(Pickler& pickler) {
  pickler.global("collections", "OrderedDict");
  pickler.raw(")R");
}

void pickle_tensor(Pickler& pickler, const at::Tensor& tensor, size_t storage) {
  const TorchDtype& dtype = *detail::find_torch_dtype(tensor.scalar_type());
  const bool typed = !dtype.storage.empty();
  pickler.global("torch._utils", typed ? "_rebuild_tensor_v2" : "_rebuild_tensor_v3");
  pickler.raw("((");
  pickler.word("storage");
  pickler.global(typed ? "torch" : "torch.storage", typed ? dtype.storage : "UntypedStorage");
  pickler.text(std::to_string(storage));
  pickler.word("cpu");
  pickler.integer(typed ? tensor.numel() : static_cast<int64_t>(tensor.nbytes()));
  pickler.raw("tQ");
  pickler.integer(0);
  pickler.tuple(tensor.sizes());
  pickler.tuple(c10::contiguous_strides(tensor.sizes()));
  pickler.raw("\x89");           // requires_grad
  pickle_ordered_dict(pickler);  // hooks
  if (!typed) pickler.global("torch", dtype.name);
  pickler.raw("tR");
}

std::string pickle(const NamedTensors& tensors, const std::vector<size_t>& storages) {
  Pickler pickler;
  pickle_ordered_dict(pickler);
  pickler.raw("(");
  for (size_t i = 0; i < tensors.size(); ++i) {
    pickler.text(tensors[i].first);
    pickle_tensor(pickler, tensors[i].second, storages[i]);
  }
  pickler.raw("u.");
  return pickler.bytes();
}

/// Collects the tensors below `value`, depth first, with the names that TorchFile gives them.
absl::Status gather(const TorchValue& value, const std::string& name, int depth, NamedTensors& tensors) {
  constexpr int kMostLevels = 60;
  if (depth > kMostLevels) return refuse_tensor(name, "is nested too deeply");
  if (value.kind() == TorchValue::Kind::kTensor) tensors.emplace_back(name, std::get<at::Tensor>(value.plain()));
  const std::string start = name.empty() ? "" : name + ".";
  std::unordered_set<std::string_view> keys;
  for (size_t i = 0; i < value.items().size(); ++i) {
    const bool is_dict = value.kind() == TorchValue::Kind::kDict;
    const std::string key = is_dict ? value.keys()[i] : std::to_string(i);
    if (is_dict && !keys.insert(value.keys()[i]).second) return refuse_tensor(start + key, "is a duplicate");
    if (find_invalid_utf8(key) != key.size()) return refuse_tensor(start + escape_text(key), "is not UTF-8");
    TRAINKIT_RETURN_IF_ERROR(gather(value.items()[i], start + key, depth + 1, tensors));
  }
  const auto* text = std::get_if<std::string>(&value.plain());
  if (text && find_invalid_utf8(*text) != text->size()) return refuse_tensor(name, "is text that is not UTF-8");
  return absl::OkStatus();
}

/// Writes `value`. `next` counts tensors in the order of gather().
void pickle_value(Pickler& pickler, const TorchValue& value, const std::vector<size_t>& storages, size_t& next) {
  using Kind = TorchValue::Kind;
  const auto items = [&] {
    for (size_t i = 0; i < value.items().size(); ++i) {
      if (value.kind() == Kind::kDict) pickler.text(value.keys()[i]);
      pickle_value(pickler, value.items()[i], storages, next);
    }
  };
  switch (value.kind()) {
    case Kind::kNone:
      return pickler.raw("N");
    case Kind::kBool:
      return pickler.raw(std::get<bool>(value.plain()) ? "\x88" : "\x89");
    case Kind::kInt:
      return pickler.integer(std::get<int64_t>(value.plain()));
    case Kind::kFloat:
      return pickler.real(std::get<double>(value.plain()));
    case Kind::kText:
      return pickler.text(std::get<std::string>(value.plain()));
    case Kind::kTensor:
      return pickle_tensor(pickler, std::get<at::Tensor>(value.plain()), storages[next++]);
    case Kind::kList:
      return pickler.raw("]("), items(), pickler.raw("e");
    case Kind::kTuple:
      return pickler.raw("("), items(), pickler.raw("t");
    case Kind::kDict:
      return pickler.raw("}("), items(), pickler.raw("u");
  }
}

/// Reads the pickle as TorchFile does, so that every file that is written can be read.
absl::Status check_readable(const std::string& pickled) {
  if (pickled.size() > detail::kMaxPickleBytes)
    return refuse_tensor({}, "these are too many tensors for a PyTorch file",
                         fmt::format("{} bytes of names and sizes", pickled.size()),
                         fmt::format("at most {}", detail::kMaxPickleBytes));
  detail::PickleInput input(pickled, "");
  detail::Unpickler unpickler(input);
  const auto root = unpickler.load();
  const absl::Status status = root.ok() ? detail::name_values(unpickler, *root, "").status() : root.status();
  const auto error = error_of(status);
  return error ? refuse_tensor(error->field, error->problem, error->got, error->expected) : status;
}

/// Writes the archive: the pickle, then each storage once.
absl::Status write_archive(WritableFile& file, const std::string& pickled, const NamedTensors& tensors,
                           const std::vector<size_t>& storages) {
  TRAINKIT_RETURN_IF_ERROR(check_readable(pickled));
  detail::ZipWriter zip(file);
  TRAINKIT_RETURN_IF_ERROR(zip.add("archive/data.pkl", pickled));
  TRAINKIT_RETURN_IF_ERROR(zip.add("archive/byteorder", "little"));
  std::vector<size_t> first;  // first tensor of each storage
  for (size_t i = 0; i < tensors.size(); ++i) {
    if (storages[i] == first.size()) first.push_back(i);
  }
  std::vector<at::Tensor> written;
  written.reserve(first.size());
  for (const size_t i : first) written.push_back(tensors[i].second);
  detail::HostTensors on_host(std::move(written));
  for (size_t next = 0; next < first.size(); ++next) {
    at::Tensor tensor;
    try {
      tensor = on_host.next();
    } catch (...) {
      return annotate(status_from_current_exception(), tensors[first[next]].first);
    }
    TRAINKIT_RETURN_IF_ERROR(zip.add(fmt::format("archive/data/{}", next), tensor.const_data_ptr(), tensor.nbytes()));
  }
  TRAINKIT_RETURN_IF_ERROR(zip.add("archive/version", "3\n"));
  return zip.finish();
}

absl::Status save_atomically(const Fs& fs, const std::string& path,
                             const std::function<absl::Status(WritableFile&)>& write) {
  const auto [parent, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, fs.open_directory(parent));
  return write_file_atomically(directory, name, write);
}

}  // namespace

TorchValue& TorchValue::add(TorchValue value) {
  TORCH_CHECK(kind_ == Kind::kList, "add() is for lists");
  return items_.emplace_back(std::move(value));
}

TorchValue& TorchValue::set(std::string key, TorchValue value) {
  TORCH_CHECK(kind_ == Kind::kDict, "set() is for dicts");
  keys_.push_back(std::move(key));
  return items_.emplace_back(std::move(value));
}

absl::Status save_torch_file(const Fs& fs, const std::string& path, const NamedTensors& tensors) {
  return save_atomically(fs, path, [&](WritableFile& file) {
    TRAINKIT_RETURN_IF_ERROR(check(tensors));
    const std::vector<size_t> storages = number_storages(tensors);
    return write_archive(file, pickle(tensors, storages), tensors, storages);
  });
}

absl::Status save_torch_value(const Fs& fs, const std::string& path, const TorchValue& value) {
  NamedTensors tensors;
  TRAINKIT_RETURN_IF_ERROR(gather(value, "", 0, tensors));
  TRAINKIT_RETURN_IF_ERROR(check(tensors));
  const std::vector<size_t> storages = number_storages(tensors);
  Pickler pickler;
  size_t next = 0;
  pickle_value(pickler, value, storages, next);
  pickler.raw(".");
  return save_atomically(fs, path,
                         [&](WritableFile& file) { return write_archive(file, pickler.bytes(), tensors, storages); });
}

}  // namespace trainkit
