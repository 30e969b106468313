#pragma once
/// Programs whose model Python exports, and ExportedModel runs.

#include <string>

#include "oracle.h"
#include "spec.h"

namespace trainkit::differential {

/// Spec::exported of a program that is drawn.
inline constexpr char kToExport[] = "yes";

/// Whether the model of a program is exported: about 20 of the first 200 in each thousand, of those whose model has a
/// graph. It has none if its layers depend on the values of a batch (branches) or keep a mode of their own.
bool is_exported(const Spec& spec);

/// The program with the exported model in the file `path`, which Python writes; without one if the model itself fails.
Spec with_exported_model(const Spec& spec, const Oracle& oracle, const std::string& path);

}  // namespace trainkit::differential
