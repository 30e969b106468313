// The numeric datasets of any HDF5 file.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "arrays/hdf5/hdf5_handle.h"
#include "arrays/hdf5/hdf5_layout.h"
#include "arrays/hdf5/hdf5_mapped.h"
#include "arrays/hdf5/message.h"
#include "arrays/hdf5/run_forked.h"
#include "arrays/source/formats.h"
#include "trainkit/core/data_error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kMostObjects = 10'000, kMostDepth = 16, kMostNumbers = 65'536;
constexpr size_t kMostName = 1024;

using Attributes = std::map<std::string, std::vector<double>, std::less<>>;

/// The objects of a file.
struct Listing {
  int64_t objects = 0;
  std::vector<ArrayInfo> arrays;
  /// Numeric attributes of the file, then of its arrays in their order; the first of a name counts.
  Attributes numbers;
};

constexpr std::array<std::pair<at::ScalarType, const char*>, 11> kTypes = {{{at::kByte, "uint8"},
                                                                            {at::kChar, "int8"},
                                                                            {at::kUInt16, "uint16"},
                                                                            {at::kShort, "int16"},
                                                                            {at::kUInt32, "uint32"},
                                                                            {at::kInt, "int32"},
                                                                            {at::kUInt64, "uint64"},
                                                                            {at::kLong, "int64"},
                                                                            {at::kHalf, "float16"},
                                                                            {at::kFloat, "float32"},
                                                                            {at::kDouble, "float64"}}};

/// Whether an enumeration is h5py's bool: FALSE and TRUE.
bool is_bool(hid_t type) {
  if (H5Tget_class(type) != H5T_ENUM || H5Tget_nmembers(type) != 2 || H5Tget_size(type) != 1) return false;
  int8_t values[] = {0, 1};
  char name[8] = {};
  const auto has = [&](int8_t& value, std::string_view expected) {
    return H5Tenum_nameof(type, &value, name, sizeof name) >= 0 && expected == name;
  };
  return has(values[0], "FALSE") && has(values[1], "TRUE");
}

const char* class_name(hid_t type) {
  switch (H5Tget_class(type)) {
    case H5T_COMPOUND:
      return "compound";
    case H5T_STRING:
      return "string";
    case H5T_ENUM:
      return "enum";
    case H5T_ARRAY:
    case H5T_VLEN:
      return "arrays";
    case H5T_REFERENCE:
      return "references";
    default:
      return "other";
  }
}

ArrayInfo describe_dataset(hid_t dataset, const std::string& name) {
  ArrayInfo array{.name = name, .type = "unreadable"};
  const Hdf5Handle type(H5Dget_type(dataset)), space(H5Dget_space(dataset));
  if (!type || !space) return array;
  const auto sizes = hdf5_sizes(space);
  array.type = class_name(type);
  if (is_bool(type)) {
    array.dtype = at::kBool;
    array.type = "bool";
  }
  for (const auto& [dtype, word] : kTypes) {
    const Hdf5Types types = hdf5_types(dtype);
    if (H5Tequal(type, types.little) <= 0 && H5Tequal(type, types.big) <= 0) continue;
    array.dtype = dtype;
    array.type = word;
  }
  if (!sizes) array.dtype.reset();  // a dataset without elements
  array.sizes = sizes.value_or(std::vector<int64_t>{});
  return array;
}

void add_attributes(hid_t object, Attributes& numbers) {
  const int count = H5Aget_num_attrs(object);
  for (int i = 0; i < std::min<int>(count, kMostObjects); ++i) {
    const Hdf5Handle attribute(
        H5Aopen_by_idx(object, ".", H5_INDEX_NAME, H5_ITER_INC, static_cast<hsize_t>(i), H5P_DEFAULT, H5P_DEFAULT));
    const Hdf5Handle type(attribute ? H5Aget_type(attribute) : -1), space(attribute ? H5Aget_space(attribute) : -1);
    if (!type || !space || std::ssize(numbers) == kMostObjects) continue;
    const H5T_class_t kind = H5Tget_class(type);
    const int64_t values = H5Sget_simple_extent_npoints(space);
    const bool is_number = (kind == H5T_INTEGER || kind == H5T_FLOAT) && H5Tget_size(type) <= 8;
    if (!is_number || values < 1 || values > kMostNumbers) continue;
    std::string name(kMostName, '\0');
    const ssize_t length = H5Aget_name(attribute, name.size(), name.data());
    if (length <= 0 || length >= std::ssize(name)) continue;
    name.resize(static_cast<size_t>(length));
    std::vector<double> read(static_cast<size_t>(values));
    if (H5Aread(attribute, H5T_NATIVE_DOUBLE, read.data()) >= 0) numbers.emplace(std::move(name), std::move(read));
  }
}

