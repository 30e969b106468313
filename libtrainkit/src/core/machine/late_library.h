#pragma once
// Shared libraries that are loaded at their first use.

#include <absl/status/status.h>

#include <atomic>
#include <mutex>
#include <string>

namespace trainkit::detail {

// Note [Late libraries]
// ~~~~~~~~~~~~~~~~~~~~~
// FFmpeg brings 106 libraries into a process, HDF5 and matio 33. A program that opens no file of their formats does
// without them: it is not linked to them, and starts where they are not installed.
//
// A header of the module that uses a library lists its functions with TRAINKIT_LATE_FUNCTION, in namespace
// trainkit::detail. There each name hides the function of the library's own header, so that calls are written as
// always. Code outside of that namespace that calls one does not link.
//
// A package that runs on any Linux (TRAINKIT_PORTABLE) carries them under names of its own, in the folder above that of
// the program. The system's are the second choice, for programs of users that link the package's library.
#ifdef TRAINKIT_PORTABLE
#define TRAINKIT_CARRIED(name) "$ORIGIN/../libtrainkit_" name ".so"
#else
#define TRAINKIT_CARRIED(name) nullptr
#endif

/// A shared library that is loaded at its first use and never unloaded. Thread-safe.
class LateLibrary {
 public:
  /// @param file name for the loader, with its version: "libavutil.so.57".
  /// @param product what the user installs: "FFmpeg".
  /// @param package of Debian: "libavutil57".
  /// @param carried file of a package that is tried first: TRAINKIT_CARRIED("ffmpeg"). The loader reads $ORIGIN.
  constexpr LateLibrary(const char* file, const char* product, const char* package, const char* carried = nullptr)
      : file_(file), product_(product), package_(package), carried_(carried) {}

  /// Loads the library. Error of exit code 2, program.library, that names it and what to install.
  absl::Status load();
  /// Returns the address of a function or a variable. Throws c10::Error if there is no library, or no such name in it.
  void* find(const char* name);

 private:
  const char *file_, *product_, *package_, *carried_;
  std::mutex mutex_;
  std::atomic<void*> handle_ = nullptr;
};

template <class F>
class LateFunction;

/// A function of a LateLibrary. A call throws what LateLibrary::find throws.
template <class R, class... A>
class LateFunction<R(A...)> {
 public:
  constexpr LateFunction(LateLibrary& library, const char* name) : library_(library), name_(name) {}
  R operator()(A... arguments) const {
    void* address = address_.load(std::memory_order_acquire);
    if (!address) address_.store(address = library_.find(name_), std::memory_order_release);
    return reinterpret_cast<R (*)(A...)>(address)(arguments...);
  }

 private:
  LateLibrary& library_;
  const char* name_;
  mutable std::atomic<void*> address_ = nullptr;
};

/// For decltype: deduces the type of a function without its attributes, which g++ refuses in a template argument.
template <class F>
LateFunction<F> late_function(F& function);

/// A variable of a LateLibrary.
template <class T>
class LateValue {
 public:
  constexpr LateValue(LateLibrary& library, const char* name) : library_(library), name_(name) {}
  /// Reads it. Throws what LateLibrary::find throws.
  operator T() const { return *static_cast<const T*>(library_.find(name_)); }

 private:
  LateLibrary& library_;
  const char* name_;
};

/// Define `name` as the function or variable of that name in a LateLibrary. If the library's header defines the name as
/// a macro for a version of the function (HDF5 1.14: H5Lget_info), it is that version.
#define TRAINKIT_LATE_FUNCTION(library, name) TRAINKIT_LATE_FUNCTION_(library, name)
#define TRAINKIT_LATE_FUNCTION_(library, name) \
  inline constinit decltype(late_function(::name)) name { library, #name }
#define TRAINKIT_LATE_VALUE(library, name) \
  inline constinit LateValue<decltype(::name)> name { library, #name }

}  // namespace trainkit::detail
