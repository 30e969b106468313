#include <cstring>

#include "arrays/files/npy_header.h"
#include "data/datasets/copy_rows.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"
#include "trainkit/data/tensor_dataset.h"

namespace trainkit {
namespace {

absl::Status bad_file(const std::string& id, const std::string& path, const std::string& problem,
                      const std::string& got = "", const std::string& expected = "") {
  return data_error(id, {.file = path}, problem, got, expected);
}

}  // namespace

absl::StatusOr<std::shared_ptr<const MappedArrayDataset>> MappedArrayDataset::open_npy(const std::string& path,
                                                                                       const std::string& field) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const auto header = detail::parse_npy_header(file->text());
  if (!header.ok()) return bad_file("data.npy", path, std::string(header.status().message()));
  if (header->shape.empty())
    return bad_file("data.npy", path, "the array is a scalar; expected at least one dimension");
  if (header->fortran_order) {
    return bad_file("data.npy", path, "Fortran order is not supported; save numpy.ascontiguousarray(array)");
  }
  const int64_t available = static_cast<int64_t>(file->bytes().size()) - header->data_offset;
  if (const auto bytes = detail::npy_array_bytes(*header, available); !bytes.ok()) {
    return bad_file("data.npy", path, std::string(bytes.status().message()));
  }
  FieldSpec spec{field, header->dtype, {header->shape.begin() + 1, header->shape.end()}};
  return std::shared_ptr<const MappedArrayDataset>(
      new MappedArrayDataset(std::move(file), std::move(spec), header->data_offset, header->shape.front()));
}

absl::StatusOr<std::shared_ptr<const MappedArrayDataset>> MappedArrayDataset::open_raw(const std::string& path,
                                                                                       FieldSpec field) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const auto bytes = static_cast<int64_t>(file->bytes().size()), row_bytes = field.row_bytes();
  if (row_bytes <= 0 || bytes % row_bytes != 0) {
    return bad_file("data.array", path, "the file size is not a multiple of the row size",
                    std::to_string(bytes) + " bytes", "a multiple of " + std::to_string(row_bytes) + " bytes");
  }
  return std::shared_ptr<const MappedArrayDataset>(
      new MappedArrayDataset(std::move(file), std::move(field), 0, bytes / row_bytes));
}

MappedArrayDataset::MappedArrayDataset(std::shared_ptr<const MappedFile> file, FieldSpec field, int64_t offset,
                                       int64_t size)
    : file_(std::move(file)),
      fields_({std::move(field)}),
      rows_(file_->bytes().data() + offset),
      row_bytes_(fields_[0].row_bytes()),
      size_(size) {}

// Fails if the file was truncated: the bytes just read may then be zeros.
void MappedArrayDataset::check() const {
  if (const absl::Status status = file_->check(); !status.ok()) throw absl::BadStatusOrAccess(status);
}

void MappedArrayDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  std::memcpy(out.row(0, at), rows_ + key.index * row_bytes_, row_bytes_);
  check();
}

void MappedArrayDataset::get_batch(std::span<const RowKey> keys, const BatchView& out) const {
  copy_rows(rows_, keys, out, 0);
  check();
}

void MappedArrayDataset::prefetch(int64_t index) const { prefetch_bytes(rows_ + index * row_bytes_, row_bytes_); }

}  // namespace trainkit
