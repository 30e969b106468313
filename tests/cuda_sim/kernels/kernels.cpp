#include "kernels.h"

#include <cxxabi.h>

#include <cstdlib>
#include <cstring>
#include <map>
#include <memory>

#include "kernels_block.h"
#include "kernels_memory.h"

namespace cuda_sim {
namespace {

std::string demangled(const char* name) {
  int status = 0;
  const std::unique_ptr<char, void (*)(void*)> text(abi::__cxa_demangle(name, nullptr, nullptr, &status), free);
  return text ? text.get() : name;
}

/// Key: demangled name, because compilers mangle anonymous namespaces differently. Never destroyed.
std::map<std::string, Kernel>& registry() {
  static auto* const kernels = new std::map<std::string, Kernel>;
  return *kernels;
}

/// Returns the kernel "void f<int>(int*)" of the demangled "...Named<void (*)(int*), &(void f<int>(int*))>", or
/// "f(int*)" of "...Named<void (*)(int*), &f>".
std::string kernel_of(const std::string& named) {
  const std::string type = "Named<void (*)", separator = ", &";
  const size_t begin = named.find(type) + type.size(), middle = named.find(separator, begin), end = named.rfind('>');
  const std::string name = named.substr(middle + separator.size(), end - middle - separator.size());
  if (name.back() == ')') return name.substr(1, name.size() - 2);
  return name + named.substr(begin, middle - begin);
}

/// Returns "f<int>" of "void a::(anonymous namespace)::f<int>(a::B, long)": the last name outside brackets.
std::string short_name(const std::string& signature) {
  size_t begin = 0, end = signature.size();
  const std::string anonymous = "(anonymous namespace)";
  for (size_t i = 0, depth = 0; i < signature.size(); ++i) {
    if (signature.compare(i, anonymous.size(), anonymous) == 0) {
      i += anonymous.size() - 1;
      continue;
    }
    const char c = signature[i];
    if (c == '(' && depth == 0) {
      end = i;
      break;
    }
    if (c == '<' || c == '(') ++depth;
    if (c == '>' || c == ')') --depth;
    if (depth == 0 && (c == ' ' || c == ':')) begin = i + 1;
  }
  return signature.substr(begin, end - begin);
}

/// Replaces device addresses by the host addresses of the same bytes. Returns false if an address is not accessible to
/// the launch.
bool translate(const Kernel& kernel, int device, std::vector<std::vector<std::byte>>& arguments) {
  const auto refuse = [&](size_t i, const std::string& why) {
    finding("memory", kernel.name + ": argument " + std::to_string(i + 1) + " " + why);
    return false;
  };
  for (size_t i = 0; i < arguments.size(); ++i) {
    for (size_t at = 0; at + sizeof(void*) <= arguments[i].size(); at += sizeof(void*)) {
      void* pointer;
      memcpy(&pointer, arguments[i].data() + at, sizeof pointer);
      const int owner = pointer ? device_of(pointer) : -1;
      if (owner < 0) {
        if (pointer && kernel.argument_is_pointer[i]) return refuse(i, "is no address of device memory");
        continue;
      }
      if (owner != device) {
        // In a structure it may be the content of padding; a wrong address is detected on use.
        if (!kernel.argument_is_pointer[i]) continue;
        return refuse(i, "is an address of device " + std::to_string(owner) + ", but the launch is on device " +
                             std::to_string(device));
      }
      pointer = backing(pointer);
      memcpy(arguments[i].data() + at, &pointer, sizeof pointer);
    }
  }
  return true;
}

/// Runs all blocks. Returns the error of the first block that fails.
cudaError_t run_blocks(const Kernel& kernel, const Launch& launch, LaunchMemory& memory,
                       const std::function<void()>& body) {
  Order order(kernel.name);
  const dim3& grid = launch.grid;
  std::vector<unsigned> blocks;
  order.fill(blocks, size_t{grid.x} * grid.y * grid.z);
  on_host::place.grid_dim = grid;
  on_host::place.block_dim = launch.block;
  for (const unsigned id : blocks) {
    on_host::place.block = {id % grid.x, id / grid.x % grid.y, id / grid.x / grid.y};
    memory.shared().begin_block();
    if (const Failure* failure = BlockRunner::instance().run(order, body)) {
      finding(failure->kind, kernel.name + " " + failure->text);
      return failure->error;
    }
  }
  return cudaSuccess;
}

Outcome run_grid(const Kernel& kernel, const Launch& launch) {
  auto arguments = launch.arguments;
  Outcome outcome;
  if (!translate(kernel, launch.device, arguments)) {
    outcome.error = cudaErrorIllegalAddress;
    return outcome;
  }
  std::vector<const std::byte*> pointers;
  for (const auto& argument : arguments) pointers.push_back(argument.data());
  LaunchMemory memory(launch.device, launch.shared_bytes);
  outcome.error = run_blocks(kernel, launch, memory, [&] { kernel.body(pointers.data()); });
  outcome.accesses = memory.accesses();
  return outcome;
}

}  // namespace

namespace on_host {

bool register_kernel(const Registration& registration) {
  const std::string signature = kernel_of(demangled(registration.type_name));
  Kernel kernel{short_name(signature), {}, {}, registration.body, &run_grid};
  kernel.argument_bytes.assign(registration.bytes, registration.bytes + registration.count);
  kernel.argument_is_pointer.assign(registration.are_pointers, registration.are_pointers + registration.count);
  return registry().emplace(signature, std::move(kernel)).second;
}

}  // namespace on_host

const Kernel* find_kernel(const std::string& mangled_name) {
  const auto kernel = registry().find(demangled(mangled_name.c_str()));
  return kernel == registry().end() ? nullptr : &kernel->second;
}

}  // namespace cuda_sim
