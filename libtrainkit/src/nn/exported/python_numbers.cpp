#include "nn/exported/python_numbers.h"

#include <c10/util/Exception.h>

#include <cmath>
#include <functional>
#include <map>

namespace trainkit::detail {
namespace {

using c10::IValue;

bool is_true(const IValue& value) {
  if (value.isBool()) return value.toBool();
  return value.isInt() ? value.toInt() != 0 : value.toDouble() != 0;
}

/// Booleans count as 0 and 1, as in Python.
bool is_integer(const IValue& value) { return value.isInt() || value.isBool(); }
int64_t integer(const IValue& value) { return value.isBool() ? static_cast<int64_t>(value.toBool()) : value.toInt(); }
double number(const IValue& value) {
  return is_integer(value) ? static_cast<double>(integer(value)) : value.toDouble();
}

template <class Checked>
int64_t checked(int64_t a, int64_t b, Checked operation) {
  int64_t result = 0;
  TORCH_CHECK_VALUE(!operation(a, b, &result), "a size does not fit into 64 bits");
  return result;
}

int64_t floordiv(int64_t a, int64_t b) {
  TORCH_CHECK_VALUE(b != 0 && !(a == INT64_MIN && b == -1), "a size is divided by 0");
  const int64_t quotient = a / b;
  return quotient - static_cast<int64_t>(a % b != 0 && (a < 0) != (b < 0));
}

int64_t power(int64_t base, int64_t exponent) {
  TORCH_CHECK_VALUE(exponent >= 0 && exponent < 64, "a size has an exponent of ", exponent);
  int64_t result = 1;
  for (int64_t i = 0; i < exponent; ++i) {
    result = checked(result, base, [](int64_t a, int64_t b, int64_t* c) { return __builtin_mul_overflow(a, b, c); });
  }
  return result;
}

/// An output of an operator with several, or an element of a list.
IValue item(const IValue& all, int64_t index) {
  if (all.isTuple()) {
    const auto& elements = all.toTupleRef().elements();
    TORCH_CHECK_VALUE(index >= 0 && index < std::ssize(elements), "output ", index, " of an operator does not exist");
    return elements[static_cast<size_t>(index)];
  }
  TORCH_CHECK_VALUE(all.isList(), "an element of a value that is no list");
  const c10::ArrayRef<IValue> list = all.toListRef();
  TORCH_CHECK_VALUE(index >= -static_cast<int64_t>(list.size()) && index < static_cast<int64_t>(list.size()),
                    "element ", index, " of a list of ", list.size());
  return list[static_cast<size_t>(index < 0 ? index + static_cast<int64_t>(list.size()) : index)];
}

using Arguments = c10::ArrayRef<IValue>;

/// Applies `whole`, which returns whether it overflows, to two integers, and `real` to other numbers.
template <class Whole, class Real>
IValue arithmetic(Arguments a, Whole whole, Real real) {
  if (!is_integer(a[0]) || !is_integer(a[1])) return real(number(a[0]), number(a[1]));
  return checked(integer(a[0]), integer(a[1]), whole);
}

using Functions = std::map<std::string, PythonFunction>;

void add(Functions& map, const char* name, size_t count, IValue (*function)(Arguments)) {
  map.emplace(name, PythonFunction{name, count, function});
}

void add_comparisons(Functions& map) {
  add(map, "max", 2, [](Arguments a) { return number(a[1]) > number(a[0]) ? a[1] : a[0]; });
  add(map, "min", 2, [](Arguments a) { return number(a[1]) < number(a[0]) ? a[1] : a[0]; });
  add(map, "eq", 2, [](Arguments a) -> IValue { return number(a[0]) == number(a[1]); });
  add(map, "ne", 2, [](Arguments a) -> IValue { return number(a[0]) != number(a[1]); });
  add(map, "lt", 2, [](Arguments a) -> IValue { return number(a[0]) < number(a[1]); });
  add(map, "le", 2, [](Arguments a) -> IValue { return number(a[0]) <= number(a[1]); });
  add(map, "gt", 2, [](Arguments a) -> IValue { return number(a[0]) > number(a[1]); });
  add(map, "ge", 2, [](Arguments a) -> IValue { return number(a[0]) >= number(a[1]); });
  add(map, "and", 2, [](Arguments a) -> IValue { return is_true(a[0]) && is_true(a[1]); });
  add(map, "or", 2, [](Arguments a) -> IValue { return is_true(a[0]) || is_true(a[1]); });
}

const Functions& functions() {
  static const auto all = [] {
    Functions map;
    add_comparisons(map);
    add(map, "getitem", 2, [](Arguments a) {
      TORCH_CHECK_VALUE(a[1].isInt(), "an index that is no integer");
      return item(a[0], a[1].toInt());
    });
    add(map, "ite", 3, [](Arguments a) { return is_true(a[0]) ? a[1] : a[2]; });
    add(map, "add", 2, [](Arguments a) {
      return arithmetic(
          a, [](int64_t x, int64_t y, int64_t* z) { return __builtin_add_overflow(x, y, z); }, std::plus<double>());
    });
    add(map, "sub", 2, [](Arguments a) {
      return arithmetic(
          a, [](int64_t x, int64_t y, int64_t* z) { return __builtin_sub_overflow(x, y, z); }, std::minus<double>());
    });
    add(map, "mul", 2, [](Arguments a) {
      return arithmetic(
          a, [](int64_t x, int64_t y, int64_t* z) { return __builtin_mul_overflow(x, y, z); },
          std::multiplies<double>());
    });
    add(map, "floordiv", 2, [](Arguments a) -> IValue {
      if (!is_integer(a[0]) || !is_integer(a[1])) return std::floor(number(a[0]) / number(a[1]));
      return floordiv(integer(a[0]), integer(a[1]));
    });
    add(map, "mod", 2, [](Arguments a) -> IValue {
      if (is_integer(a[0]) && is_integer(a[1])) {
        return integer(a[0]) - floordiv(integer(a[0]), integer(a[1])) * integer(a[1]);
      }
      return number(a[0]) - std::floor(number(a[0]) / number(a[1])) * number(a[1]);
    });
    add(map, "pow", 2, [](Arguments a) -> IValue {
      if (!is_integer(a[0]) || !is_integer(a[1])) return std::pow(number(a[0]), number(a[1]));
      return power(integer(a[0]), integer(a[1]));
    });
    add(map, "truediv", 2, [](Arguments a) -> IValue { return number(a[0]) / number(a[1]); });
    add(map, "neg", 1, [](Arguments a) -> IValue {
      if (!is_integer(a[0])) return -number(a[0]);
      return checked(0, integer(a[0]),
                     [](int64_t x, int64_t y, int64_t* z) { return __builtin_sub_overflow(x, y, z); });
    });
    add(map, "float", 1, [](Arguments a) -> IValue { return number(a[0]); });
    add(map, "int", 1, [](Arguments a) -> IValue {
      if (is_integer(a[0])) return integer(a[0]);
      TORCH_CHECK_VALUE(std::abs(a[0].toDouble()) < 9e18, "a size does not fit into 64 bits");
      return static_cast<int64_t>(a[0].toDouble());
    });
    add(map, "not", 1, [](Arguments a) -> IValue { return !is_true(a[0]); });
    return map;
  }();
  return all;
}

}  // namespace

IValue PythonFunction::operator()(c10::ArrayRef<IValue> arguments) const {
  TORCH_CHECK_VALUE(arguments.size() == count, name, " takes ", count, " arguments, got ", arguments.size());
  if (name != "getitem") {
    for (const IValue& value : arguments) {
      TORCH_CHECK_VALUE(value.isInt() || value.isDouble() || value.isBool(), name, " of a ", value.tagKind());
    }
  }
  return function(arguments);
}

const PythonFunction* find_python_function(const std::string& name) {
  const auto found = functions().find(name);
  return found == functions().end() ? nullptr : &found->second;
}

}  // namespace trainkit::detail