/// Adds the objects of a group, by their names.
absl::Status list_group(hid_t group, const std::string& prefix, int depth, Listing& listing) {
  H5G_info_t info;
  if (H5Gget_info(group, &info) < 0) return damaged("HDF5 cannot read the list of objects");
  for (hsize_t i = 0; i < info.nlinks; ++i) {
    if (++listing.objects > kMostObjects) return refused(fmt::format("more than {} objects", kMostObjects));
    std::string name(kMostName, '\0');
    const ssize_t length =
        H5Lget_name_by_idx(group, ".", H5_INDEX_NAME, H5_ITER_INC, i, name.data(), name.size(), H5P_DEFAULT);
    if (length <= 0 || length >= std::ssize(name)) return damaged("HDF5 cannot read the name of an object");
    name.resize(static_cast<size_t>(length));
    const std::string path = prefix + name;
    H5L_info_t link;
    const bool has_link = H5Lget_info(group, name.c_str(), &link, H5P_DEFAULT) >= 0;
    if (!has_link || link.type != H5L_TYPE_HARD) {
      listing.arrays.push_back({.name = path, .type = has_link ? "link" : "unreadable"});  // possibly to another file
      continue;
    }
    const Hdf5Handle object(H5Oopen(group, name.c_str(), H5P_DEFAULT));
    if (object && H5Iget_type(object) == H5I_GROUP) {
      if (depth == kMostDepth) return refused(fmt::format("groups more than {} deep", kMostDepth));
      TRAINKIT_RETURN_IF_ERROR(list_group(object, path + "/", depth + 1, listing));
    } else if (object && H5Iget_type(object) == H5I_DATASET) {
      listing.arrays.push_back(describe_dataset(object, path));
      add_attributes(object, listing.numbers);
    } else {
      listing.arrays.push_back({.name = path, .type = object ? "type" : "unreadable"});
    }
  }
  return absl::OkStatus();
}

std::string listing_as_text(const MappedFile& file) {
  Listing listing;
  const auto list = [&]() -> absl::Status {
    const Hdf5Handle hdf5 = open_mapped(file);
    const Hdf5Handle root(hdf5 ? H5Gopen2(hdf5, "/", H5P_DEFAULT) : -1);
    if (!root) return damaged("HDF5 cannot open it: damaged or not HDF5");
    add_attributes(root, listing.numbers);
    TRAINKIT_RETURN_IF_ERROR(list_group(root, "", 1, listing));
    return file.damaged() ? damaged("was truncated while it was read") : absl::OkStatus();
  };
  Message message;
  message.put(list());
  message.put(std::ssize(listing.arrays));
  for (const ArrayInfo& array : listing.arrays) message.put(array.name, array.type, array.dtype, array.sizes);
  message.put(std::ssize(listing.numbers));
  for (const auto& [name, values] : listing.numbers) {
    message.put(name);
    message.put(std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(double)));
  }
  return message.take();
}

absl::StatusOr<Listing> list_objects(const MappedFile& file) {
  const Hdf5Session session;
  TRAINKIT_ASSIGN_OR_RETURN(std::string reply, run_forked([&] { return listing_as_text(file); }));
  Message message(std::move(reply));
  TRAINKIT_RETURN_IF_ERROR(message.status());
  Listing listing;
  listing.arrays.resize(message.size(kMostObjects));
  for (ArrayInfo& array : listing.arrays) message.take(array.name, array.type, array.dtype, array.sizes);
  for (size_t left = message.size(kMostObjects); left > 0; --left) {
    const std::string name = message.text(), bytes = message.text();
    std::vector<double> values(bytes.size() / sizeof(double));
    std::copy_n(bytes.data(), values.size() * sizeof(double), reinterpret_cast<char*>(values.data()));
    listing.numbers.emplace(name, std::move(values));
  }
  return listing;
}

