// Kernels of lists of tensors, of Adam and of embeddings against references.
#include <algorithm>

#include "core/tensors/tensor_list_kernels.h"
#include "optim/adam_kernel.h"
#include "test_support.h"

using namespace trainkit::detail;

namespace {

/// Tensors of several sizes in one allocation; with `is_shifted` they begin one value after a multiple of 16 bytes.
struct Tensors {
  Tensors(unsigned seed, float scale, bool is_shifted, Number number = Number::kFloat)
      : values(Values::random(number, 8000, seed, scale)), bytes(bytes_of(number)) {
    size_t begin = is_shifted ? 1 : 0;
    for (const int64_t size : {1, 0, 1023, 1030, 4100, 3}) {
      begins.push_back(begin);
      sizes.push_back(size);
      begin += static_cast<size_t>(size + 7) / 8 * 8;
    }
  }

  size_t count() const { return sizes.size(); }
  void* address(size_t t) const { return static_cast<char*>(values.address()) + begins[t] * bytes; }
  double at(size_t t, int64_t i) const { return values[begins[t] + static_cast<size_t>(i)]; }
  /// In units of four bytes, as accesses are recorded.
  std::vector<Area> areas() const {
    std::vector<Area> all;
    for (size_t t = 0; t < count(); ++t) {
      const size_t begin = begins[t] * bytes / 4 * 4, end = begins[t] * bytes + static_cast<size_t>(sizes[t]) * bytes;
      if (sizes[t] > 0) all.push_back({static_cast<char*>(values.address()) + begin, (end + 3) / 4 * 4 - begin});
    }
    return all;
  }
  TensorList list() const {
    TensorList list;
    for (size_t t = 0; t < count(); ++t, ++list.count) {
      list.data[t] = static_cast<float*>(address(t));
      list.sizes[t] = sizes[t];
    }
    return list;
  }

  /// Compares with expected(tensor, index).
  template <typename Expected>
  void expect(const char* what, const Expected& expected, double units = 1.5) const {
    for (size_t t = 0; t < count(); ++t) {
      for (int64_t i = 0; i < sizes[t]; ++i) {
        const double wanted = expected(t, i), error = std::abs(at(t, i) - wanted);
        if (error <= 1e-5 + std::abs(wanted) * units * (bytes == 4 ? 1e-6 : 0.004)) continue;
        CHECK(false, "%s %zu[%lld] = %g, not %g", what, t, static_cast<long long>(i), at(t, i), wanted);
        return;
      }
    }
  }

  Values values;
  size_t bytes;
  std::vector<size_t> begins;
  std::vector<int64_t> sizes;
};

Values scalar(float value) {
  Values one(Number::kFloat, 1);
  one.set(0, value);
  return one;
}

}  // namespace

Bits norm_of_list_case(bool is_shifted) {
  const Tensors tensors(21, 2, is_shifted);
  const TensorList list = tensors.list();
  const auto chunks = Chunks<>::of(list.sizes, list.count);
  const auto blocks = static_cast<size_t>(chunks.first[list.count]);
  const Values sums(Number::kFloat, blocks), norm(Number::kFloat, 1);
  CHECK(launch_squares(list, sums.floats(), nullptr) == cudaSuccess, "squares");
  expect_accesses(tensors.areas(), false, "squares");
  expect_accesses({{sums.address(), sums.bytes()}}, true, "squares");
  CHECK(launch_norm(sums.floats(), static_cast<int64_t>(blocks), norm.floats(), nullptr) == cudaSuccess, "norm");
  double squares = 0;
  for (size_t t = 0; t < tensors.count(); ++t) {
    for (int64_t i = 0; i < tensors.sizes[t]; ++i) squares += tensors.at(t, i) * tensors.at(t, i);
  }
  norm.expect({std::sqrt(squares)}, "norm");
  forget_launches();
  return bits_of(sums, norm);
}

Bits unscale_case(bool is_shifted, bool has_infinity) {
  Tensors tensors(22, 2, is_shifted);
  if (has_infinity) tensors.values.set(tensors.begins[3] + 1029, INFINITY);
  const Tensors before(22, 2, is_shifted);
  const Values by = scalar(0.25f), found_inf = scalar(0);
  CHECK(launch_unscale(tensors.list(), by.floats(), found_inf.floats(), nullptr) == cudaSuccess, "unscale");
  found_inf.expect({has_infinity ? 1.0 : 0.0}, "found_inf", 0, 0);
  if (!has_infinity) {
    tensors.expect("unscaled", [&](size_t t, int64_t i) { return before.at(t, i) * 0.25; });
    expect_accesses(tensors.areas(), true, "unscale");
  }
  forget_launches();
  return bits_of(tensors.values, found_inf);
}

Bits cast_case(bool is_shifted, bool to_bfloat16) {
  const Number number = to_bfloat16 ? Number::kBFloat16 : Number::kHalf;
  const Tensors from(23, 3, is_shifted), to(24, 1, is_shifted, number);
  CastList list;
  for (size_t t = 0; t < from.count(); ++t, ++list.count) {
    list.from[t] = static_cast<const float*>(from.address(t));
    list.to[t] = to.address(t);
    list.sizes[t] = from.sizes[t];
  }
  CHECK(launch_cast(list, to_bfloat16, nullptr) == cudaSuccess, "cast");
  to.expect(
      "cast", [&](size_t t, int64_t i) { return rounded(number, static_cast<float>(from.at(t, i))); }, 0);
  expect_accesses(from.areas(), false, "cast");
  expect_accesses(to.areas(), true, "cast");
  return bits_of(to.values);
}

