#include "core/files/try_folder.h"

#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>

#include "trainkit/core/fs.h"

namespace trainkit::detail {

int try_folder(const std::string& path) {
  std::string folder = path;
  struct stat info {};
  while (::stat(folder.c_str(), &info) != 0) {
    if (errno != ENOENT) return errno;
    folder = split_path(folder).first;
  }
  if (!S_ISDIR(info.st_mode)) return ENOTDIR;
  const std::string tried = folder + "/" + temporary_name("try");
  if (::mkdir(tried.c_str(), S_IRWXU) != 0) return errno;
  return ::rmdir(tried.c_str()) == 0 ? 0 : errno;
}

}  // namespace trainkit::detail