class Hdf5Arrays final : public ArraySource {
 public:
  Hdf5Arrays(std::shared_ptr<const MappedFile> file, Listing listing)
      : ArraySource(file->path(), "an HDF5 file", std::move(listing.arrays)),
        file_(std::move(file)),
        numbers_(std::move(listing.numbers)) {}

  absl::StatusOr<at::Tensor> read(std::string_view name) const override {
    TRAINKIT_ASSIGN_OR_RETURN(const ArrayInfo array, find(name));
    return read(array, 0, array.sizes.empty() ? 1 : array.sizes[0]);
  }
  absl::StatusOr<at::Tensor> read_rows(std::string_view name, int64_t begin, int64_t count) const override {
    TRAINKIT_ASSIGN_OR_RETURN(const ArrayInfo array, find(name));
    return read(array, begin, count);
  }
  bool reads_rows(std::string_view) const override { return true; }
  absl::StatusOr<std::vector<double>> numbers(std::string_view attribute) const override {
    const auto found = numbers_.find(attribute);
    return found == numbers_.end() ? std::vector<double>{} : found->second;
  }

 private:
  absl::StatusOr<ArrayInfo> find(std::string_view name) const {
    TRAINKIT_ASSIGN_OR_RETURN(const ArrayInfo array, find_array(name, "data.hdf5"));
    if (array.dtype) return array;
    return error(name, refused("not an array of real numbers: " + array.type));
  }

  absl::StatusOr<at::Tensor> read(const ArrayInfo& array, int64_t begin, int64_t count) const {
    const auto read = [&]() -> absl::StatusOr<at::Tensor> {
      TRAINKIT_ASSIGN_OR_RETURN(const std::shared_ptr<const Hdf5Layout> layout, layout_of(array));
      return layout->read(file_, /*is_reversed=*/false, begin, count);
    };
    auto tensor = read();
    TRAINKIT_RETURN_IF_ERROR(file_->check());
    return tensor.ok() ? std::move(tensor) : error(array.name, tensor.status());
  }

  /// Finds the elements of an array once.
  absl::StatusOr<std::shared_ptr<const Hdf5Layout>> layout_of(const ArrayInfo& array) const {
    const std::lock_guard lock(mutex_);
    std::shared_ptr<const Hdf5Layout>& layout = layouts_[array.name];
    if (layout) return layout;
    TRAINKIT_ASSIGN_OR_RETURN(
        Hdf5Layout found,
        find_hdf5_layout(*file_,
                         {.path = array.name, .type = array.type, .dtype = *array.dtype, .sizes = array.sizes}));
    layout = std::make_shared<const Hdf5Layout>(std::move(found));
    return layout;
  }

  absl::Status error(std::string_view name, const absl::Status& why) const {
    return data_error("data.hdf5", {.file = path(), .field = std::string(name.substr(0, 80))},
                      std::string(why.message()));
  }

  std::shared_ptr<const MappedFile> file_;
  Attributes numbers_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, std::shared_ptr<const Hdf5Layout>> layouts_;
};

}  // namespace

absl::StatusOr<std::shared_ptr<const ArraySource>> open_hdf5(std::shared_ptr<const MappedFile> file, size_t at) {
  TRAINKIT_RETURN_IF_ERROR(hdf5.load());
  const auto list = [&]() -> absl::StatusOr<Listing> {
    TRAINKIT_RETURN_IF_ERROR(check_superblock(file->text(), at));
    return list_objects(*file);
  };
  auto listing = list();
  TRAINKIT_RETURN_IF_ERROR(file->check());
  if (!listing.ok()) return data_error("data.hdf5", {.file = file->path()}, std::string(listing.status().message()));
  return std::make_shared<Hdf5Arrays>(std::move(file), *std::move(listing));
}

}  // namespace trainkit::detail
