// Arithmetic, comparisons and shapes as ONNX operators.
#include <c10/core/ScalarType.h>

#include <algorithm>
#include <cmath>
#include <limits>

#include "onnx/onnx_builder.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kToEnd = std::numeric_limits<int64_t>::max();

// ---- Arithmetic

void same(OnnxCall& call) { call.finish(call.build.cast(call.tensor("self"), call.value("self").dtype, call.dtype())); }

template <const char* const& kType>
void unary(OnnxCall& call) {
  call.finish(call.build.node(kType, {call.operand("self", call.dtype())}));
}

/// self OP alpha * other
std::string scaled_other(OnnxCall& call) {
  const std::string other = call.operand("other", call.dtype());
  const double alpha = call.number_or("alpha", 1);
  return alpha == 1 ? other : call.build.node("Mul", {other, call.build.scalar(alpha, call.dtype())});
}

template <const char* const& kType>
void binary(OnnxCall& call) {
  if (call.has("rounding_mode")) call.refuse("rounding_mode");
  call.finish(call.build.node(kType, {call.operand("self", call.dtype()), scaled_other(call)}));
}

void rsub(OnnxCall& call) {
  if (call.number_or("alpha", 1) != 1) call.refuse("alpha");
  call.finish(call.build.node("Sub", {call.operand("other", call.dtype()), call.operand("self", call.dtype())}));
}

void power(OnnxCall& call) {
  call.finish(call.build.node("Pow", {call.operand("self", call.dtype()), call.operand("exponent", call.dtype())}));
}

void square(OnnxCall& call) {
  const std::string x = call.tensor("self");
  call.finish(call.build.node("Mul", {x, x}));
}

void rsqrt(OnnxCall& call) {
  const std::string root = call.build.node("Sqrt", {call.operand("self", call.dtype())});
  call.finish(call.build.node("Reciprocal", {root}));
}

void logical_not(OnnxCall& call) { call.finish(call.build.node("Not", {call.operand("self", at::kBool)})); }

void clamp(OnnxCall& call) {
  const auto bound = [&](const char* name) {
    return call.has(name) ? call.build.scalar(call.number_or(name, 0), call.dtype()) : std::string();
  };
  call.finish(call.build.node("Clip", {call.operand("self", call.dtype()), bound("min"), bound("max")}));
}

void masked_fill(OnnxCall& call) {
  call.finish(call.build.node("Where", {call.operand("mask", at::kBool), call.operand("value", call.dtype()),
                                        call.operand("self", call.dtype())}));
}

void where(OnnxCall& call) {
  call.finish(call.build.node("Where", {call.operand("condition", at::kBool), call.operand("self", call.dtype()),
                                        call.operand("other", call.dtype())}));
}

void fill_with(OnnxCall& call, const std::string& value) {
  call.finish(call.build.node("Expand", {value, call.build.node("Shape", {call.tensor("self")})}));
}

template <int kValue>
void filled_like(OnnxCall& call) {
  fill_with(call, call.build.scalar(kValue, call.dtype()));
}

void fill(OnnxCall& call) { fill_with(call, call.operand("value", call.dtype())); }

void full_like(OnnxCall& call) { fill_with(call, call.operand("fill_value", call.dtype())); }

// ---- Reductions

std::string reduce_mean(OnnxCall& call, const std::string& x, const std::vector<int64_t>& dims, bool keep) {
  return call.build.node("ReduceMean", {x}, {{"axes", dims}, {"keepdims", int64_t{keep}}});
}

void mean(OnnxCall& call) {
  call.finish(reduce_mean(call, call.operand("self", call.dtype()), call.dims("dim"), call.flag_or("keepdim", false)));
}

void sum(OnnxCall& call) {
  call.finish(call.build.node("ReduceSum", {call.operand("self", call.dtype()), call.build.integers(call.dims("dim"))},
                              {{"keepdims", int64_t{call.flag_or("keepdim", false)}}}));
}

