#pragma once
/// Losses and convolutions as functions, faster than LibTorch's on the inputs that each one names; and replacements for
/// LibTorch's own slow operations.

#include <ATen/core/Tensor.h>
#include <c10/util/ArrayRef.h>

#include <cstdint>

namespace trainkit {

/// Computes the mean of -log softmax(logits)[target] over the rows whose target is not `ignore_index`. Equivalent to
/// at::cross_entropy_loss, as one autograd node that reads the logits once.
///
/// logits: (N, C), floating point; target: (N), int64, in 0..C-1 or `ignore_index`; or the probability of each class,
/// (N, C) floating point, as in torch.nn.functional.cross_entropy. Returns a scalar of the logits' dtype; NaN if every
/// target is ignored. Throws c10::IndexError for a target out of range; on CUDA this is a device
/// error that a later call reports, as in LibTorch. Under autocast the computation and the result are float32.
///
/// Two fast paths exist, both for contiguous logits. On the CPU in float32, one (N, C) tensor is kept for backward,
/// where LibTorch keeps one and allocates a second one in backward. On CUDA in float32, bfloat16 and float16, the
/// logits and one number per row are kept, and backward computes the gradient from them: no tensor of probabilities,
/// and no float32 copy under autocast. Neither has a second derivative: backward with create_graph throws an error
/// that names at::cross_entropy_loss, which has one. Other inputs, probabilities among them, use it. Values agree with
/// it within rounding (1e-6 relative in float32). Results are bitwise equal for any number of CPU threads, and on CUDA
/// between runs. Does not synchronise a device.
///
/// `weight`, (C) floating point on the logits' device, weights each row by its class: the result is the weighted mean.
/// `label_smoothing`, 0 to 1, mixes the target's one-hot vector with the uniform distribution. Both as in
/// torch.nn.functional.cross_entropy, and both use at::cross_entropy_loss. Throws c10::Error for another size or range.
at::Tensor cross_entropy(const at::Tensor& logits, const at::Tensor& target, int64_t ignore_index = -100,
                         const at::Tensor& weight = {}, double label_smoothing = 0);

/// Computes cross_entropy(linear(hidden, weight), target) without the logits of all rows: the output layer and the loss
/// of a language model.
///
/// hidden: (N, D), weight: (C, D), floating point; target: (N), int64, in 0..C-1 or `ignore_index`. Returns a scalar
/// of the inputs' dtype, float32 under autocast; NaN if every target is ignored. Errors as in cross_entropy().
///
/// A piece of rows at a time goes through the product, the loss and its gradient, in forward. Only these logits exist;
/// the separate functions keep two (N, C) tensors in float32, and four in bfloat16. Values agree with theirs within
/// rounding. No second derivative. A piece has 256 rows on the CPU, from 4096 classes on, in float32 and under autocast
/// to bfloat16; 2048 rows on a CUDA device, from 1024 classes on, in float32, bfloat16 and float16. There the number of
/// classes is rounded up to a multiple of 64 if it is not one of 8, because cuBLAS multiplies other sizes several times
/// slower; nothing synchronises. Elsewhere it calls the separate functions.
at::Tensor linear_cross_entropy(const at::Tensor& hidden, const at::Tensor& weight, const at::Tensor& target,
                                int64_t ignore_index = -100);

/// Returns the rows `ids` of a table: at::embedding(weight, ids), (..., D).
///
/// ids: int64, any shape; weight: (rows, D). Values and gradients equal LibTorch's within rounding. On CUDA a backward
/// of up to 4096 lookups in float32 is one kernel that gives the same bits every time, several times as fast as
/// LibTorch's. Other inputs, and backward with create_graph, use LibTorch's operation. Does not synchronise a device.
/// With `sparse` the gradient is sparse, as that of torch::nn::Embedding with sparse(true), for SparseAdam.
at::Tensor embedding_lookup(const at::Tensor& ids, const at::Tensor& weight, bool sparse = false);

/// Convolves images (N, C, H, W) or volumes (N, C, D, H, W) with the weight of a torch::nn::Conv2d or Conv3d, as
/// torch::conv2d and torch::conv3d do. With `relu`, negative results are replaced by 0 in the same pass.
///
/// On the CPU in float32 these cases have kernels of our own: 3 x 3 kernels with stride 1, by Winograd's algorithm with
/// 2 to 3 times fewer multiplications; kernels with few channels in two or three dimensions with a stride along the
/// last dimension only; kernels that cover everything, as matrix products. The number of output channels is a multiple
/// of 8 there, as is C if the input needs a gradient. The channels are innermost in the memory of the result
/// (channels_last); an input in this format is not copied. Values agree with LibTorch's within rounding: 1e-5 of the
/// largest value. Except for matrix products, results are bitwise equal for any number of threads. Under autocast to
/// bfloat16 the same kernels compute in float32 and the result is bfloat16, unless the processor has AMX. Backward with
/// create_graph, other inputs, and everything if the environment variable TRAINKIT_CONVOLUTION is 0, use LibTorch's
/// operations.
///
/// @param bias (output channels) or undefined. @param stride, padding one number for each dimension of the kernel.
at::Tensor convolution(const at::Tensor& input, const at::Tensor& weight, const at::Tensor& bias,
                       at::IntArrayRef stride, at::IntArrayRef padding, bool relu = false);

/// Replaces LibTorch's operations on the CPU where they are slow: aten::mm and aten::addmm (and their .out versions),
/// hence every Linear and its backward, and convolutions. Applies to all models of this process until it ends.
/// Attention calls none of them.
///
/// - float32 products of a million multiplications or more use oneDNN instead of MKL, which takes up to twice as
///   long on AMD processors. Only where oneDNN is as accurate as MKL, which the first call tests on one product; not
///   on Intel processors, where MKL is as fast, and not on x86 processors without AVX-512, for which LibTorch has no
///   such products. The environment variable TRAINKIT_ONEDNN_MATMUL=0 or 1 overrides the choice by processor.
/// - bfloat16 products, aten::bmm too, are computed in float32 and rounded once on x86 processors without AVX-512,
///   where LibTorch's take 7 to 80 times as long. There, convolutions under autocast compute and return float32 (13
///   times as fast with ResNet18).
///
/// The decision does not depend on timing, so that a resumed run is bitwise identical to an uninterrupted one. Call it
/// before the first step, from any thread; every trainer does. @return whether float32 products use oneDNN.
bool use_fast_kernels();

}  // namespace trainkit
