#include "core/machine/late_library.h"

#include <c10/util/Exception.h>
#include <dlfcn.h>

#include "trainkit/core/error.h"

namespace trainkit::detail {

absl::Status LateLibrary::load() {
  // Without the lock, which another thread may hold where this process was forked.
  if (handle_) return absl::OkStatus();
  const std::lock_guard lock(mutex_);
  if (!handle_ && carried_) handle_ = dlopen(carried_, RTLD_LAZY | RTLD_LOCAL);
  if (!handle_) handle_ = dlopen(file_, RTLD_LAZY | RTLD_LOCAL);
  if (handle_) return absl::OkStatus();
  const char* reason = dlerror();
  return to_status({.exit_code = ExitCode::kUsage,
                    .id = "program.library",
                    .where = file_,
                    .problem = std::string("cannot load the library: ") + (reason ? reason : "unknown reason"),
                    .hint = std::string("install ") + product_ + "; on Debian: apt-get install " + package_});
}

void* LateLibrary::find(const char* name) {
  const absl::Status loaded = load();
  TORCH_CHECK(loaded.ok(), error_line(loaded));
  void* const address = dlsym(handle_, name);
  TORCH_CHECK(address, file_, " has no ", name, ": it is not ", product_);
  return address;
}

}  // namespace trainkit::detail
