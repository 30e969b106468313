#pragma once
/// Scalars read from the device after it has got there by itself.

#include <ATen/core/Tensor.h>
#include <c10/core/Event.h>

#include <optional>
#include <vector>

namespace trainkit {

/// Starts copying scalars to the host without waiting; they are read some steps later, when the copy is done.
///
/// On the CPU the values are there at once. The tensors must not be written to before the copy is done.
class LateScalars {
 public:
  LateScalars() = default;
  /// Scalars of any dtype on one device; undefined tensors come out as NaN.
  explicit LateScalars(const std::vector<at::Tensor>& scalars);

  /// Whether values() will return without waiting.
  bool ready() const;
  /// The values, in the order given. Waits for the device if they are not there yet.
  std::vector<double> values() const;

 private:
  std::vector<double> values_;  // of scalars that were on the CPU
  at::Tensor host_;             // (n) float64 on the CPU, being copied to
  std::optional<c10::Event> copied_;
};

}  // namespace trainkit
