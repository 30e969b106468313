#include "oracle.h"

#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <torch/torch.h>

#include <stdexcept>

#include "made.h"
#include "model.h"

namespace trainkit::differential {
namespace {

void write_all(int descriptor, const void* data, size_t bytes) {
  const char* at = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor, at, bytes);
    if (written <= 0) throw std::runtime_error("the oracle does not read");
    at += written;
    bytes -= static_cast<size_t>(written);
  }
}

void read_all(int descriptor, void* data, size_t bytes) {
  char* at = static_cast<char*>(data);
  while (bytes > 0) {
    const ssize_t got = ::read(descriptor, at, bytes);
    if (got <= 0) throw std::runtime_error("the oracle has ended");
    at += got;
    bytes -= static_cast<size_t>(got);
  }
}

const char* name_of(at::ScalarType dtype) {
  if (dtype == at::kLong) return "int64";
  return dtype == at::kDouble ? "float64" : "float32";
}

at::ScalarType dtype_named(const std::string& name) {
  if (name == "int64") return at::kLong;
  return name == "float64" ? at::kDouble : at::kFloat;
}

// A message is a length (8 bytes), a JSON header of that length with a list of [name, dtype, shape], and the bytes of
// the tensors in that order.
void send(int descriptor, nlohmann::json header, const Record& tensors) {
  for (const auto& [name, tensor] : tensors) {
    header["tensors"].push_back({name, name_of(tensor.scalar_type()), tensor.sizes().vec()});
  }
  const std::string text = header.dump();
  const uint64_t length = text.size();
  write_all(descriptor, &length, sizeof(length));
  write_all(descriptor, text.data(), text.size());
  for (const auto& [name, tensor] : tensors) write_all(descriptor, tensor.const_data_ptr(), tensor.nbytes());
}

Record receive(int descriptor) {
  uint64_t length = 0;
  read_all(descriptor, &length, sizeof(length));
  std::string text(length, '\0');
  read_all(descriptor, text.data(), length);
  Record record;
  for (const auto& entry : nlohmann::json::parse(text)) {
    at::Tensor tensor = at::empty(entry[2].get<std::vector<int64_t>>(), dtype_named(entry[1]));
    read_all(descriptor, tensor.mutable_data_ptr(), tensor.nbytes());
    record[entry[0]] = tensor;
  }
  return record;
}

/// The order of the rows, epoch by epoch, of as many epochs as a program may read.
at::Tensor orders(const Spec& spec) {
  if (has_buffer(spec)) return made_order(spec);
  const auto sampler = make_sampler(spec);
  const int64_t batches =
      std::max<int64_t>(1, spec.drop_last ? sampler->size() / spec.batch_size
                                          : (sampler->size() + spec.batch_size - 1) / spec.batch_size);
  const int64_t epochs = 2 + std::max(spec.epochs * spec.fits, spec.steps * spec.fits * spec.accumulate / batches + 1);
  at::Tensor order = at::empty({epochs, sampler->size()}, at::kLong);
  for (int64_t epoch = 0; epoch < epochs; ++epoch) {
    sampler->fill(epoch, 0, {order[epoch].mutable_data_ptr<int64_t>(), static_cast<size_t>(sampler->size())});
  }
  return order;
}

/// What the program begins with.
Record inputs_of(const Spec& spec) {
  Record tensors;
  const auto net = make_net(spec);
  for (const auto& parameter : net->named_parameters()) put(tensors, "first/" + parameter.key(), parameter.value());
  for (const auto& [name, tensor] : outer_columns(spec)) put(tensors, "train/" + name, tensor);
  if (spec.evaluation_rows > 0) {
    for (const auto& [name, tensor] : evaluation_columns(spec)) put(tensors, "evaluation/" + name, tensor);
  }
  put(tensors, "order", orders(spec));
  return tensors;
}

}  // namespace

Oracle::Oracle(const std::string& python, const std::string& script) {
  int to[2], from[2];
  if (::pipe2(to, O_CLOEXEC) != 0 || ::pipe2(from, O_CLOEXEC) != 0) throw std::runtime_error("cannot create a pipe");
  pid_ = ::fork();
  if (pid_ == 0) {
    ::dup2(to[0], 0);
    ::dup2(from[1], 1);
    ::execl(python.c_str(), python.c_str(), script.c_str(), nullptr);
    ::_exit(127);
  }
  ::close(to[0]);
  ::close(from[1]);
  to_ = to[1];
  from_ = from[0];
}

Oracle::~Oracle() {
  ::close(to_);
  ::close(from_);
  ::kill(pid_, SIGKILL);
  ::waitpid(pid_, nullptr, 0);
}

Record Oracle::run(const Spec& spec, int64_t order) const {
  send(to_, {{"spec", full_json(spec)}, {"order", order}}, inputs_of(spec));
  return receive(from_);
}

Record Oracle::export_model(const Spec& spec, const std::string& path) const {
  send(to_, {{"spec", full_json(spec)}, {"export", path}}, inputs_of(spec));
  return receive(from_);
}

Record Oracle::run_exact(const Spec& spec) const {
  Record tensors = inputs_of(spec);
  for (auto& [name, tensor] : tensors) {
    if (tensor.scalar_type() == at::kFloat) tensor = tensor.to(at::kDouble);
  }
  Spec exact = spec;
  exact.dtype = "float64";
  send(to_, {{"spec", full_json(exact)}, {"order", 0}}, tensors);
  return receive(from_);
}

}  // namespace trainkit::differential