void variance(OnnxCall& call) {
  const double correction = call.has("unbiased") ? call.flag_or("unbiased", true) : call.number_or("correction", 1);
  if (correction != 0) call.refuse("correction other than 0");
  const std::string x = call.tensor("self");
  const std::vector<int64_t> dims = call.dims("dim");
  const std::string difference = call.build.node("Sub", {x, reduce_mean(call, x, dims, /*keep=*/true)});
  call.finish(
      reduce_mean(call, call.build.node("Mul", {difference, difference}), dims, call.flag_or("keepdim", false)));
}

// ---- Shapes

void reshape(OnnxCall& call) {
  const std::vector<int64_t>& sizes = call.result().sizes;
  if (std::count(sizes.begin(), sizes.end(), kAnySize) > 1) call.refuse("several sizes depend on the number of rows");
  call.finish(call.build.node("Reshape", {call.tensor("self"), call.build.integers(sizes)}));
}

void expand(OnnxCall& call) {
  std::vector<int64_t> sizes = call.result().sizes;
  const std::vector<int64_t>& from = call.value("self").sizes;
  for (size_t i = 0; i < sizes.size(); ++i) {
    if (sizes[i] != kAnySize) continue;
    const size_t before = sizes.size() - from.size();
    if (i < before || from[i - before] != kAnySize) call.refuse("a new size depends on the number of rows");
    sizes[i] = 1;  // keeps the size
  }
  call.finish(call.build.node("Expand", {call.tensor("self"), call.build.integers(sizes)}));
}

void transpose_to(OnnxCall& call, const std::vector<int64_t>& order) {
  call.finish(call.build.node("Transpose", {call.tensor("self")}, {{"perm", order}}));
}

void permute(OnnxCall& call) {
  std::vector<int64_t> order = call.integers("dims");
  for (int64_t& each : order) each = each < 0 ? each + static_cast<int64_t>(order.size()) : each;
  transpose_to(call, order);
}

std::vector<int64_t> in_order(size_t count) {
  std::vector<int64_t> order(count);
  for (size_t i = 0; i < count; ++i) order[i] = static_cast<int64_t>(i);
  return order;
}

void transpose(OnnxCall& call) {
  std::vector<int64_t> order = in_order(call.value("self").sizes.size());
  std::swap(order[static_cast<size_t>(call.dim("dim0"))], order[static_cast<size_t>(call.dim("dim1"))]);
  transpose_to(call, order);
}

void t(OnnxCall& call) {
  std::vector<int64_t> order = in_order(call.value("self").sizes.size());
  std::reverse(order.begin(), order.end());
  transpose_to(call, order);
}

void unsqueeze(OnnxCall& call) {
  const int64_t given = call.integer("dim");
  const int64_t dim = given < 0 ? given + static_cast<int64_t>(call.result().sizes.size()) : given;
  call.finish(call.build.node("Unsqueeze", {call.tensor("self"), call.build.integers({dim})}));
}

void select(OnnxCall& call) {
  const int64_t dim = call.dim("dim"), size = call.value("self").sizes[static_cast<size_t>(dim)];
  const int64_t given = call.integer("index");
  if (given < 0 && size == kAnySize) call.refuse("an index from the end of the rows");
  const std::string index = call.build.scalar(static_cast<double>(given < 0 ? given + size : given), at::kLong);
  call.finish(call.build.node("Gather", {call.tensor("self"), index}, {{"axis", dim}}));
}

std::string slice_of(OnnxCall& call, int64_t dim, int64_t begin, int64_t end, int64_t step) {
  OnnxBuilder& build = call.build;
  return build.node("Slice", {call.tensor("self"), build.integers({begin}), build.integers({end}),
                              build.integers({dim}), build.integers({step})});
}

void slice(OnnxCall& call) {
  call.finish(slice_of(call, call.dim("dim"), call.integer_or("start", 0), call.integer_or("end", kToEnd),
                       call.integer_or("step", 1)));
}

void narrow(OnnxCall& call) {
  const int64_t begin = call.integer("start");
  call.finish(slice_of(call, call.dim("dim"), begin, begin + call.integer("length"), 1));
}