Bits copy_case(bool is_shifted, float condition) {
  const Tensors from(30, 1, is_shifted), to(31, 1, false), before(31, 1, false);
  CopyList list;
  for (size_t t = 0; t < from.count(); ++t, ++list.count) {
    // With an odd number of bytes, and for a shift not aligned to four.
    list.from[t] = static_cast<const char*>(from.address(t)) + (is_shifted ? 2 : 0);
    list.to[t] = to.address(t);
    list.sizes[t] = from.sizes[t] > 3 ? from.sizes[t] * 4 - 3 : 0;
  }
  const Values decides = scalar(condition);
  CHECK(launch_copy(list, condition == 2 ? nullptr : decides.floats(), nullptr) == cudaSuccess, "copy");
  for (int t = 0; t < list.count; ++t) {
    const auto* const wanted = static_cast<const char*>(
        fake::bytes_of(condition == 0 ? before.address(static_cast<size_t>(t)) : list.from[t]));
    const bool is_equal = memcmp(fake::bytes_of(list.to[t]), wanted, static_cast<size_t>(list.sizes[t])) == 0;
    CHECK(is_equal, "copy %d", t);
    if (list.sizes[t] == 0) continue;
    const size_t after = static_cast<size_t>(list.sizes[t]);
    const auto* const kept = static_cast<const char*>(fake::bytes_of(before.address(static_cast<size_t>(t))));
    CHECK(static_cast<const char*>(fake::bytes_of(list.to[t]))[after] == kept[after], "after copy %d", t);
  }
  forget_launches();
  return bits_of(to.values);
}

Bits adam_case(bool is_shifted, bool decouples_decay, bool is_skipped) {
  const Tensors params(25, 1, is_shifted), gradients(26, 1, is_shifted);
  Tensors exp_avgs(27, 0.1f, is_shifted), exp_avg_sqs(28, 0.1f, is_shifted);
  for (size_t t = 0; t < exp_avg_sqs.count(); ++t) {
    for (int64_t i = 0; i < exp_avg_sqs.sizes[t]; ++i) {
      exp_avg_sqs.values.set(exp_avg_sqs.begins[t] + static_cast<size_t>(i),
                             static_cast<float>(0.01 + 0.001 * (i % 7)));
    }
  }
  const Tensors before(25, 1, is_shifted), mean(27, 0.1f, is_shifted);
  const Values step = scalar(3), lr = scalar(0.02f), found_inf = scalar(is_skipped ? 1 : 0);
  AdamList list;
  for (size_t t = 0; t < params.count(); ++t, ++list.count) {
    list.params[t] = static_cast<float*>(params.address(t));
    list.gradients[t] = static_cast<const float*>(gradients.address(t));
    list.exp_avgs[t] = static_cast<float*>(exp_avgs.address(t));
    list.exp_avg_sqs[t] = static_cast<float*>(exp_avg_sqs.address(t));
    list.steps[t] = step.floats();
    list.sizes[t] = params.sizes[t];
  }
  const AdamArguments a = {0.9f, 0.99f, 1e-6f, 0.1f, 0, lr.floats(), found_inf.floats(), decouples_decay};
  CHECK(launch_adam(list, a, nullptr) == cudaSuccess, "adam");
  params.expect(
      "param",
      [&](size_t t, int64_t i) {
        double param = before.at(t, i), gradient = gradients.at(t, i);
        if (is_skipped) return param;
        if (decouples_decay) {
          param -= 0.02 * 0.1 * param;
        } else {
          gradient += 0.1 * param;
        }
        const double m = 0.9 * mean.at(t, i) + 0.1 * gradient;
        const double v = 0.99 * (0.01 + 0.001 * static_cast<double>(i % 7)) + 0.01 * gradient * gradient;
        return param - 0.02 * m / (1 - std::pow(0.9, 3)) / (std::sqrt(v / (1 - std::pow(0.99, 3))) + 1e-6);
      },
      3);
  std::vector<Area> writes = params.areas();
  for (const Tensors* moments : {&exp_avgs, &exp_avg_sqs}) {
    for (const Area& area : moments->areas()) writes.push_back(area);
  }
  expect_accesses(is_skipped ? std::vector<Area>{} : writes, true, "adam");
  return bits_of(params.values, exp_avgs.values, exp_avg_sqs.values);
}

Bits embedding_case(int64_t width, int64_t distinct) {
  constexpr size_t kLookups = 600;
  constexpr int64_t kRows = 700;
  std::vector<int64_t> chosen(kLookups);
  for (size_t i = 0; i < kLookups; ++i) chosen[i] = static_cast<int64_t>(i * i * 7 + i) % distinct * 3 % kRows;
  const Items<int64_t> ids(chosen);
  const Values d_out = Values::random(Number::kFloat, kLookups * static_cast<size_t>(width), 29);
  const Values d_weight(Number::kFloat, static_cast<size_t>(kRows * width));
  for (size_t i = 0; i < d_weight.count(); ++i) const_cast<Values&>(d_weight).set(i, 0);
  const EmbeddingGradientArguments a = {kLookups, width, ids.address, d_out.floats(), d_weight.floats()};
  CHECK(on_gpu::run(a, {Number::kFloat, Number::kFloat}, nullptr) == cudaSuccess, "embedding");
  std::vector<double> expected(d_weight.count());
  std::vector<Area> writes;
  for (size_t i = 0; i < kLookups; ++i) {
    writes.push_back({d_weight.floats() + chosen[i] * width, static_cast<size_t>(width) * 4});
    for (int64_t c = 0; c < width; ++c) {
      expected[static_cast<size_t>(chosen[i] * width + c)] +=
          d_out[i * static_cast<size_t>(width) + static_cast<size_t>(c)];
    }
  }
  d_weight.expect(expected, "d_weight");
  expect_accesses(writes, true, "embedding");
  return bits_of(d_weight);
}
