#include <ATen/Functions.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cstring>
#include <numeric>

#include "arrays/files/npy_header.h"
#include "trainkit/arrays/array_file.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {
namespace {

absl::Status bad_file(const std::string& path, const absl::Status& why) {
  return data_error("data.npy", {.file = path}, std::string(why.message()));
}

}  // namespace

absl::StatusOr<at::Tensor> read_npy(const std::string& path) try {
  TRAINKIT_ASSIGN_OR_RETURN(const auto file, MappedFile::open(path));
  const auto header = detail::parse_npy_header(file->text());
  if (!header.ok()) return bad_file(path, header.status());
  const auto bytes = detail::npy_array_bytes(*header, static_cast<int64_t>(file->bytes().size()) - header->data_offset);
  if (!bytes.ok()) return bad_file(path, bytes.status());
  std::vector<int64_t> shape = header->shape;
  if (header->fortran_order) std::reverse(shape.begin(), shape.end());
  at::Tensor tensor = at::empty(shape, at::TensorOptions().dtype(header->dtype));
  if (*bytes > 0)
    std::memcpy(tensor.data_ptr(), file->bytes().data() + header->data_offset, static_cast<size_t>(*bytes));
  TRAINKIT_RETURN_IF_ERROR(file->check());
  // A bool with a byte other than 0 and 1 would be undefined behaviour.
  if (header->dtype == at::kBool) tensor = tensor.view(at::kByte).ne(0);
  if (!header->fortran_order) return tensor;
  std::vector<int64_t> order(shape.size());
  std::iota(order.rbegin(), order.rend(), 0);
  return tensor.permute(order).contiguous();
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

absl::Status write_npy(const std::string& path, const at::Tensor& tensor) {
  const std::string_view dtype = detail::npy_dtype_name(tensor.scalar_type());
  if (dtype.empty()) {
    return absl::InvalidArgumentError(path + ": NumPy has no dtype " + c10::toString(tensor.scalar_type()));
  }
  const std::string comma = tensor.dim() == 1 ? "," : "";
  std::string header = fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype,
                                   fmt::join(tensor.sizes(), ", "), comma);
  // As in numpy.lib.format: space for a first size of 21 digits, so that the file can grow, and for an aligned header
  // one to 64 blanks.
  constexpr size_t kBefore = 10, kAlignment = 64, kMostDigits = 21;
  if (tensor.dim() > 0) header.append(kMostDigits - std::to_string(tensor.size(0)).size(), ' ');
  header.append(kAlignment - (kBefore + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());  // far below 65,536: at most 64 dimensions
  std::string begin = "\x93NUMPY";
  begin += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  begin += header;
  const at::Tensor data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& file) -> absl::Status {
    TRAINKIT_RETURN_IF_ERROR(file.append(begin));
    return file.append(data.const_data_ptr(), data.nbytes());
  });
}

}  // namespace trainkit
