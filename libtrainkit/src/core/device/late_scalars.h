#pragma once
/// Reads device scalars without synchronising.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace trainkit {

/// Copies scalars to the host asynchronously. They are read some steps later, when the copy is done.
/// See Note [Asynchronous scalars].
///
/// On the CPU the values are available immediately. The tensors must not be overwritten before the copy is done.
class LateScalars {
 public:
  LateScalars() = default;
  /// Starts the copy. Scalars may have any dtype and must be on one device; undefined tensors become NaN.
  explicit LateScalars(const std::vector<at::Tensor>& scalars);
  LateScalars(LateScalars&&) = default;
  LateScalars& operator=(LateScalars other) noexcept;
  ~LateScalars();

  /// Returns whether values() would return without waiting.
  bool ready() const;
  /// Returns the values, in the order given. Waits for the device if the copy is not done.
  std::vector<double> values() const;

 private:
  std::vector<double> values_;  // of scalars that were on the CPU
  at::Tensor host_;             // on the CPU, page-locked, being copied to
  std::optional<c10::Event> copied_;
};

}  // namespace trainkit
