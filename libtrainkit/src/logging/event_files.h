#pragma once
/// Names of TensorBoard's event files.

#include <string>
#include <string_view>

namespace trainkit::detail {

/// Whether this is the name of an event file of the run with this id (make_run_id). With an empty id: of one that this
/// library has written for a run without an id.
bool is_event_file_of(std::string_view name, const std::string& run_id);

}  // namespace trainkit::detail
