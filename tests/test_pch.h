#pragma once
// Precompiled once for all tests.
#include <absl/status/statusor.h>
#include <absl/strings/str_cat.h>
#include <torch/torch.h>

#include <chrono>
#include <condition_variable>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>
#include <map>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <thread>
// torch/torch.h defines CHECK; tests use Catch2's.
#undef CHECK
#include <catch2/catch.hpp>

#include "../libtrainkit/cmake/pch_instances.h"

#ifdef __clang__
namespace trainkit::pch {

inline void instantiate_modules() {
  using namespace torch::nn;
  instantiate<AdaptiveLogSoftmaxWithLossImpl, BilinearImpl, Conv1dImpl, Conv2dImpl, Conv3dImpl, ConvTranspose1dImpl,
              ConvTranspose2dImpl, ConvTranspose3dImpl, CrossMapLRN2dImpl, EmbeddingImpl, EmbeddingBagImpl, FoldImpl,
              FractionalMaxPool2dImpl, FractionalMaxPool3dImpl, GRUImpl, GRUCellImpl, GroupNormImpl, LSTMImpl,
              LSTMCellImpl, LayerNormImpl, LinearImpl, LocalResponseNormImpl, LogSoftmaxImpl, ModuleDictImpl,
              MultiheadAttentionImpl, ParameterDictImpl, RNNImpl, RNNCellImpl, SequentialImpl, SoftmaxImpl, SoftminImpl,
              ThresholdImpl, TransformerDecoderImpl, TransformerDecoderLayerImpl, TransformerEncoderImpl,
              TransformerEncoderLayerImpl, UnflattenImpl, UnfoldImpl>();
  // Bases with a function that the class overrides.
  instantiate<Cloneable<ModuleDictImpl>, Cloneable<SequentialImpl>, ConvNdImpl<1, ConvTranspose1dImpl>,
              ConvNdImpl<2, ConvTranspose2dImpl>, ConvNdImpl<3, ConvTranspose3dImpl>>();
}

inline void instantiate_optimizers() {
  using namespace torch::optim;
  instantiate<AdagradOptions, AdagradParamState, AdamOptions, AdamParamState, AdamWOptions, AdamWParamState,
              LBFGSOptions, LBFGSParamState, RMSpropOptions, RMSpropParamState, SGDOptions, SGDParamState>();
}

inline void instantiate_datasets() {
  using namespace torch::data::datasets;
  instantiate<MNIST, TensorDataset>();
}

}  // namespace trainkit::pch
#endif
