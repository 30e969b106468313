#pragma once
/// A replacement of CUDA graphs that records nothing.

#include <functional>
#include <memory>

#include "train/graph/step_graphs.h"

namespace trainkit::test {

struct NoWork final : detail::GraphBackend {
  struct Done final : Graph {
    void replay() override {}
  };
  void run_beside(const std::function<void()>& work) override { work(); }
  std::unique_ptr<Graph> capture(const std::function<void()>& work) override {
    work();
    return std::make_unique<Done>();
  }
};

}  // namespace trainkit::test
