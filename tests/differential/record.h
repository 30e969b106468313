#pragma once
/// What a program did, as named tensors.

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

namespace trainkit::differential {

/// Tensors by place and name ("step3/param/l0.weight"); numbers are float64 scalars. All are copies on the CPU.
using Record = std::map<std::string, at::Tensor>;

/// Adds a number.
void put(Record& record, const std::string& name, double value);
/// Adds a copy of a tensor.
void put(Record& record, const std::string& name, const at::Tensor& tensor);

}  // namespace trainkit::differential
