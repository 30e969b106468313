#pragma once
/// The hyperspectral networks of the benchmarks, with the sizes of peers/_hsi.py.

#include "hsi_classification/models.h"

namespace trainkit::bench {

struct HsiTask {
  hsi::HsiModelOptions model;
  int64_t rows;  // per epoch
  int64_t batch_size;
};

/// `name`: cnn2d, cnn3d, or hybridsn and ssrn with the patches of their papers.
inline HsiTask hsi_task(const std::string& name) {
  HsiTask task{
      .model = {.model = name, .bands = 200, .patch_size = 11, .num_classes = 16}, .rows = 512, .batch_size = 64};
  if (name == "cnn2d") task.rows = 3072, task.batch_size = 256;
  if (name == "hybridsn") task.model.bands = 30, task.model.patch_size = 25;
  if (name == "ssrn") task.model.patch_size = 7;
  return task;
}

}  // namespace trainkit::bench
