#include <ATen/Parallel.h>
#include <c10/util/Exception.h>
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <thread>

#include "core/base/round_up.h"
#include "core/files/digest_bytes.h"
#include "core/files/new_files.h"
#include "core/files/system_calls.h"
#include "data/datasets/copy_rows.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/data/adapters.h"

namespace trainkit {
namespace {

static_assert(std::endian::native == std::endian::little, "the format is little-endian");

using detail::DigestBytes;

constexpr char kMagic[8] = {'T', 'K', 'R', 'O', 'W', 'S', '\0', '\0'};
constexpr uint32_t kVersion = 1, kByteOrder = 0x01020304;
constexpr int64_t kPage = 4096, kLine = 64;

struct Header {
  char magic[8];
  uint32_t version;
  uint32_t byte_order;
  uint64_t rows;
  uint64_t row_bytes;
  DigestBytes fields_digest;
  DigestBytes origin_digest;
  DigestBytes header_digest;  // digest of the fields above
};
static_assert(sizeof(Header) == 80);

int64_t bytes_of_row(const Dataset& dataset) {
  int64_t bytes = 0;
  for (const FieldSpec& field : dataset.fields()) bytes += field.row_bytes();
  return bytes;
}

int64_t offset_of_rows(int64_t rows) {
  return detail::round_up(kPage + rows * static_cast<int64_t>(sizeof(DigestBytes)), kPage);
}

DigestBytes digest_of_bytes(const void* data, size_t size) {
  Digest digest;
  digest.update(data, size);
  return detail::digest_bytes(digest.hex());
}

Header header_for(const Dataset& dataset, const std::string& origin) {
  std::ostringstream fields;
  for (const FieldSpec& field : dataset.fields()) fields << field << "\n";
  Header header = {.magic = {},
                   .version = kVersion,
                   .byte_order = kByteOrder,
                   .rows = static_cast<uint64_t>(dataset.size()),
                   .row_bytes = static_cast<uint64_t>(bytes_of_row(dataset)),
                   .fields_digest = digest_of_bytes(fields.str().data(), fields.str().size()),
                   .origin_digest = digest_of_bytes(origin.data(), origin.size()),
                   .header_digest = {}};
  std::memcpy(header.magic, kMagic, sizeof kMagic);
  header.header_digest = digest_of_bytes(&header, offsetof(Header, header_digest));
  return header;
}

absl::Status disk_error(const std::string& path, const std::string& problem, int error) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.cache",
                    .where = path,
                    .problem = problem + ": " + std::strerror(error)},
                   error == ENOSPC ? absl::StatusCode::kResourceExhausted : absl::StatusCode::kAborted);
}

/// Writes all bytes. Returns 0 or errno.
int write_at(int descriptor, const void* data, size_t size, int64_t offset) {
  const auto* bytes = static_cast<const char*>(data);
  while (size > 0) {
    const ssize_t written = SystemCalls::kernel().pwrite(descriptor, bytes, size, offset);
    if (written == -EINTR) continue;
    if (written <= 0) return written < 0 ? static_cast<int>(-written) : EIO;
    bytes += written;
    offset += written;
    size -= static_cast<size_t>(written);
  }
  return 0;
}

absl::Status no_space_error(const std::string& path, int64_t bytes, int64_t free_bytes) {
  return to_status({.exit_code = ExitCode::kStorage,
                    .id = "storage.cache",
                    .where = path,
                    .problem = "not enough space for a cache of " + describe_bytes(bytes),
                    .got = describe_bytes(free_bytes) + " free",
                    .expected = describe_bytes(bytes - free_bytes) + " more"},
                   absl::StatusCode::kResourceExhausted);
}

/// Creates the file under a temporary name and renames it to `path`. If another process was faster, keeps its file.
absl::Status make_file(const std::string& path, const Header& header, int64_t bytes, bool replace) {
  SystemCalls& kernel = SystemCalls::kernel();
  const auto [folder, name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().create_directories(folder));
  // Check first: fallocate fills the disk before it reports that the space is too small.
  const absl::StatusOr<int64_t> free_bytes = directory.free_bytes();
  if (free_bytes.ok() && *free_bytes < bytes) return no_space_error(path, bytes, *free_bytes);
  const std::string temporary = folder + "/" + temporary_name(name);
  const int file =
      kernel.openat(AT_FDCWD, temporary.c_str(), O_CREAT | O_EXCL | O_RDWR | O_CLOEXEC, detail::kNewFileMode);
  if (file < 0) return disk_error(path, "cannot create the cache", -file);
  int error = ::posix_fallocate(file, 0, bytes);
  const std::string what =
      error ? "not enough space for a cache of " + describe_bytes(bytes) : "cannot write the cache";
  if (error == 0) error = write_at(file, &header, sizeof header, 0);
  if (error == 0) error = -kernel.fsync(file);
  kernel.close(file);
  if (error == 0) {
    error = -kernel.renameat2(AT_FDCWD, temporary.c_str(), path.c_str(), replace ? 0 : RENAME_NOREPLACE);
    if (error == EEXIST) error = 0;
  }
  kernel.unlinkat(AT_FDCWD, temporary.c_str(), 0);
  return error == 0 ? absl::OkStatus() : disk_error(path, what, error);
}

}  // namespace

