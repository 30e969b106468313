#include "core/files/working_folder.h"

#include <filesystem>
#include <system_error>

namespace trainkit::detail {

bool is_working_folder_lost() {
  std::error_code failed;
  const std::string folder = std::filesystem::current_path(failed).string();
  return failed || (folder.starts_with("/proc/") && folder.ends_with("/task"));
}

}  // namespace trainkit::detail
