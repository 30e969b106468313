#pragma once
/// Checks that one options struct copies to another every field whose name both have.
///
/// A test lists all fields of the target struct in a macro, as X(first) S X(second) S ... The list is complete: it
/// names the structured bindings of an object of the struct (FIELD, COMMA), which do not compile if their number
/// differs. A field added to the target is therefore listed, and ARRIVES of a listed field whose name the source has
/// as well fails until the copy is made and the test gives the source another value than the target's default.

#include <functional>

#include "test_util.h"
#include "trainkit/amp/grad_scaler.h"

#define FIELD(name) name
#define COMMA ,

/// Checks `name`, if `given` has such a field too: `made` has its value, which is not the default of `made`.
#define ARRIVES(name)                                           \
  [&](const auto& source) {                                     \
    if constexpr (requires { source.name; }) {                  \
      INFO(#name);                                              \
      CHECK(trainkit::test::same(source.name, made.name));      \
      const auto unset = std::remove_cvref_t<decltype(made)>{}; \
      CHECK_FALSE(trainkit::test::same(unset.name, made.name)); \
    }                                                           \
  }(given)

namespace trainkit::test {

bool same(const auto& a, const auto& b) { return a == b; }
inline bool same(const GradScalerOptions& a, const GradScalerOptions& b) { return a.init_scale == b.init_scale; }
inline bool same(const std::function<bool()>& a, const std::function<bool()>& b) { return a && b && a() == b(); }

}  // namespace trainkit::test
