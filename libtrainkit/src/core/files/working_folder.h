#pragma once
/// What a program does when it is started in a folder that has been deleted.

#include <string>

namespace trainkit::detail {

/// A folder that exists, and in which no relative path does: nothing is read from or written to another place than the
/// user meant. run_app()'s programs move there before main if their working folder has been deleted.
inline constexpr char kNoFolder[] = "/proc/self/task";

/// Whether this process, or the program that started it, has moved to kNoFolder.
bool is_working_folder_lost();

/// What a user does then.
inline constexpr char kLostFolderHint[] =
    "the working folder has been deleted: change to another one, or give absolute paths";

}  // namespace trainkit::detail
