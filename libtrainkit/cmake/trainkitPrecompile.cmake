# trainkit_precompile(TARGET): compiles TARGET with a precompiled header of LibTorch's headers that a program with a model
# includes. They take most of the time of a compilation; the header itself is compiled once. For the sources of the library
# see trainkit_compile_fast.
function(trainkit_precompile TARGET)
  target_precompile_headers(${TARGET} PRIVATE <ATen/ATen.h> <absl/status/statusor.h> <torch/nn/module.h> <torch/nn/pimpl.h>)
endfunction()
