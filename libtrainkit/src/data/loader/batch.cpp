#include "trainkit/data/batch.h"

#include <c10/util/Exception.h>

#include <algorithm>

#include "data/loader/pending_copies.h"

namespace trainkit {
namespace {

std::string names_of(const std::vector<FieldSpec>& fields) {
  std::string names;
  for (const auto& field : fields) names += (names.empty() ? "" : ", ") + field.name;
  return names.empty() ? "none" : names;
}

/// Returns whether the tensors are on `device`. A device without an index is the current one.
bool is_on(at::Device device, const std::vector<at::Tensor>& tensors) {
  if (tensors.empty()) return true;
  const at::Device there = tensors.front().device();
  return device.has_index() ? there == device : there.type() == device.type();
}

const FieldSpec* find(const std::vector<FieldSpec>& fields, std::string_view name) {
  const auto found = std::find_if(fields.begin(), fields.end(), [&](const auto& field) { return field.name == name; });
  return found == fields.end() ? nullptr : &*found;
}

}  // namespace

Batch::Batch() {
  static const auto empty =
      std::make_shared<const Content>(Content{.fields = std::make_shared<const std::vector<FieldSpec>>()});
  content_ = empty;
}

Batch::Batch(std::shared_ptr<const std::vector<FieldSpec>> fields, std::vector<at::Tensor> tensors,
             std::vector<int64_t> row_indices, int64_t padding_rows) {
  TORCH_CHECK_VALUE(fields != nullptr, "Batch: fields must not be null");
  TORCH_CHECK_VALUE(fields->size() == tensors.size(), "Batch: expected one tensor for each of the ", fields->size(),
                    " fields, got ", tensors.size());
  auto content = std::make_shared<Content>();
  content->rows = static_cast<int64_t>(row_indices.size());
  for (size_t i = 0; i < tensors.size(); ++i) {
    const FieldSpec& field = (*fields)[i];
    const at::Tensor& tensor = tensors[i];
    TORCH_CHECK_VALUE(tensor.defined() && tensor.dim() >= 1, "Batch: field ", field.name,
                      " has no tensor with a batch dimension");
    if (i == 0 && row_indices.empty()) content->rows = tensor.size(0);
    TORCH_CHECK_VALUE(tensor.size(0) == content->rows, "Batch: field ", field.name, " must have ", content->rows,
                      " rows, got ", tensor.size(0));
    TORCH_CHECK_VALUE(tensor.scalar_type() == field.dtype, "Batch: field ", field.name, " must be ", field.dtype,
                      ", got ", tensor.scalar_type());
    TORCH_CHECK_VALUE(tensor.sizes().slice(1) == at::IntArrayRef(field.shape), "Batch: a row of field ", field.name,
                      " must have shape ", at::IntArrayRef(field.shape), ", got ", tensor.sizes().slice(1));
    TORCH_CHECK_VALUE(tensor.device() == tensors[0].device(), "Batch: field ", field.name, " must be on ",
                      tensors[0].device(), ", got ", tensor.device());
  }
  TORCH_CHECK_VALUE(padding_rows >= 0 && padding_rows <= content->rows, "Batch: padding_rows must be in 0..",
                    content->rows, ", got ", padding_rows);
  content->fields = std::move(fields);
  content->tensors = std::move(tensors);
  content->row_indices = std::move(row_indices);
  content->padding_rows = padding_rows;
  content_ = std::move(content);
}

bool Batch::contains(std::string_view field) const { return find(fields(), field) != nullptr; }

const at::Tensor& Batch::operator[](std::string_view field) const {
  const FieldSpec* found = find(fields(), field);
  TORCH_CHECK_INDEX(found, "Batch: no field \"", field, "\"; there are: ", names_of(fields()));
  return tensors()[found - fields().data()];
}

Batch Batch::to(at::Device device, bool non_blocking) const {
  auto content = std::make_shared<Content>(*content_);
  content->copies = nullptr;
  content->shards.clear();
  bool copying = false;
  for (at::Tensor& tensor : content->tensors) {
    copying |= non_blocking && !device.is_cpu() && tensor.is_cpu() && tensor.is_pinned();
    tensor = tensor.to(device, non_blocking);
  }
  if (copying && content_->copies) content_->copies->add(content->tensors.front().device());
  return Batch(std::move(content));
}

Batch Batch::with_tensors(std::vector<at::Tensor> tensors) const {
  const auto& indices = content_->row_indices;
  Batch batch(content_->fields, std::move(tensors), indices, content_->padding_rows);
  if (content_->shards.empty()) return batch;
  auto content = std::make_shared<Content>(*batch.content_);
  content->shards = content_->shards;
  return Batch(std::move(content));
}

Batch Batch::shard(int64_t index, int64_t count, at::Device device) const {
  TORCH_CHECK_INDEX(0 <= index && index < count, "Batch: expected 0 <= index < ", count, ", got ", index);
  if (std::ssize(content_->shards) == count) {
    const auto& shard = content_->shards[static_cast<size_t>(index)];
    if (is_on(device, shard->tensors)) return Batch(shard);
  }
  const Batch rows = count == 1 ? *this : slice(size() * index / count, size() * (index + 1) / count);
  return device.is_cpu() || is_on(device, rows.tensors()) ? rows : rows.to(device);
}

Batch Batch::slice(int64_t begin, int64_t end) const {
  TORCH_CHECK_INDEX(0 <= begin && begin <= end && end <= size(), "Batch: expected 0 <= begin <= end <= ", size(),
                    ", got begin ", begin, " and end ", end);
  auto content = std::make_shared<Content>();
  content->fields = content_->fields;
  content->copies = content_->copies;
  for (const at::Tensor& tensor : tensors()) content->tensors.push_back(tensor.narrow(0, begin, end - begin));
  if (!row_indices().empty()) content->row_indices.assign(row_indices().begin() + begin, row_indices().begin() + end);
  content->rows = end - begin;
  content->padding_rows = std::max<int64_t>(0, end - std::max(begin, size() - padding_rows()));
  return Batch(std::move(content));
}

}  // namespace trainkit
