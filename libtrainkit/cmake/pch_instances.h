#pragma once
// Lets clang instantiate the virtual functions of LibTorch's class templates in the precompiled header. Otherwise it
// does so at the end of each unit that uses the header, because constructors there need the tables of virtual
// functions: 0.3 s in a unit of the library, 0.9 s in one of the tests. Nothing here is called, so units contain none
// of it.
#ifdef __clang__
#include <ATen/core/jit_type.h>
#include <torch/csrc/jit/ir/attributes.h>

namespace trainkit::pch {

/// A local class needs its table, and so each virtual function of its base, at once.
template <class Base>
void destroy(void* object) {
  struct Local : Base {};
  delete static_cast<Local*>(object);
}

template <class... Bases>
void instantiate() {
  (..., destroy<Bases>(nullptr));
}

inline void instantiate_types() {
  instantiate<c10::ListType, c10::FutureType, c10::AwaitType, c10::RRefType, c10::ScalarTypeType, c10::LayoutType,
              c10::MemoryFormatType>();
}

inline void instantiate_attributes() {
  using namespace torch::jit;
  instantiate<ComplexAttr, ComplexValsAttr, FloatAttr, FloatsAttr, IntAttr, IntsAttr, StringAttr, StringsAttr,
              TensorAttr, TensorsAttr, TypeAttr, TypesAttr, IValueAttr>();
}

}  // namespace trainkit::pch
#endif
