// Layer norm and GELU against references in double precision.
#include "test_support.h"

using namespace trainkit::detail;

namespace {

constexpr float kEps = 1e-5f;

struct Row {
  std::vector<double> sum;
  double mean = 0, inverse_std = 0;

  Row(const Values& values, int64_t row, int64_t width) {
    for (int64_t c = 0; c < width; ++c) sum.push_back(values[row * width + c]);
    double squares = 0;
    for (const double x : sum) mean += x / static_cast<double>(width);
    for (const double x : sum) squares += (x - mean) * (x - mean) / static_cast<double>(width);
    inverse_std = 1 / std::sqrt(squares + kEps);
  }
};

double gelu(double x, bool by_tanh) {
  if (!by_tanh) return 0.5 * x * std::erfc(-x / std::sqrt(2.0));
  return 0.5 * x * (1 + std::tanh(std::sqrt(2 / M_PI) * (x + 0.044715 * x * x * x)));
}

double gelu_slope(double x, bool by_tanh) {
  constexpr double kStep = 1e-5;
  return (gelu(x + kStep, by_tanh) - gelu(x - kStep, by_tanh)) / (2 * kStep);
}

std::vector<double> all(const Values& values) {
  std::vector<double> copy;
  for (size_t i = 0; i < values.count(); ++i) copy.push_back(values[i]);
  return copy;
}

}  // namespace

Bits norm_case(Numbers numbers, int64_t rows, int64_t width, bool has_added, bool has_bias) {
  const auto size = static_cast<size_t>(rows * width), columns = static_cast<size_t>(width);
  const Values x = Values::random(numbers.stream, size, 1), added = Values::random(numbers.product, size, 2);
  const Values weight = Values::random(numbers.stream, columns, 3), bias = Values::random(numbers.stream, columns, 4);
  const Values sum(numbers.stream, size), out(numbers.product, size);
  const Values mean(Number::kFloat, static_cast<size_t>(rows)), inverse_std(Number::kFloat, static_cast<size_t>(rows));
  const NormArguments a = {rows,
                           width,
                           x.address(),
                           has_added ? added.address() : nullptr,
                           weight.address(),
                           has_bias ? bias.address() : nullptr,
                           kEps,
                           sum.address(),
                           out.address(),
                           mean.floats(),
                           inverse_std.floats()};
  CHECK(on_gpu::run(a, numbers, nullptr) == cudaSuccess, "norm");

  Values expected_sum(numbers.stream, size);
  for (size_t i = 0; i < size; ++i) expected_sum.set(i, static_cast<float>(has_added ? x[i] + added[i] : x[i]));
  std::vector<double> expected;
  for (int64_t r = 0; r < rows; ++r) {
    const Row row(expected_sum, r, width);
    CHECK(std::abs(mean[r] - row.mean) < 1e-5, "mean of row %ld", r);
    CHECK(std::abs(inverse_std[r] / row.inverse_std - 1) < 1e-5, "inverse_std of row %ld", r);
    for (size_t c = 0; c < columns; ++c) {
      expected.push_back((row.sum[c] - row.mean) * row.inverse_std * weight[c] + (has_bias ? bias[c] : 0));
    }
  }
  if (has_added) sum.expect(all(expected_sum), "sum", 0, 0);
  out.expect(expected, "out");
  std::vector<Area> reads = {{x.address(), x.bytes()}, {weight.address(), weight.bytes()}};
  std::vector<Area> writes = {
      {out.address(), out.bytes()}, {mean.address(), mean.bytes()}, {inverse_std.address(), mean.bytes()}};
  if (has_added) reads.push_back({added.address(), added.bytes()});
  if (has_bias) reads.push_back({bias.address(), bias.bytes()});
  if (has_added) writes.push_back({sum.address(), sum.bytes()});
  expect_accesses(reads, false, "norm");
  expect_accesses(writes, true, "norm");
  return bits_of(out, mean, inverse_std, sum);
}

