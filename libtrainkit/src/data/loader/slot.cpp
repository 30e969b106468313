#include "data/loader/slot.h"

#include <ATen/Context.h>
#include <ATen/core/Tensor.h>
#include <c10/core/CPUAllocator.h>
#include <c10/core/InferenceMode.h>
#include <c10/core/impl/VirtualGuardImpl.h>
#include <sys/mman.h>

#include <cstdlib>
#include <new>

#include "core/base/round_up.h"
#include "data/loader/pending_copies.h"

namespace trainkit::detail {
namespace {

constexpr int64_t kAlignment = 64;  // a cache line and the widest vector store
constexpr int64_t kHugePage = int64_t{2} << 20;

/// A memory block that lives as long as any of its storages.
struct Block {
  explicit Block(const SlotLayout& layout) {
    if (layout.pin_memory) {
      pinned = at::globalContext().getPinnedMemoryAllocator(at::kCUDA)->allocate(layout.bytes);
      data = static_cast<std::byte*>(pinned.get());
      return;
    }
    // Large slots use huge pages: far fewer page faults at the first write, and fewer TLB misses later.
    const bool huge = layout.bytes >= 2 * kHugePage;
    const int64_t alignment = huge ? kHugePage : kAlignment;
    const int64_t bytes = round_up(std::max<int64_t>(layout.bytes, 1), alignment);
    data = static_cast<std::byte*>(std::aligned_alloc(alignment, bytes));
    if (!data) throw std::bad_alloc();
    if (huge) madvise(data, bytes, MADV_HUGEPAGE);
  }
  ~Block() {
    if (!pinned) std::free(data);
  }
  Block(const Block&) = delete;
  Block& operator=(const Block&) = delete;

