#include <arpa/inet.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <cstring>
#include <memory>

#include "distributed/group/address.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"
#include "trainkit/distributed/process_group.h"

namespace trainkit {
namespace {

constexpr int64_t kMaxWorldSize = 1 << 20;
constexpr int64_t kFirstPort = 12'000;
constexpr int64_t kPorts = 20'000;

absl::Status env_error(std::string_view name, std::string problem, std::string_view got = {}, std::string expected = {},
                       std::string hint = {}) {
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = "dist.env",
                    .field = std::string(name),
                    .problem = std::move(problem),
                    .got = std::string(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)},
                   absl::StatusCode::kInvalidArgument);
}

std::string range(int64_t min, int64_t max) { return std::to_string(min) + ".." + std::to_string(max); }

/// Reads variables and checks their values.
class Reader {
 public:
  explicit Reader(const EnvironmentVariables& variables) : variables_(variables) {}

  bool has(std::string_view name) const { return variables_.contains(name); }

  /// Returns the value, or an empty string.
  std::string text(std::string_view name) const {
    const auto entry = variables_.find(name);
    return entry == variables_.end() ? std::string() : entry->second;
  }

  /// Returns the first of `names` that is set, or an empty string.
  std::string_view first(std::initializer_list<std::string_view> names) const {
    for (const std::string_view name : names) {
      if (has(name)) return name;
    }
    return {};
  }

  absl::StatusOr<int64_t> number(std::string_view name, int64_t min, int64_t max) const {
    const auto entry = variables_.find(name);
    if (entry == variables_.end()) return env_error(name, "not set", "", range(min, max), hint_);
    const std::string& text = entry->second;
    if (text.empty()) return env_error(name, "empty", "", range(min, max), hint_);
    int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (end != text.data() + text.size() || error == std::errc::invalid_argument)
      return env_error(name, "not a whole number", text, range(min, max));
    if (error != std::errc() || value < min || value > max)
      return env_error(name, "out of range", text, range(min, max));
    return value;
  }

  absl::StatusOr<int64_t> number_or(std::string_view name, int64_t fallback, int64_t min, int64_t max) const {
    if (!has(name)) return fallback;
    return number(name, min, max);
  }

  /// Sets the hint of errors about missing variables.
  Reader& hint(std::string hint) {
    hint_ = std::move(hint);
    return *this;
  }
  const std::string& hint() const { return hint_; }

 private:
  const EnvironmentVariables& variables_;
  std::string hint_;
};

absl::StatusOr<std::string> read_master_addr(const Reader& reader) {
  constexpr std::string_view kName = "MASTER_ADDR";
  const std::string rule = "a host name or address of rank 0's machine";
  const std::string address = detail::without_brackets(reader.text(kName));
  if (!reader.has(kName)) return env_error(kName, "not set", "", rule, reader.hint());
  if (address.empty()) return env_error(kName, "empty", "", rule, reader.hint());
  if (address.find("://") != std::string::npos) return env_error(kName, "is a URL", address, rule);
  if (address == "0.0.0.0" || address == "::")
    return env_error(kName, "is not an address to connect to", address, rule);
  if (address.find(':') != std::string::npos && !detail::is_ipv6(address))
    return env_error(kName, "contains a port", address, rule, "set the port with MASTER_PORT");
  const auto odd = [](unsigned char c) { return c <= ' ' || c == 0x7f || c == '/' || c == '@'; };
  if (std::any_of(address.begin(), address.end(), odd)) return env_error(kName, "is not a host name", address, rule);
  return address;
}

absl::Status read_sizes(const Reader& reader, std::string_view rank, std::string_view world_size,
                        std::string_view local_rank, std::string_view local_world_size, LaunchEnvironment& launch) {
  TRAINKIT_ASSIGN_OR_RETURN(launch.world_size, reader.number(world_size, 1, kMaxWorldSize));
  TRAINKIT_ASSIGN_OR_RETURN(launch.rank, reader.number(rank, 0, launch.world_size - 1));
  TRAINKIT_ASSIGN_OR_RETURN(launch.local_world_size, reader.number(local_world_size, 1, launch.world_size));
  TRAINKIT_ASSIGN_OR_RETURN(launch.local_rank, reader.number(local_rank, 0, launch.local_world_size - 1));
  return absl::OkStatus();
}

