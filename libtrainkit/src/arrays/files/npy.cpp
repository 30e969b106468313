#include "arrays/files/npy.h"

#include <ATen/Functions.h>
#include <c10/util/Exception.h>
#include <c10/util/accumulate.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

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

absl::StatusOr<detail::StoredArray> detail::find_npy(std::shared_ptr<const MappedFile> file, int64_t begin,
                                                     int64_t size) {
  TRAINKIT_ASSIGN_OR_RETURN(NpyHeader header, parse_npy_header(file->text().substr(begin, size)));
  TRAINKIT_RETURN_IF_ERROR(npy_array_bytes(header, size - header.data_offset).status());
  return StoredArray{.file = std::move(file),
                     .offset = begin + header.data_offset,
                     .dtype = header.dtype,
                     .sizes = header.shape,
                     .order = npy_order(header)};
}

absl::StatusOr<detail::StoredArray> detail::open_npy(std::shared_ptr<const MappedFile> file) {
  const auto size = static_cast<int64_t>(file->bytes().size());
  auto array = find_npy(file, 0, size);
  return array.ok() ? std::move(array) : bad_file(file->path(), array.status());
}

absl::StatusOr<at::Tensor> read_npy(const std::string& path) try {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  TRAINKIT_ASSIGN_OR_RETURN(const detail::StoredArray array, detail::open_npy(std::move(file)));
  return array.read();
} catch (...) {
  return annotate(status_from_current_exception(), path);
}

absl::Status write_npy(const std::string& path, const at::Tensor& tensor) {
  const at::Tensor data = tensor.detach().cpu().resolve_conj().resolve_neg().contiguous();
  return write_npy(path, data.scalar_type(), data.sizes(), [&](const AppendElements& append) { return append(data); });
}

absl::Status write_npy(const std::string& path, at::ScalarType scalar_type, at::IntArrayRef sizes,
                       const WriteElements& write) {
  const std::string_view dtype = detail::npy_dtype_name(scalar_type);
  if (dtype.empty()) {
    return absl::InvalidArgumentError(path + ": NumPy has no dtype " + c10::toString(scalar_type));
  }
  const std::string comma = sizes.size() == 1 ? "," : "";
  std::string header =
      fmt::format("{{'descr': '{}', 'fortran_order': False, 'shape': ({}{}), }}", dtype, fmt::join(sizes, ", "), comma);
  // As in numpy.lib.format: space for a first size of 21 digits, so that the file can grow, and for an aligned header
  // one to 64 blanks.
  constexpr size_t kBefore = 10, kAlignment = 64, kMostDigits = 21;
  if (!sizes.empty()) header.append(kMostDigits - std::to_string(sizes[0]).size(), ' ');
  header.append(kAlignment - (kBefore + header.size() + 1) % kAlignment, ' ');
  header += '\n';
  const auto length = static_cast<uint16_t>(header.size());  // far below 65,536: at most 64 dimensions
  std::string begin = "\x93NUMPY";
  begin += {'\x01', '\x00', static_cast<char>(length & 0xff), static_cast<char>(length >> 8)};
  begin += header;
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  return write_file_atomically(directory, name, [&](WritableFile& file) -> absl::Status {
    int64_t left = c10::multiply_integers(sizes);
    TRAINKIT_RETURN_IF_ERROR(file.append(begin));
    TRAINKIT_RETURN_IF_ERROR(write([&](const at::Tensor& elements) {
      TORCH_CHECK_VALUE(elements.scalar_type() == scalar_type, "elements: expected ", scalar_type, ", got ",
                        elements.scalar_type());
      left -= elements.numel();
      const at::Tensor data = elements.contiguous();
      return file.append(data.const_data_ptr(), data.nbytes());
    }));
    TORCH_CHECK_VALUE(left == 0, "an array of ", sizes, " got another number of elements");
    return absl::OkStatus();
  });
}

}  // namespace trainkit