  std::byte* data = nullptr;
  c10::DataPtr pinned;
};

c10::Storage make_storage(const std::shared_ptr<Block>& block, int64_t offset, int64_t bytes) {
  auto* owner = new std::shared_ptr<Block>(block);
  c10::DataPtr data(
      block->data + offset, owner, [](void* context) { delete static_cast<std::shared_ptr<Block>*>(context); },
      at::kCPU);
  return c10::Storage(c10::Storage::use_byte_size_t(), static_cast<size_t>(bytes), std::move(data), nullptr, false);
}

}  // namespace

SlotLayout::SlotLayout(const std::vector<FieldSpec>& dataset_fields, int64_t batch_rows, bool pin)
    : fields(std::make_shared<const std::vector<FieldSpec>>(dataset_fields)),
      rows(batch_rows),
      bytes(0),
      pin_memory(pin) {
  for (const FieldSpec& field : *fields) {
    offsets.push_back(bytes);
    bytes = round_up(bytes + rows * field.row_bytes(), kAlignment);
  }
}

// Note [Slot reuse]
//
// A slot lends its memory to a Batch and takes it back when nobody else refers to it. released() checks three counts:
//
// - content_ (the Batch and its copies): no other owner than the slot;
// - each tensor of content_: no other owner (a copied at::Tensor, a tensor saved by autograd);
// - each storage: two owners, the slot and its tensor (a third one is a view);
//
// and that all device copies of the memory have ended (PendingCopies). use_count() is a relaxed load. Taking and
// dropping a reference after it synchronises with the threads that dropped theirs, so their reads happen before the
// refill.
//
// Tensors are reused as well. lend() makes a new tensor only if the holder changed the old one (requires_grad_,
// resize_, ...) or if the number of rows differs.
//
// If the memory is still referenced when it is needed, abandon() leaves it to its holders, and the next prepare()
// allocates new memory. A Batch that the caller keeps is therefore never overwritten.

void Slot::prepare(const SlotLayout& layout, std::atomic<int64_t>& allocations) {
  const auto& fields = *layout.fields;
  if (storages_.empty()) {
    auto block = std::make_shared<Block>(layout);
    std::vector<c10::Storage> storages;
    views_.clear();
    for (size_t i = 0; i < fields.size(); ++i) {
      const int64_t row_bytes = fields[i].row_bytes();
      storages.push_back(make_storage(block, layout.offsets[i], layout.rows * row_bytes));
      views_.push_back({block->data + layout.offsets[i], row_bytes});
    }
    rows_ = layout.rows;
    is_pinned_ = layout.pin_memory;
    storages_ = std::move(storages);
    allocations.fetch_add(1, std::memory_order_relaxed);
  }
  if (!content_) {
    content_ = std::make_shared<Batch::Content>();
    content_->fields = layout.fields;
    content_->copies = std::make_shared<PendingCopies>();
    content_->tensors.resize(fields.size());
    content_->row_indices.reserve(layout.rows);
  }
  rows_read = padding_rows = 0;
  bad_samples.clear();
  status = absl::OkStatus();
}

// Returns whether the last tensor can be lent again: it must look like a new one. The holder may have changed it
// (requires_grad_, resize_, unsqueeze_, ...). Its contents are rewritten in any case.
bool Slot::tensor_is_untouched(size_t field) const {
  const at::Tensor& tensor = content_->tensors[field];
  if (!tensor.defined()) return false;
  const c10::TensorImpl& impl = *tensor.unsafeGetTensorImpl();
  return impl.storage().unsafeGetStorageImpl() == storages_[field].unsafeGetStorageImpl() &&
         impl.storage_offset() == 0 && !impl.autograd_meta() && impl.is_contiguous() && !impl.is_conj() &&
         !impl.is_neg() && impl.dtype() == c10::scalarTypeToTypeMeta((*content_->fields)[field].dtype);
}

at::Tensor Slot::make_tensor(size_t field, int64_t rows) const {
  const FieldSpec& spec = (*content_->fields)[field];
  c10::InferenceMode normal_tensors(false);
  auto tensor = at::detail::make_tensor<c10::TensorImpl>(c10::Storage(storages_[field]),
                                                         c10::DispatchKeySet(c10::DispatchKey::CPU),
                                                         c10::scalarTypeToTypeMeta(spec.dtype));
  std::vector<int64_t> sizes = {rows};
  sizes.insert(sizes.end(), spec.shape.begin(), spec.shape.end());
  tensor.unsafeGetTensorImpl()->set_sizes_contiguous(sizes);
  return tensor;
}

Batch Slot::lend(int64_t rows, int64_t padding) {
  for (size_t i = 0; i < storages_.size(); ++i) {
    at::Tensor& tensor = content_->tensors[i];
    const auto& shape = (*content_->fields)[i].shape;
    const bool fits = tensor_is_untouched(i) && tensor.dim() == static_cast<int64_t>(shape.size()) + 1 &&
                      tensor.size(0) == rows && tensor.sizes().slice(1) == at::IntArrayRef(shape);
    if (!fits) tensor = make_tensor(i, rows);
  }
  content_->rows = rows;
  content_->padding_rows = padding;
  is_return_requested_ = false;
  return Batch(content_);
}

bool Slot::released() const {
  // See Note [Slot reuse] for the counts and for the references that are taken and dropped.
  if (content_.use_count() != 1) return false;
  { const std::shared_ptr<Batch::Content> acquire = content_; }
  for (size_t i = 0; i < storages_.size(); ++i) {
    if (!content_->tensors[i].defined()) continue;  // not lent yet
    if (!content_->tensors[i].getIntrusivePtr().is_uniquely_owned()) return false;
    if (storages_[i].use_count() != 2) return false;  // the slot and its tensor
    { const c10::Storage acquire = storages_[i]; }
  }
  return content_->copies->have_ended();
}

void Slot::expect_copies_of_caller() {
  if (!is_pinned_ || is_return_requested_ || !content_ || !content_->copies->is_empty()) return;
  is_return_requested_ = true;
  content_->copies->add(c10::impl::VirtualGuardImpl(c10::kCUDA).getDevice());
}

void Slot::finish_copies() {
  if (content_) content_->copies->wait();
}

void Slot::abandon() {
  finish_copies();
  content_.reset();
  storages_.clear();
}

}  // namespace trainkit::detail
