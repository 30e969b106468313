#include "trainkit/arrays/mat.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <set>

#include "arrays/matlab/mat_source.h"
#include "arrays/matlab/matio_bridge.h"
#include "trainkit/core/error.h"
#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"
#include "trainkit/io/mapped_file.h"

namespace trainkit {
namespace detail {
namespace {

struct ClassInfo {
  std::string_view name;
  std::optional<at::ScalarType> dtype;
};
const std::array<ClassInfo, 18> kClasses = {{{"", {}},
                                             {"cell", {}},
                                             {"struct", {}},
                                             {"object", {}},
                                             {"char", {}},
                                             {"sparse", {}},
                                             {"double", at::kDouble},
                                             {"single", at::kFloat},
                                             {"int8", at::kChar},
                                             {"uint8", at::kByte},
                                             {"int16", at::kShort},
                                             {"uint16", at::kUInt16},
                                             {"int32", at::kInt},
                                             {"uint32", at::kUInt32},
                                             {"int64", at::kLong},
                                             {"uint64", at::kUInt64},
                                             {"function handle", {}},
                                             {"opaque object", {}}}};

const ClassInfo& class_info(int number) {
  return kClasses[number >= 1 && number < static_cast<int>(kClasses.size()) ? number : 0];
}

}  // namespace

std::string_view mat_class_name(int number) { return class_info(number).name; }
std::optional<at::ScalarType> mat_class_dtype(int number) { return class_info(number).dtype; }

int mat_class_of(at::ScalarType dtype) {
  const auto at = std::find_if(kClasses.begin(), kClasses.end(), [&](const ClassInfo& c) { return c.dtype == dtype; });
  return at == kClasses.end() ? 0 : static_cast<int>(at - kClasses.begin());
}

absl::Status mat_error(const MatFault& fault, absl::StatusCode code) {
  return to_status({.exit_code = ExitCode::kData,
                    .id = "data.mat",
                    .where = fault.offset < 0 ? fault.path : fmt::format("{}@{:#x}", fault.path, fault.offset),
                    .field = fault.variable.empty() ? "" : fmt::format("'{}'", fault.variable),
                    .problem = fault.problem,
                    .got = fault.got,
                    .expected = fault.expected,
                    .hint = fault.hint},
                   code);
}

std::string describe_sizes(const std::vector<int64_t>& sizes) { return fmt::format("{}", fmt::join(sizes, " x ")); }

}  // namespace detail

namespace {

constexpr size_t kHeaderBytes = 128;

absl::Status check_names(const std::string& path, const std::vector<MatVariable>& variables) {
  std::set<std::string_view> seen;
  for (const MatVariable& variable : variables) {
    if (!seen.insert(variable.name).second) {
      return detail::mat_error({.path = path, .variable = variable.name, .problem = "duplicate variable name"});
    }
  }
  return absl::OkStatus();
}

std::string list_names(const std::vector<MatVariable>& variables) {
  std::vector<std::string> names;
  names.reserve(variables.size());
  for (const MatVariable& variable : variables) names.push_back(fmt::format("'{}'", variable.name.substr(0, 40)));
  constexpr size_t kMost = 8;
  const size_t more = names.size() > kMost ? names.size() - kMost : 0;
  names.resize(names.size() - more);
  if (names.empty()) return "a file with variables";
  return fmt::format("{}{}", fmt::join(names, ", "), more ? fmt::format(" or one of {} more", more) : "");
}

absl::Status check_writable(const std::string& path, const std::string& name, const at::Tensor& tensor) {
  const auto bad = [&](const std::string& problem, const std::string& got) {
    return absl::InvalidArgumentError(
        fmt::format("{}: '{}' {} (got '{}')", path, escape_text(name), problem, escape_text(got)));
  };
  const auto letter = [](char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_'; };
  if (name.empty() || name.size() > 63 || !std::isalpha(static_cast<unsigned char>(name[0])) ||
      !std::all_of(name.begin(), name.end(), letter)) {
    return bad("is not a MATLAB variable name", name);
  }
  if (!tensor.defined() || tensor.layout() != at::kStrided || tensor.is_meta()) return bad("holds no data", "no array");
  const at::ScalarType dtype = tensor.scalar_type();
  if (dtype != at::kBool && detail::mat_class_of(dtype) == 0)
    return bad("has a dtype that MATLAB lacks", c10::toString(dtype));
  if (tensor.numel() == 0) return bad("has no element", fmt::format("{}", fmt::join(tensor.sizes(), " x ")));
  if (static_cast<int64_t>(tensor.nbytes()) >= int64_t{1} << 31) {
    return bad("is 2 GiB or more, which version 5 cannot hold: write a .npy file", describe_bytes(tensor.nbytes()));
  }
  return absl::OkStatus();
}

}  // namespace

absl::StatusOr<MatFile> MatFile::open(const std::string& path, const MatOptions& options) {
  TRAINKIT_ASSIGN_OR_RETURN(auto file, MappedFile::open(path));
  const std::string_view text = file->text();
  const auto fail = [&](std::string problem, std::string got = "", std::string expected = "", std::string hint = "") {
    return detail::mat_error({.path = path, .problem = problem, .got = got, .expected = expected, .hint = hint});
  };
  if (text.empty()) return fail("the file is empty");
  if (text.starts_with("\x89HDF\r\n\x1a\n")) {
    return fail("an HDF5 file without the header that MATLAB writes before it", "", "",
                "save it from MATLAB with save('file.mat', '-v7.3')");
  }
  if (text.starts_with("version https://git-lfs")) {
    return fail("not a MATLAB file", "", "", "this is a Git LFS pointer: fetch the file itself with 'git lfs pull'");
  }
  // Version 4 has no header: it begins with a small number, which has a zero byte.
  if (text.substr(0, 4).find('\0') != text.npos) {
    return fail("not a MATLAB file of version 5 or 7.3", "", "",
                "save it again with save('file.mat', '-v7'): files of version 4 are not read");
  }
  if (text.size() < kHeaderBytes) {
    return fail("cut short", fmt::format("{} bytes", text.size()), "a header of 128 bytes");
  }
  const std::string_view mark = text.substr(126, 2);
  if (mark != "IM" && mark != "MI") return fail("not a MATLAB file", std::string(mark), "'IM' or 'MI' at byte 126");
  const auto byte = [&](size_t at) { return static_cast<unsigned>(static_cast<unsigned char>(text[at])); };
  const unsigned version = mark == "IM" ? byte(125) << 8 | byte(124) : byte(124) << 8 | byte(125);
  absl::StatusOr<std::shared_ptr<const detail::MatSource>> source =
      fail("unknown version", fmt::format("{:#06x}", version), "0x0100 (version 5) or 0x0200 (version 7.3)");
  if (version == 0x0100) source = detail::open_mat5(std::move(file), options);
  if (version == 0x0200) source = detail::open_mat73(std::move(file), options);
  if (!source.ok()) return source.status();
  TRAINKIT_RETURN_IF_ERROR(check_names(path, (*source)->variables()));
  return MatFile(*std::move(source));
}

const std::vector<MatVariable>& MatFile::variables() const { return source_->variables(); }
const std::string& MatFile::path() const { return source_->path(); }

absl::Status MatFile::error(std::string_view name, const std::string& problem, const std::string& got,
                            const std::string& expected) const {
  return detail::mat_error(
      {.path = path(), .variable = std::string(name), .problem = problem, .got = got, .expected = expected});
}

absl::StatusOr<at::Tensor> MatFile::read(std::string_view name) const try {
  const auto& all = variables();
  const auto at = std::find_if(all.begin(), all.end(), [&](const MatVariable& v) { return v.name == name; });
  if (at == all.end()) {
    return detail::mat_error(
        {.path = path(), .variable = std::string(name), .problem = "no such variable", .expected = list_names(all)},
        absl::StatusCode::kNotFound);
  }
  if (!at->dtype) {
    return detail::mat_error({.path = path(),
                              .variable = at->name,
                              .problem = "not an array of real numbers",
                              .got = at->type,
                              .expected = "uint8, int16, single, double, ..."},
                             absl::StatusCode::kUnimplemented);
  }
  return source_->read(static_cast<size_t>(at - all.begin()));
} catch (...) {  // out of memory
  return annotate(status_from_current_exception(), path());
}

absl::Status load_mat_writer() { return detail::load_matio(); }

absl::Status write_mat(const std::string& path, std::span<const std::pair<std::string, at::Tensor>> variables) {
  TRAINKIT_RETURN_IF_ERROR(load_mat_writer());
  std::set<std::string_view> seen;
  for (const auto& [name, tensor] : variables) {
    TRAINKIT_RETURN_IF_ERROR(check_writable(path, name, tensor));
    if (!seen.insert(name).second) return absl::InvalidArgumentError(path + ": duplicate variable name '" + name + "'");
  }
  // libmatio does not report write errors of the disk. So write to a temporary file and read it back.
  const auto [folder, file_name] = split_path(path);
  TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(folder));
  const std::string temporary = temporary_name(file_name), temporary_path = folder + "/" + temporary;
  // `name`: clang 14 cannot capture a structured binding directly.
  const auto write = [&, &name = file_name]() -> absl::Status {
    TRAINKIT_RETURN_IF_ERROR(annotate(detail::write_with_matio(temporary_path, variables), path));
    TRAINKIT_ASSIGN_OR_RETURN(const MatFile written, MatFile::open(temporary_path));
    TRAINKIT_ASSIGN_OR_RETURN(const auto bytes, MappedFile::open(temporary_path));
    return write_file_atomically(directory, name, bytes->text());
  };
  absl::Status status = write();
  directory.remove_file(temporary).IgnoreError();  // it may not exist
  if (!status.ok() && exit_code(status) != ExitCode::kStorage) {
    status = reclassify(status, ExitCode::kStorage, "storage.write");
  }
  return status;
}

}  // namespace trainkit