/// Derives a port from the job's name (FNV-1a): equal on all ranks, and most likely different for concurrent jobs.
uint16_t port_of_job(std::string_view name) {
  uint64_t hash = 0xcbf29ce484222325u;
  for (const unsigned char c : name) hash = (hash ^ c) * 0x100000001b3u;
  return static_cast<uint16_t>(kFirstPort + static_cast<int64_t>(hash % static_cast<uint64_t>(kPorts)));
}

/// Reads MASTER_ADDR and MASTER_PORT where the launcher does not set them.
absl::Status read_optional_master(const Reader& reader, std::string_view host_of_rank_0, LaunchEnvironment& launch) {
  const bool one_machine = launch.local_world_size == launch.world_size;
  if (reader.has("MASTER_ADDR") || (!one_machine && host_of_rank_0.empty())) {
    TRAINKIT_ASSIGN_OR_RETURN(launch.master_addr, read_master_addr(reader));
  } else {
    launch.master_addr = one_machine ? "127.0.0.1" : std::string(host_of_rank_0);
  }
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t port, reader.number_or("MASTER_PORT", port_of_job(launch.run_id), 1, 65'535));
  launch.master_port = static_cast<uint16_t>(port);
  return absl::OkStatus();
}

/// Checks that the variable `theirs` of another launcher, if it is set, equals `value` from the variable `ours`.
absl::Status check_agreement(const Reader& reader, std::string_view ours, int64_t value, std::string_view theirs) {
  if (!reader.has(theirs)) return absl::OkStatus();
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t other, reader.number(theirs, 0, kMaxWorldSize));
  if (other == value) return absl::OkStatus();
  return env_error(theirs, "does not match " + std::string(ours), std::to_string(other), std::to_string(value),
                   "start the ranks with one launcher and do not set " + std::string(ours) + " or " +
                       std::string(theirs) + " by hand");
}

absl::StatusOr<LaunchEnvironment> read_torch(Reader reader) {
  reader.hint(
      "torchrun and `trainkit launch` set RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_WORLD_SIZE, MASTER_ADDR and "
      "MASTER_PORT; to start ranks by hand, set all of them");
  LaunchEnvironment launch{.launcher = reader.has("TRAINKIT_LAUNCH_ID") ? Launcher::kTrainkit : Launcher::kTorchrun};
  TRAINKIT_RETURN_IF_ERROR(read_sizes(reader, "RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", launch));
  const int64_t last_node = launch.world_size - 1;
  const int64_t unknown_node = launch.local_world_size == launch.world_size ? 0 : -1;
  TRAINKIT_ASSIGN_OR_RETURN(launch.node_rank, reader.number_or("GROUP_RANK", unknown_node, 0, last_node));
  TRAINKIT_ASSIGN_OR_RETURN(launch.master_addr, read_master_addr(reader));
  TRAINKIT_ASSIGN_OR_RETURN(const int64_t port, reader.number("MASTER_PORT", 1, 65'535));
  launch.master_port = static_cast<uint16_t>(port);
  TRAINKIT_ASSIGN_OR_RETURN(launch.restart_count, reader.number_or("TORCHELASTIC_RESTART_COUNT", 0, 0, INT32_MAX));
  launch.agent_store = reader.text("TORCHELASTIC_USE_AGENT_STORE") == "True";
  launch.run_id = reader.text(reader.first({"TRAINKIT_LAUNCH_ID", "TORCHELASTIC_RUN_ID"}));
  launch.error_file = reader.text("TORCHELASTIC_ERROR_FILE");
  // Ranks set by hand under srun or mpirun must match. torchrun and trainkit launch may themselves be tasks of srun or
  // mpirun, one per machine, so their ranks are not compared.
  if (reader.has("TRAINKIT_LAUNCH_ID") || reader.has("TORCHELASTIC_RUN_ID")) return launch;
  if (reader.has("SLURM_STEP_ID"))
    TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "RANK", launch.rank, "SLURM_PROCID"));
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "RANK", launch.rank, "OMPI_COMM_WORLD_RANK"));
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "WORLD_SIZE", launch.world_size, "OMPI_COMM_WORLD_SIZE"));
  return launch;
}

