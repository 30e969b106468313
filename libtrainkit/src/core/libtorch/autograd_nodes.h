#pragma once
/// Nodes of autograd's graph: std::shared_ptr holds them up to LibTorch 2.12, c10::intrusive_ptr from 2.13 on.
#include <torch/csrc/autograd/function.h>
#include <torch/version.h>

#include <memory>
#include <utility>

namespace trainkit::detail {

#if TORCH_VERSION_MAJOR == 2 && TORCH_VERSION_MINOR < 13

template <class Node>
using NodePointer = std::shared_ptr<Node>;
template <class Node>
using WeakNodePointer = std::weak_ptr<Node>;

/// Makes a node as LibTorch does: the destruction of a long graph does not recurse.
template <class Node, class... Arguments>
NodePointer<Node> make_node(Arguments&&... arguments) {
  return {new Node(std::forward<Arguments>(arguments)...), torch::autograd::deleteNode};
}

#else

template <class Node>
using NodePointer = c10::intrusive_ptr<Node>;
template <class Node>
using WeakNodePointer = c10::weak_intrusive_ptr<Node>;

template <class Node, class... Arguments>
NodePointer<Node> make_node(Arguments&&... arguments) {
  return c10::make_intrusive<Node>(std::forward<Arguments>(arguments)...);
}

#endif

}  // namespace trainkit::detail