int64_t DiskCachedDataset::file_bytes(const Dataset& dataset) {
  return offset_of_rows(dataset.size()) + dataset.size() * detail::round_up(bytes_of_row(dataset), kLine);
}

absl::StatusOr<std::shared_ptr<const DiskCachedDataset>> DiskCachedDataset::open(std::shared_ptr<const Dataset> dataset,
                                                                                 const std::string& path,
                                                                                 const std::string& origin) {
  TORCH_CHECK_VALUE(dataset, "DiskCachedDataset: the dataset must not be null");
  const Header header = header_for(*dataset, origin);
  const int64_t bytes = file_bytes(*dataset);
  const auto fits = [&](const absl::StatusOr<std::shared_ptr<const MappedFile>>& file) {
    return file.ok() && std::ssize((*file)->bytes()) == bytes &&
           std::memcmp((*file)->bytes().data(), &header, sizeof header) == 0;
  };
  auto file = MappedFile::open(path);
  if (!fits(file)) {
    const bool replace = !absl::IsNotFound(file.status());
    if (replace && !detail::begins_with(path, {{kMagic, sizeof kMagic}})) {
      return detail::foreign_file(path, "is not a cache of rows, which would replace it",
                                  "move it away, or choose another folder for the cache");
    }
    TRAINKIT_RETURN_IF_ERROR(make_file(path, header, bytes, replace));
    file = MappedFile::open(path);
  }
  TRAINKIT_RETURN_IF_ERROR(reclassify(file.status(), ExitCode::kStorage, "storage.cache"));
  if (!fits(file)) return disk_error(path, "another process has replaced the cache by one for other rows", EBUSY);
  const int descriptor =
      SystemCalls::kernel().openat(AT_FDCWD, (*file)->same_file_path().c_str(), O_WRONLY | O_CLOEXEC, 0);
  if (descriptor < 0) return disk_error(path, "cannot open the cache", -descriptor);
  return std::shared_ptr<const DiskCachedDataset>(
      new DiskCachedDataset(std::move(dataset), *std::move(file), descriptor));
}

DiskCachedDataset::DiskCachedDataset(std::shared_ptr<const Dataset> dataset, std::shared_ptr<const MappedFile> file,
                                     int descriptor)
    : dataset_(std::move(dataset)),
      file_(std::move(file)),
      descriptor_(descriptor),
      rows_offset_(offset_of_rows(dataset_->size())),
      row_stride_(detail::round_up(bytes_of_row(*dataset_), kLine)),
      row_bytes_(bytes_of_row(*dataset_)),
      checked_(new std::atomic<bool>[static_cast<size_t>(dataset_->size())]()) {
  for (int64_t i = 0; i < dataset_->size(); ++i) cached_rows_ += present(i);
}

DiskCachedDataset::~DiskCachedDataset() { SystemCalls::kernel().close(descriptor_); }

// Note [Row cache on disk]
//
// write() stores the row first and its digest afterwards. Nothing is flushed per row, so after a crash the disk may
// hold any part of either. A digest of zeros means "absent". read() compares the digest of the bytes with the stored
// one the first time that this process reads a row, and then sets checked_. An incomplete or damaged row has another
// digest and is read from the dataset again. Several processes can write the same row: the dataset is
// deterministic, so all of them write the same bytes.
//
// Reads use a private map and writes use pwrite. On Linux, a private map shows changes of the file in pages that this
// process has not written to. On a system without this property, digests would differ, and rows would be read from the
// dataset: slower, but correct.
//
// make_file() reserves all space (fallocate), writes the header under a temporary name, flushes and renames. Without
// `replace`, RENAME_NOREPLACE lets the first of several processes win; open() then checks the winner's header.

