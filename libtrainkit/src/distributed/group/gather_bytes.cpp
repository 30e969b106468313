#include "distributed/group/gather_bytes.h"

#include <ATen/ops/zeros.h>

#include "trainkit/core/status.h"

namespace trainkit::detail {

absl::StatusOr<at::Tensor> gather_bytes(ProcessGroup& group, const at::Tensor& mine, const std::string& what) {
  const at::Tensor all = at::zeros({group.world_size(), mine.numel()}, mine.options());
  all[group.rank()].copy_(mine);
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce(all, "gathering " + what));
  return all;
}

}  // namespace trainkit::detail
