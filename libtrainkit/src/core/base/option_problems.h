#pragma once
/// Collects the invalid fields of an options struct into one error message.

#include <cmath>
#include <sstream>
#include <string>
#include <string_view>

namespace trainkit::detail {

inline bool finite_not_negative(double value) { return value >= 0 && std::isfinite(value); }

/// Text "<name> must be <rule>, got <value>; ...", one part per invalid field.
class OptionProblems {
 public:
  /// Adds `problem` unless `holds` or the problem is empty.
  OptionProblems& require(bool holds, std::string_view problem) {
    if (holds || problem.empty()) return *this;
    if (!text_.empty()) text_ += "; ";
    text_ += problem;
    return *this;
  }
  /// Adds "<name> must be <rule>, got <value>" unless `holds`.
  template <class Value>
  OptionProblems& require(bool holds, std::string_view name, std::string_view rule, const Value& value) {
    if (holds) return *this;
    std::ostringstream problem;
    problem << name << " must be " << rule << ", got " << value;
    return require(false, problem.str());
  }

  bool empty() const { return text_.empty(); }
  const std::string& text() const { return text_; }

 private:
  std::string text_;
};

}  // namespace trainkit::detail