bool DiskCachedDataset::present(int64_t index) const {
  DigestBytes entry;
  std::memcpy(entry.data(), file_->bytes().data() + kPage + index * std::ssize(entry), entry.size());
  return entry != DigestBytes{};
}

bool DiskCachedDataset::read(int64_t index, const BatchView& out, int64_t at) const {
  const std::byte* row = file_->bytes().data() + rows_offset_ + index * row_stride_;
  if (!checked_[index].load(std::memory_order_acquire)) {
    if (!present(index)) return false;
    const DigestBytes digest = digest_of_bytes(row, static_cast<size_t>(row_bytes_));
    if (std::memcmp(digest.data(), file_->bytes().data() + kPage + index * std::ssize(digest), digest.size()) != 0) {
      return false;
    }
    checked_[index].store(true, std::memory_order_release);
  }
  for (size_t field = 0; field < out.num_fields(); ++field) {
    std::memcpy(out.row(field, at), row, static_cast<size_t>(out.row_bytes(field)));
    row += out.row_bytes(field);
  }
  return file_->check().ok();  // false if the file was truncated: its pages then read as zeros
}

void DiskCachedDataset::write(int64_t index, const BatchView& from, int64_t at) const {
  int64_t offset = rows_offset_ + index * row_stride_;
  Digest digest;
  int error = 0;
  for (size_t field = 0; field < from.num_fields() && error == 0; ++field) {
    const auto bytes = static_cast<size_t>(from.row_bytes(field));
    digest.update(from.row(field, at), bytes);
    error = write_at(descriptor_, from.row(field, at), bytes, offset);
    offset += from.row_bytes(field);
  }
  const bool is_new = !present(index);
  const DigestBytes entry = detail::digest_bytes(digest.hex());
  if (error == 0) error = write_at(descriptor_, entry.data(), entry.size(), kPage + index * std::ssize(entry));
  if (error == 0) {
    cached_rows_ += is_new;
    return;
  }
  const std::lock_guard lock(mutex_);
  write_status_.Update(disk_error(file_->path(), "cannot write a row of the cache", error));
}

void DiskCachedDataset::get(const RowKey& key, const BatchView& out, int64_t at) const {
  if (read(key.index, out, at)) return;
  dataset_->get(key, out, at);
  write(key.index, out, at);
}

void DiskCachedDataset::prefetch(int64_t index) const {
  if (!checked_[index].load(std::memory_order_relaxed)) return dataset_->prefetch(index);
  prefetch_bytes(file_->bytes().data() + rows_offset_ + index * row_stride_, row_bytes_);
}

absl::Status DiskCachedDataset::write_status() const {
  const std::lock_guard lock(mutex_);
  return write_status_;
}

absl::StatusOr<CacheBuild> DiskCachedDataset::build(int num_threads, const CacheProgress& progress) const {
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  int64_t done = 0;
  CacheBuild result;
  const auto work = [&] {
    const int threads = at::get_num_threads();
    at::set_num_threads(1);  // for this thread: the rows are the parallel work
    std::vector<std::vector<std::byte>> memory;
    std::vector<BatchView::Field> places;
    for (const FieldSpec& field : fields()) {
      memory.emplace_back(static_cast<size_t>(std::max<int64_t>(field.row_bytes(), 1)));
      places.push_back({memory.back().data(), field.row_bytes()});
    }
    const BatchView row(places, 1);
    for (int64_t index = next++; index < size() && !stop; index = next++) {
      bool refused = false;
      try {
        get({.index = index, .origin = index, .draw = RowKey::kUndrawn}, row, 0);
      } catch (...) {
        refused = true;  // the loader reports the cause when it reads the row
      }
      const std::lock_guard lock(mutex);
      if (refused) result.refused.push_back(index);
      if (progress && !progress(++done, size())) stop = true;
      if (!write_status().ok()) stop = true;  // the disk is full or failing: later rows would fail too
    }
    at::set_num_threads(threads);
  };
  std::vector<std::thread> readers;
  for (int thread = 1; thread < num_threads; ++thread) readers.emplace_back(work);
  work();
  for (auto& thread : readers) thread.join();
  TRAINKIT_RETURN_IF_ERROR(write_status());
  if (stop) return absl::CancelledError(file_->path() + ": stopped before all rows were cached");
  if (const int error = -SystemCalls::kernel().fsync(descriptor_)) {
    return disk_error(file_->path(), "cannot flush the cache", error);
  }
  std::sort(result.refused.begin(), result.refused.end());
  result.cached_rows = cached_rows();
  return result;
}

}  // namespace trainkit
