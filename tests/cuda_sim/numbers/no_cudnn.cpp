// cuDNN is not simulated: convolutions, normalisations and attention use LibTorch's own CUDA code.
#include <ATen/Context.h>

[[maybe_unused]] static const bool is_off = [] {
  at::globalContext().setUserEnabledCuDNN(false);
  at::globalContext().setSDPUseCuDNN(false);
  return true;
}();
