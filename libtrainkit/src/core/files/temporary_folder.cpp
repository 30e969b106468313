#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "trainkit/core/fs.h"
#include "trainkit/core/status.h"

namespace trainkit {

absl::StatusOr<TemporaryFolder> TemporaryFolder::create(const std::string& parent) {
  if (!parent.empty()) {
    TRAINKIT_ASSIGN_OR_RETURN(const Directory directory, Fs::posix().open_directory(parent));
    const std::string name = temporary_name("folder");
    TRAINKIT_RETURN_IF_ERROR(directory.create_directory(name));
    return TemporaryFolder(parent + "/" + name);
  }
  std::error_code failed;
  std::string path = (std::filesystem::temp_directory_path(failed) / "trainkit-XXXXXX").string();
  if (failed || !mkdtemp(path.data())) {
    return to_status({.exit_code = ExitCode::kStorage,
                      .id = "storage.temporary",
                      .where = path,
                      .problem = "cannot create a temporary folder",
                      .hint = "TMPDIR names another place"});
  }
  return TemporaryFolder(std::move(path));
}

TemporaryFolder::~TemporaryFolder() {
  std::error_code ignored;
  if (!path_.empty()) std::filesystem::remove_all(path_, ignored);
}

}  // namespace trainkit
