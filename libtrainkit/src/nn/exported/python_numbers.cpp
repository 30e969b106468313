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

using Two = IValue (*)(const IValue&, const IValue&);

const std::map<std::string, Two>& functions_of_two() {
  static const std::map<std::string, Two> functions = {
      {"add",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return number(a) + number(b);
         return checked(integer(a), integer(b),
                        [](int64_t x, int64_t y, int64_t* z) { return __builtin_add_overflow(x, y, z); });
       }},
      {"sub",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return number(a) - number(b);
         return checked(integer(a), integer(b),
                        [](int64_t x, int64_t y, int64_t* z) { return __builtin_sub_overflow(x, y, z); });
       }},
      {"mul",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return number(a) * number(b);
         return checked(integer(a), integer(b),
                        [](int64_t x, int64_t y, int64_t* z) { return __builtin_mul_overflow(x, y, z); });
       }},
      {"floordiv",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return std::floor(number(a) / number(b));
         return floordiv(integer(a), integer(b));
       }},
      {"mod",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return number(a) - std::floor(number(a) / number(b)) * number(b);
         return integer(a) - floordiv(integer(a), integer(b)) * integer(b);
       }},
      {"pow",
       [](const IValue& a, const IValue& b) -> IValue {
         if (!is_integer(a) || !is_integer(b)) return std::pow(number(a), number(b));
         return power(integer(a), integer(b));
       }},
      {"truediv", [](const IValue& a, const IValue& b) -> IValue { return number(a) / number(b); }},
      {"max", [](const IValue& a, const IValue& b) -> IValue { return number(b) > number(a) ? b : a; }},
      {"min", [](const IValue& a, const IValue& b) -> IValue { return number(b) < number(a) ? b : a; }},
      {"eq", [](const IValue& a, const IValue& b) -> IValue { return number(a) == number(b); }},
      {"ne", [](const IValue& a, const IValue& b) -> IValue { return number(a) != number(b); }},
      {"lt", [](const IValue& a, const IValue& b) -> IValue { return number(a) < number(b); }},
      {"le", [](const IValue& a, const IValue& b) -> IValue { return number(a) <= number(b); }},
      {"gt", [](const IValue& a, const IValue& b) -> IValue { return number(a) > number(b); }},
      {"ge", [](const IValue& a, const IValue& b) -> IValue { return number(a) >= number(b); }},
      {"and", [](const IValue& a, const IValue& b) -> IValue { return is_true(a) && is_true(b); }},
      {"or", [](const IValue& a, const IValue& b) -> IValue { return is_true(a) || is_true(b); }},
  };
  return functions;
}

using One = IValue (*)(const IValue&);

const std::map<std::string, One>& functions_of_one() {
  static const std::map<std::string, One> functions = {
      {"neg",
       [](const IValue& a) -> IValue {
         if (!is_integer(a)) return -number(a);
         return checked(0, integer(a),
                        [](int64_t x, int64_t y, int64_t* z) { return __builtin_sub_overflow(x, y, z); });
       }},
      {"float", [](const IValue& a) -> IValue { return number(a); }},
      {"int",
       [](const IValue& a) -> IValue {
         if (is_integer(a)) return integer(a);
         TORCH_CHECK_VALUE(std::abs(a.toDouble()) < 9e18, "a size does not fit into 64 bits");
         return static_cast<int64_t>(a.toDouble());
       }},
      {"not", [](const IValue& a) -> IValue { return !is_true(a); }},
  };
  return functions;
}

/// An output of an operator with several, or an element of a list.
IValue item(const IValue& all, int64_t index) {
  if (all.isTuple()) {
    const auto& elements = all.toTupleRef().elements();
    TORCH_CHECK_VALUE(index >= 0 && index < std::ssize(elements), "output ", index, " of an operator does not exist");
    return elements[static_cast<size_t>(index)];
  }
  TORCH_CHECK_VALUE(all.isList(), "an element of a value that is no list");
  const auto list = all.toList();
  TORCH_CHECK_VALUE(index >= -static_cast<int64_t>(list.size()) && index < static_cast<int64_t>(list.size()),
                    "element ", index, " of a list of ", list.size());
  return list.get(static_cast<size_t>(index < 0 ? index + static_cast<int64_t>(list.size()) : index));
}

}  // namespace

bool is_python_function(const std::string& name) {
  return name == "getitem" || name == "ite" || functions_of_one().contains(name) || functions_of_two().contains(name);
}

IValue call_python_function(const std::string& name, const std::vector<IValue>& arguments) {
  const auto needs = [&](size_t count) {
    TORCH_CHECK_VALUE(arguments.size() == count, name, " takes ", count, " arguments, got ", arguments.size());
  };
  if (name == "getitem") {
    needs(2);
    TORCH_CHECK_VALUE(arguments[1].isInt(), "an index that is no integer");
    return item(arguments[0], arguments[1].toInt());
  }
  for (const IValue& value : arguments) {
    TORCH_CHECK_VALUE(value.isInt() || value.isDouble() || value.isBool(), name, " of a ", value.tagKind());
  }
  if (name == "ite") {
    needs(3);
    return is_true(arguments[0]) ? arguments[1] : arguments[2];
  }
  if (const auto one = functions_of_one().find(name); one != functions_of_one().end()) {
    needs(1);
    return one->second(arguments[0]);
  }
  const auto two = functions_of_two().find(name);
  TORCH_CHECK_VALUE(two != functions_of_two().end(), "a function '", name, "', which this version does not know");
  needs(2);
  return two->second(arguments[0], arguments[1]);
}

}  // namespace trainkit::detail