absl::StatusOr<LaunchEnvironment> read_open_mpi(Reader reader) {
  reader.hint("mpirun sets it on one machine; for several machines use mpirun -x MASTER_ADDR=<rank 0's host> ...");
  LaunchEnvironment launch{.launcher = Launcher::kOpenMpi};
  TRAINKIT_RETURN_IF_ERROR(read_sizes(reader, "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE",
                                      "OMPI_COMM_WORLD_LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_SIZE", launch));
  launch.node_rank = launch.local_world_size == launch.world_size ? 0 : -1;
  launch.run_id = reader.text("PMIX_NAMESPACE");
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "OMPI_COMM_WORLD_RANK", launch.rank, "RANK"));
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "OMPI_COMM_WORLD_SIZE", launch.world_size, "WORLD_SIZE"));
  TRAINKIT_RETURN_IF_ERROR(read_optional_master(reader, "", launch));
  return launch;
}

absl::StatusOr<LaunchEnvironment> read_slurm(Reader reader) {
  reader.hint("srun sets it for each task; start the program with srun");
  LaunchEnvironment launch{.launcher = Launcher::kSlurm};
  const std::string_view tasks = reader.first({"SLURM_STEP_NUM_TASKS", "SLURM_NTASKS", "SLURM_NPROCS"});
  TRAINKIT_ASSIGN_OR_RETURN(launch.world_size, reader.number(tasks.empty() ? "SLURM_NTASKS" : tasks, 1, kMaxWorldSize));
  TRAINKIT_ASSIGN_OR_RETURN(launch.rank, reader.number("SLURM_PROCID", 0, launch.world_size - 1));
  TRAINKIT_ASSIGN_OR_RETURN(launch.node_rank, reader.number("SLURM_NODEID", 0, launch.world_size - 1));
  const std::string_view per_node = reader.first({"SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE"});
  if (per_node.empty()) return env_error("SLURM_STEP_TASKS_PER_NODE", "not set", "", "such as 4(x2)", reader.hint());
  launch.local_world_size = detail::slurm_tasks_on_node(reader.text(per_node), launch.node_rank);
  if (launch.local_world_size < 1 || launch.local_world_size > launch.world_size)
    return env_error(per_node, "does not say how many tasks node " + std::to_string(launch.node_rank) + " has",
                     reader.text(per_node), "such as 4(x2)");
  TRAINKIT_ASSIGN_OR_RETURN(launch.local_rank, reader.number("SLURM_LOCALID", 0, launch.local_world_size - 1));
  launch.run_id = reader.text("SLURM_JOB_ID") + "." + reader.text("SLURM_STEP_ID");
  TRAINKIT_ASSIGN_OR_RETURN(launch.restart_count, reader.number_or("SLURM_RESTART_COUNT", 0, 0, INT32_MAX));
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, "SLURM_PROCID", launch.rank, "RANK"));
  TRAINKIT_RETURN_IF_ERROR(check_agreement(reader, tasks, launch.world_size, "WORLD_SIZE"));

  const std::string_view list = reader.first({"SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST"});
  std::string host = detail::first_slurm_host(reader.text(list));
  if (!list.empty() && host.empty())
    return env_error(list, "is not a list of hosts", reader.text(list), "such as node[1-4]");
  if (host.empty()) host = reader.text("SLURM_LAUNCH_NODE_IPADDR");
  TRAINKIT_RETURN_IF_ERROR(read_optional_master(reader, host, launch));
  return launch;
}

/// Returns whether NCCL_SOCKET_IFNAME matches one of `interfaces`. The value is a comma-separated list of prefixes; "="
/// requires full names, "^" excludes. Source: NCCL user guide, environment variables.
bool nccl_names_interface(std::string_view value, const std::vector<std::string>& interfaces) {
  if (value.starts_with('^')) return true;
  const bool whole = value.starts_with('=');
  if (whole) value.remove_prefix(1);
  while (!value.empty()) {
    const std::string_view name = value.substr(0, value.find(','));
    value.remove_prefix(std::min(name.size() + 1, value.size()));
    for (const std::string& interface : interfaces) {
      if (whole ? interface == name : interface.starts_with(name)) return true;
    }
  }
  return false;
}