Bits norm_gradient_case(Numbers numbers, int64_t rows, int64_t width, bool has_added, bool has_bias) {
  const auto size = static_cast<size_t>(rows * width), columns = static_cast<size_t>(width);
  const Values sum = Values::random(numbers.stream, size, 5), d_out = Values::random(numbers.product, size, 6);
  const Values d_residual = Values::random(numbers.stream, size, 7),
               weight = Values::random(numbers.stream, columns, 8);
  Values mean(Number::kFloat, static_cast<size_t>(rows)), inverse_std(Number::kFloat, static_cast<size_t>(rows));
  const Values d_sum(numbers.stream, size), d_added(numbers.product, size);
  const int64_t sums = has_bias ? 2 : 1;
  const Values parts(Number::kFloat, static_cast<size_t>(most_parts(width) * sums * width));
  const Values d_weight(numbers.stream, columns), d_bias(numbers.stream, columns);

  std::vector<double> expected(size), weight_sums(columns), bias_sums(columns);
  for (int64_t r = 0; r < rows; ++r) {
    const Row row(sum, r, width);
    mean.set(r, static_cast<float>(row.mean));
    inverse_std.set(r, static_cast<float>(row.inverse_std));
    double g = 0, g_n = 0;
    const auto n_at = [&](size_t c) { return (row.sum[c] - row.mean) * row.inverse_std; };
    for (size_t c = 0; c < columns; ++c) {
      const double d = d_out[r * columns + c];
      g += d * weight[c] / static_cast<double>(width);
      g_n += d * weight[c] * n_at(c) / static_cast<double>(width);
      weight_sums[c] += d * n_at(c);
      bias_sums[c] += d;
    }
    for (size_t c = 0; c < columns; ++c) {
      const size_t at = r * columns + c;
      expected[at] = row.inverse_std * (d_out[at] * weight[c] - g - n_at(c) * g_n) + (has_added ? d_residual[at] : 0);
    }
  }
  const NormGradientArguments a = {rows,
                                   width,
                                   d_out.address(),
                                   has_added ? d_residual.address() : nullptr,
                                   sum.address(),
                                   weight.address(),
                                   mean.floats(),
                                   inverse_std.floats(),
                                   d_sum.address(),
                                   has_added ? d_added.address() : nullptr,
                                   parts.floats(),
                                   d_weight.address(),
                                   has_bias ? d_bias.address() : nullptr};
  CHECK(on_gpu::run(a, numbers, nullptr) == cudaSuccess, "norm gradient");
  d_sum.expect(expected, "d_sum");
  if (has_added) d_added.expect(expected, "d_added");
  d_weight.expect(weight_sums, "d_weight", 1.5, 1e-4);
  if (has_bias) d_bias.expect(bias_sums, "d_bias", 1.5, 1e-4);
  std::vector<Area> writes = {{d_sum.address(), d_sum.bytes()},
                              {d_weight.address(), d_weight.bytes()},
                              {parts.address(), static_cast<size_t>(parts_of(rows, width) * sums * width) * 4}};
  if (has_added) writes.push_back({d_added.address(), d_added.bytes()});
  if (has_bias) writes.push_back({d_bias.address(), d_bias.bytes()});
  expect_accesses(writes, true, "norm gradient");
  return bits_of(d_sum, d_added, d_weight, d_bias);
}

Bits gelu_case(Numbers numbers, int64_t rows, int64_t width, bool by_tanh) {
  const auto size = static_cast<size_t>(rows * width), columns = static_cast<size_t>(width);
  const Values x = Values::random(numbers.product, size, 9, 2), bias = Values::random(numbers.stream, columns, 10);
  const Values out(numbers.product, size);
  const GeluArguments a = {rows, width, by_tanh, x.address(), bias.address(), out.address()};
  CHECK(on_gpu::run(a, numbers, nullptr) == cudaSuccess, "gelu");
  std::vector<double> expected;
  for (size_t i = 0; i < size; ++i) expected.push_back(gelu(x[i] + bias[i % columns], by_tanh));
  out.expect(expected, "gelu");
  expect_accesses({{x.address(), x.bytes()}, {bias.address(), bias.bytes()}}, false, "gelu");
  expect_accesses({{out.address(), out.bytes()}}, true, "gelu");
  return bits_of(out);
}

Bits gelu_gradient_case(Numbers numbers, int64_t rows, int64_t width, bool by_tanh) {
  const auto size = static_cast<size_t>(rows * width), columns = static_cast<size_t>(width);
  const Values d_out = Values::random(numbers.product, size, 11), x = Values::random(numbers.product, size, 12, 2);
  const Values bias = Values::random(numbers.stream, columns, 13), d_x(numbers.product, size);
  const Values parts(Number::kFloat, static_cast<size_t>(most_parts(width) * width)), d_bias(numbers.stream, columns);
  const GeluGradientArguments a = {rows,           width,         by_tanh,        d_out.address(), x.address(),
                                   bias.address(), d_x.address(), parts.floats(), d_bias.address()};
  CHECK(on_gpu::run(a, numbers, nullptr) == cudaSuccess, "gelu gradient");
  std::vector<double> expected, sums(columns);
  for (size_t i = 0; i < size; ++i) {
    expected.push_back(d_out[i] * gelu_slope(x[i] + bias[i % columns], by_tanh));
    sums[i % columns] += expected.back();
  }
  d_x.expect(expected, "d_x");
  d_bias.expect(sums, "d_bias", 1.5, 1e-4);
  expect_accesses({{d_x.address(), d_x.bytes()},
                   {d_bias.address(), d_bias.bytes()},
                   {parts.address(), static_cast<size_t>(parts_of(rows, width) * width) * 4}},
                  true, "gelu gradient");
  return bits_of(d_x, d_bias);
}
