#include "distributed/replicas/graph_ranks.h"

#include "distributed/group/process_group_impl.h"
#include "distributed/replicas/rank_reduction.h"

namespace trainkit::detail {

void GraphRanks::begin_capture() { group_.impl().set_capturing(true); }

void GraphRanks::end_capture() {
  group_.impl().set_capturing(false);
  reduction_.forget_sent();  // it is part of the graph
}

void GraphRanks::rearrange() { reduction_.rearrange(); }
void GraphRanks::reduce() { reduction_.reduce(); }
void GraphRanks::start_watch() { group_.impl().start_watch(); }

absl::Status GraphRanks::check(std::string_view what, std::chrono::steady_clock::time_point started) {
  return group_.impl().check(what, started);
}

}  // namespace trainkit::detail