absl::Status check_interfaces(const Reader& reader) {
  std::vector<std::string> interfaces;
  std::string list;
  const std::unique_ptr<struct if_nameindex, decltype(&if_freenameindex)> all(if_nameindex(), if_freenameindex);
  for (const auto* entry = all.get(); entry && entry->if_name; ++entry) {
    list += (list.empty() ? "" : ", ") + interfaces.emplace_back(entry->if_name);
  }
  const std::string gloo = reader.text("GLOO_SOCKET_IFNAME"), nccl = reader.text("NCCL_SOCKET_IFNAME");
  for (size_t begin = 0; !gloo.empty() && begin <= gloo.size();) {  // c10d makes one device per name
    const size_t end = std::min(gloo.find(',', begin), gloo.size());
    const std::string name = gloo.substr(begin, end - begin);
    if (std::find(interfaces.begin(), interfaces.end(), name) == interfaces.end())
      return env_error("GLOO_SOCKET_IFNAME", "no such network interface", name, "one of " + list);
    begin = end + 1;
  }
  if (!nccl.empty() && !nccl_names_interface(nccl, interfaces))
    return env_error("NCCL_SOCKET_IFNAME", "no such network interface", nccl, "one of " + list);
  return absl::OkStatus();
}

/// Checks settings of c10d that it would reject late, or accept although they disable failure detection.
absl::Status check_c10d(const Reader& reader, LaunchEnvironment& launch) {
  std::string debug = reader.text("TORCH_DISTRIBUTED_DEBUG");
  std::transform(debug.begin(), debug.end(), debug.begin(), [](unsigned char c) { return std::toupper(c); });
  if (reader.has("TORCH_DISTRIBUTED_DEBUG") && debug != "OFF" && debug != "INFO" && debug != "DETAIL")
    return env_error("TORCH_DISTRIBUTED_DEBUG", "no such level", reader.text("TORCH_DISTRIBUTED_DEBUG"),
                     "OFF, INFO or DETAIL");
  for (const char* name : {"TORCH_NCCL_ASYNC_ERROR_HANDLING", "NCCL_ASYNC_ERROR_HANDLING"}) {
    if (reader.text(name) == "0")
      launch.warnings.push_back(std::string(name) +
                                "=0: NCCL does not notice a dead peer, and the other ranks wait forever");
  }
  return absl::OkStatus();
}

/// Checks that rank 0 can listen at one of the addresses of the master's name.
absl::Status check_port(const LaunchEnvironment& launch, const addrinfo* addresses) {
  int error = 0;
  for (const addrinfo* address = addresses; address; address = address->ai_next) {
    const int socket = ::socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (socket < 0) continue;
    const int on = 1;
    setsockopt(socket, SOL_SOCKET, SO_REUSEADDR, &on, sizeof on);
    error = bind(socket, address->ai_addr, address->ai_addrlen) != 0 || listen(socket, 1) != 0 ? errno : 0;
    close(socket);
    if (error == 0) return absl::OkStatus();
    if (error != EADDRNOTAVAIL) break;
  }
  const std::string port = std::to_string(launch.master_port);
  if (error == EADDRINUSE)
    return env_error("MASTER_PORT", "already in use", port, "a free port",
                     "another job runs here, or an earlier one has not ended; choose another port");
  if (error == EACCES) return env_error("MASTER_PORT", "needs privileges that this user lacks", port, "1024..65535");
  if (error == EADDRNOTAVAIL)
    return env_error("MASTER_ADDR", "is not this machine, which runs rank 0", launch.master_addr,
                     "an address of rank 0's machine");
  return absl::OkStatus();  // opening the store reports other errors
}

}  // namespace

std::string_view launcher_name(Launcher launcher) {
  switch (launcher) {
    case Launcher::kNone:
      return "none";
    case Launcher::kTorchrun:
      return "torchrun";
    case Launcher::kSlurm:
      return "slurm";
    case Launcher::kOpenMpi:
      return "open mpi";
    case Launcher::kTrainkit:
      return "trainkit launch";
  }
  return "none";
}