/// chunk, split: slices of fixed sizes.
void split(OnnxCall& call) {
  const int64_t dim = call.dim("dim");
  int64_t begin = 0;
  for (size_t i = 0; i < call.results(); ++i) {
    const int64_t size = call.result(i).sizes[static_cast<size_t>(dim)];
    if (size == kAnySize) call.refuse("a split of the rows");
    call.finish(slice_of(call, dim, begin, begin + size, 1), i);
    begin += size;
  }
}

void join(OnnxCall& call, bool adds_dim) {
  std::vector<std::string> parts;
  int64_t dim = call.integer("dim");
  if (dim < 0) dim += static_cast<int64_t>(call.result().sizes.size());
  for (const ValueId id : call.ids("tensors")) {
    std::string part = call.build.cast(call.build.name_of(id), call.build.value(id).dtype, call.dtype());
    if (adds_dim) part = call.build.node("Unsqueeze", {part, call.build.integers({dim})});
    parts.push_back(part);
  }
  call.finish(call.build.node("Concat", parts, {{"axis", dim}}));
}

void cat(OnnxCall& call) { join(call, /*adds_dim=*/false); }
void stack(OnnxCall& call) { join(call, /*adds_dim=*/true); }

void index_select(OnnxCall& call) {
  call.finish(call.build.node("Gather", {call.tensor("self"), call.tensor("index")}, {{"axis", call.dim("dim")}}));
}

constexpr const char *kRelu = "Relu", *kSigmoid = "Sigmoid", *kTanh = "Tanh", *kExp = "Exp", *kLog = "Log",
                     *kSqrt = "Sqrt", *kAbs = "Abs", *kNeg = "Neg", *kErf = "Erf", *kAdd = "Add", *kSub = "Sub",
                     *kMul = "Mul", *kDiv = "Div", *kMax = "Max", *kMin = "Min";

}  // namespace

const std::map<std::string, OnnxTranslation>& onnx_tensor_operations() {
  static const std::map<std::string, OnnxTranslation> operations = {
      {"relu", unary<kRelu>},
      {"sigmoid", unary<kSigmoid>},
      {"tanh", unary<kTanh>},
      {"exp", unary<kExp>},
      {"log", unary<kLog>},
      {"sqrt", unary<kSqrt>},
      {"abs", unary<kAbs>},
      {"neg", unary<kNeg>},
      {"erf", unary<kErf>},
      {"rsqrt", rsqrt},
      {"square", square},
      {"pow", power},
      {"add", binary<kAdd>},
      {"sub", binary<kSub>},
      {"mul", binary<kMul>},
      {"div", binary<kDiv>},
      {"maximum", binary<kMax>},
      {"minimum", binary<kMin>},
      {"rsub", rsub},
      {"logical_not", logical_not},
      {"clamp", clamp},
      {"clamp_min", clamp},
      {"clamp_max", clamp},
      {"masked_fill", masked_fill},
      {"where", where},
      {"empty_like", filled_like<0>},
      {"zeros_like", filled_like<0>},
      {"ones_like", filled_like<1>},
      {"fill", fill},
      {"full_like", full_like},
      {"mean", mean},
      {"sum", sum},
      {"var", variance},
      {"to", same},
      {"_to_copy", same},
      {"contiguous", same},
      {"clone", same},
      {"detach", same},
      {"alias", same},
      {"type_as", same},
      {"view", reshape},
      {"reshape", reshape},
      {"view_as", reshape},
      {"flatten", reshape},
      {"unflatten", reshape},
      {"squeeze", reshape},
      {"expand", expand},
      {"expand_as", expand},
      {"permute", permute},
      {"transpose", transpose},
      {"t", t},
      {"unsqueeze", unsqueeze},
      {"select", select},
      {"slice", slice},
      {"narrow", narrow},
      {"chunk", split},
      {"split", split},
      {"cat", cat},
      {"stack", stack},
      {"index_select", index_select},
  };
  return operations;
}

}  // namespace trainkit::detail
