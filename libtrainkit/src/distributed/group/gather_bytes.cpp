#include "distributed/group/gather_bytes.h"

#include <ATen/ops/tensor.h>
#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cstring>

#include "trainkit/core/status.h"

namespace trainkit::detail {

absl::StatusOr<at::Tensor> gather_bytes(ProcessGroup& group, const at::Tensor& mine, const std::string& what) {
  const at::Tensor all = at::zeros({group.world_size(), mine.numel()}, mine.options());
  all[group.rank()].copy_(mine);
  TRAINKIT_RETURN_IF_ERROR(group.all_reduce(all, "gathering " + what));
  return all;
}

absl::StatusOr<std::vector<std::string>> gather_texts(ProcessGroup& group, const std::string& mine,
                                                      const std::string& what) {
  const at::Tensor size = at::tensor({static_cast<int64_t>(mine.size())}, at::kLong);
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor bytes, gather_bytes(group, size.view(at::kByte), what));
  const at::Tensor sizes = bytes.view(at::kLong).flatten();
  const at::Tensor padded = at::zeros({std::max<int64_t>(1, sizes.max().item<int64_t>())}, at::kByte);
  std::memcpy(padded.data_ptr(), mine.data(), mine.size());
  TRAINKIT_ASSIGN_OR_RETURN(const at::Tensor all, gather_bytes(group, padded, what));
  std::vector<std::string> texts;
  for (int64_t rank = 0; rank < group.world_size(); ++rank) {
    const at::Tensor row = all[rank];
    texts.emplace_back(static_cast<const char*>(row.const_data_ptr()),
                       static_cast<size_t>(sizes[rank].item<int64_t>()));
  }
  return texts;
}

}  // namespace trainkit::detail