absl::StatusOr<std::optional<LaunchEnvironment>> read_launch_environment(const EnvironmentVariables& variables) {
  const Reader reader(variables);
  const bool mpi = reader.has("OMPI_COMM_WORLD_RANK");
  const bool slurm = reader.has("SLURM_PROCID") && reader.has("SLURM_STEP_ID");
  // Without RANK, a WORLD_SIZE next to another launcher's variables was set by a batch script and is compared with
  // them.
  const bool torch = reader.has("RANK") || (reader.has("WORLD_SIZE") && !mpi && !slurm);
  // RANK set by hand without PyTorch's other variables does not replace mpirun's or srun's variables.
  const bool whole = reader.has("LOCAL_RANK") || reader.has("TORCHELASTIC_RUN_ID");
  const bool is_torch = torch && (whole || (!mpi && !slurm));
  if (!is_torch && !mpi && !slurm) return std::nullopt;
  TRAINKIT_ASSIGN_OR_RETURN(LaunchEnvironment launch, is_torch ? read_torch(reader)
                                                      : mpi    ? read_open_mpi(reader)
                                                               : read_slurm(reader));
  TRAINKIT_RETURN_IF_ERROR(check_c10d(reader, launch));
  return launch;
}

absl::Status check_rendezvous(const LaunchEnvironment& launch, const EnvironmentVariables& variables) {
  TRAINKIT_RETURN_IF_ERROR(check_interfaces(Reader(variables)));
  addrinfo wanted{};
  wanted.ai_flags = AI_NUMERICSERV;
  wanted.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const std::string port = std::to_string(launch.master_port);
  const int error = getaddrinfo(detail::without_brackets(launch.master_addr).c_str(), port.c_str(), &wanted, &found);
  if (error != 0)
    return env_error("MASTER_ADDR", std::string("does not resolve: ") + gai_strerror(error), launch.master_addr,
                     "a host name or address of rank 0's machine");
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
  if (launch.rank != 0 || launch.agent_store) return absl::OkStatus();
  return check_port(launch, addresses.get());
}

absl::StatusOr<c10::Device> device_of_rank(const LaunchEnvironment& launch, c10::DeviceType type, int device_count) {
  if (type != c10::DeviceType::CUDA) return c10::Device(type);
  if (launch.launcher == Launcher::kSlurm && device_count == 1) return c10::Device(type, 0);
  if (launch.local_rank < device_count) return c10::Device(type, static_cast<c10::DeviceIndex>(launch.local_rank));
  return env_error("LOCAL_RANK", "more ranks on this machine than GPUs", std::to_string(launch.local_rank),
                   device_count == 0 ? "a GPU" : range(0, device_count - 1),
                   "start " + std::to_string(std::max(device_count, 1)) + " ranks per machine, or pass --device cpu");
}

namespace detail {

std::string first_slurm_host(std::string_view nodelist) {
  std::string host;
  for (size_t i = 0; i < nodelist.size() && nodelist[i] != ','; ++i) {
    if (nodelist[i] != '[') {
      host += nodelist[i];
      continue;
    }
    const size_t end = nodelist.find(']', i);
    if (end == std::string_view::npos) return {};
    const std::string_view numbers = nodelist.substr(i + 1, end - i - 1);
    const std::string_view first = numbers.substr(0, numbers.find_first_of(",-"));
    if (first.empty() || first.find_first_not_of("0123456789") != std::string_view::npos) return {};
    host += first;
    i = end;
  }
  const auto odd = [](unsigned char c) { return c <= ' ' || c == ']' || c == '/' || c >= 0x7f; };
  return std::any_of(host.begin(), host.end(), odd) ? std::string() : host;
}

int64_t slurm_tasks_on_node(std::string_view tasks_per_node, int64_t node) {
  while (!tasks_per_node.empty()) {
    const std::string_view part = tasks_per_node.substr(0, tasks_per_node.find(','));
    tasks_per_node.remove_prefix(std::min(part.size() + 1, tasks_per_node.size()));
    int64_t tasks = 0, nodes = 1;
    const char* const end = part.data() + part.size();
    auto parsed = std::from_chars(part.data(), end, tasks);
    if (parsed.ec != std::errc() || tasks < 1) return 0;
    if (parsed.ptr != end) {
      const std::string_view rest(parsed.ptr, static_cast<size_t>(end - parsed.ptr));
      if (!rest.starts_with("(x") || !rest.ends_with(")")) return 0;
      parsed = std::from_chars(parsed.ptr + 2, end - 1, nodes);
      if (parsed.ec != std::errc() || parsed.ptr != end - 1 || nodes < 1) return 0;
    }
    if (node < nodes) return tasks;
    node -= nodes;
  }
  return 0;
}

}  // namespace detail

}  // namespace trainkit
