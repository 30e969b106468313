#include "distributed/group/rendezvous.h"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>
#include <thread>
#include <torch/csrc/distributed/c10d/PrefixStore.hpp>
#include <torch/csrc/distributed/c10d/TCPStore.hpp>
#include <vector>

#include "core/files/unique_descriptor.h"
#include "distributed/group/address.h"
#include "trainkit/core/error.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

using Addresses = std::unique_ptr<addrinfo, void (*)(addrinfo*)>;

Addresses resolve(const std::string& host, uint16_t port) {
  addrinfo hints{};
  hints.ai_family = AF_UNSPEC;
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  if (getaddrinfo(without_brackets(host).c_str(), std::to_string(port).c_str(), &hints, &found) != 0) found = nullptr;
  return Addresses(found, [](addrinfo* list) {
    if (list) freeaddrinfo(list);
  });
}

std::string address_text(const sockaddr* address) {
  char text[INET6_ADDRSTRLEN] = {};
  const void* raw = address->sa_family == AF_INET
                        ? static_cast<const void*>(&reinterpret_cast<const sockaddr_in*>(address)->sin_addr)
                        : &reinterpret_cast<const sockaddr_in6*>(address)->sin6_addr;
  return inet_ntop(address->sa_family, raw, text, sizeof(text)) ? text : "";
}

bool is_loopback(const std::string& address) { return address.starts_with("127.") || address == "::1"; }

std::string seconds_text(milliseconds time) {
  char text[32];
  snprintf(text, sizeof(text), "%g s", std::chrono::duration<double>(time).count());
  return text;
}

absl::StatusOr<UniqueDescriptor> listen_on(const std::string& address, uint16_t port) {
  const Addresses addresses = resolve(address, port);
  int error = EADDRNOTAVAIL;
  for (const addrinfo* one = addresses.get(); one; one = one->ai_next) {
    UniqueDescriptor socket(::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC, one->ai_protocol));
    const int yes = 1;
    if (socket.get() >= 0 && ::setsockopt(socket.get(), SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) == 0 &&
        ::bind(socket.get(), one->ai_addr, one->ai_addrlen) == 0 && ::listen(socket.get(), SOMAXCONN) == 0) {
      return socket;
    }
    error = errno;
  }
  return distributed_error("dist.env", error == EADDRINUSE || error == EACCES ? "MASTER_PORT" : "--dist_bind",
                           "cannot listen on " + address + ":" + std::to_string(port) + ": " + std::strerror(error), {},
                           {}, error == EADDRINUSE ? "another job uses this port: choose another MASTER_PORT" : "");
}

/// Returns whether something listens at `host`:`port`. Tries every 50 ms until the deadline, since ranks start at any
/// time.
bool wait_for_listener(const std::string& host, uint16_t port, Deadline deadline) {
  while (true) {
    const Addresses addresses = resolve(host, port);
    for (const addrinfo* one = addresses.get(); one; one = one->ai_next) {
      const UniqueDescriptor socket(
          ::socket(one->ai_family, one->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, one->ai_protocol));
      if (socket.get() < 0) continue;
      if (::connect(socket.get(), one->ai_addr, one->ai_addrlen) == 0) return true;
      if (errno != EINPROGRESS) continue;
      pollfd wait{.fd = socket.get(), .events = POLLOUT, .revents = 0};
      const auto left = std::chrono::duration_cast<milliseconds>(deadline - Clock::now());
      const int patience = static_cast<int>(std::clamp<int64_t>(left.count(), 0, 1000));
      int error = 0;
      socklen_t size = sizeof(error);
      if (::poll(&wait, 1, patience) == 1 && ::getsockopt(socket.get(), SOL_SOCKET, SO_ERROR, &error, &size) == 0 &&
          error == 0) {
        return true;
      }
    }
    if (Clock::now() + milliseconds(50) >= deadline) return false;
    std::this_thread::sleep_for(milliseconds(50));
  }
}

milliseconds left_until(Deadline deadline) {
  return std::max(std::chrono::duration_cast<milliseconds>(deadline - Clock::now()), milliseconds(1));
}

}  // namespace

absl::Status distributed_error(std::string id, std::string field, std::string problem, std::string got,
                               std::string expected, std::string hint) {
  return to_status({.exit_code = ExitCode::kDistributed,
                    .id = std::move(id),
                    .field = std::move(field),
                    .problem = std::move(problem),
                    .got = std::move(got),
                    .expected = std::move(expected),
                    .hint = std::move(hint)},
                   absl::StatusCode::kUnavailable);
}

absl::StatusOr<std::string> local_address(const std::string& given) {
  const std::string bind = without_brackets(given);
  ifaddrs* list = nullptr;
  if (::getifaddrs(&list) != 0) list = nullptr;
  const std::unique_ptr<ifaddrs, void (*)(ifaddrs*)> interfaces(list, [](ifaddrs* all) {
    if (all) ::freeifaddrs(all);
  });
  std::string names;
  for (const int family : {AF_INET, AF_INET6}) {
    for (const ifaddrs* one = interfaces.get(); one; one = one->ifa_next) {
      if (!one->ifa_addr || one->ifa_addr->sa_family != family) continue;
      if (one->ifa_name == bind) return address_text(one->ifa_addr);
      if (family == AF_INET) names += (names.empty() ? "" : ", ") + std::string(one->ifa_name);
    }
  }
  const Addresses addresses = resolve(bind, 0);
  if (!bind.empty() && addresses) return address_text(addresses->ai_addr);
  return distributed_error("dist.env", "--dist_bind", "is not an address, host or network interface of this machine",
                           bind, "an address, or one of " + names);
}

absl::StatusOr<c10::intrusive_ptr<c10d::Store>> open_store(const LaunchEnvironment& launch, const std::string& bind,
                                                           Deadline deadline, milliseconds timeout) try {
  const bool one_machine = launch.world_size == launch.local_world_size;
  const bool serve = launch.rank == 0 && !launch.agent_store;
  TRAINKIT_ASSIGN_OR_RETURN(const std::string address, local_address(bind));
  const auto unknown_master = [&] {
    return distributed_error("dist.env", "MASTER_ADDR", "does not resolve", launch.master_addr,
                             "a host name or address of rank 0's machine");
  };
  if (!one_machine && is_loopback(address)) {
    if (!resolve(launch.master_addr, launch.master_port)) return unknown_master();
    return distributed_error("dist.env", "--dist_bind", "the loopback address is not reachable from other machines",
                             address, "an address or interface that is reachable from the other machines",
                             "use the interface of a private network: --dist_bind eth0");
  }
  // Ranks of one machine connect to rank 0's loopback address, whatever host name the launcher sets.
  const std::string host = launch.agent_store || !one_machine || !is_loopback(address) ? launch.master_addr : address;
  c10d::TCPStoreOptions options;
  options.port = launch.master_port;
  options.isServer = serve;
  options.waitWorkers = false;
  options.timeout = left_until(deadline);
  if (serve) {
    TRAINKIT_ASSIGN_OR_RETURN(UniqueDescriptor socket, listen_on(address, launch.master_port));
    options.masterListenFd = socket.release();
  } else if (!wait_for_listener(host, launch.master_port, deadline)) {
    if (!resolve(host, launch.master_port)) return unknown_master();
    return distributed_error("dist.join", "MASTER_ADDR",
                             "rank " + std::to_string(launch.rank) + " found no listener at " + host + ":" +
                                 std::to_string(launch.master_port) + " within " + seconds_text(timeout),
                             {}, {}, "rank 0 listens on the loopback unless --dist_bind names another address");
  }
  const auto tcp = c10::make_intrusive<c10d::TCPStore>(serve ? address : host, options);
  const std::string prefix = "trainkit/" + launch.run_id + "/" + std::to_string(launch.restart_count);
  return c10::intrusive_ptr<c10d::Store>(c10::make_intrusive<c10d::PrefixStore>(prefix, tcp));
} catch (...) {
  return distributed_error("dist.join", "MASTER_ADDR",
                           "the store at " + launch.master_addr + ":" + std::to_string(launch.master_port) +
                               " cannot be used: " + std::string(status_from_current_exception().message()));
}

absl::Status join(c10d::Store& store, const LaunchEnvironment& launch, Deadline deadline, milliseconds timeout) try {
  const std::string rank = std::to_string(launch.rank);
  const std::string world = std::to_string(launch.world_size);
  const std::string agreed = store.compareSet("world_size", std::string(), world);
  if (agreed != world)
    return distributed_error("dist.env", "WORLD_SIZE", "differs from that of another rank", world, agreed);
  if (store.add("came/" + rank, 1) > 1) {
    return distributed_error("dist.env", "RANK", "another process already has this rank", rank, "each rank once");
  }
  store.set("joined/" + rank, rank);
  std::vector<std::string> keys;
  for (int64_t other = 0; other < launch.world_size; ++other) keys.push_back("joined/" + std::to_string(other));
  try {
    store.wait(keys, left_until(deadline));
    return absl::OkStatus();
  } catch (const c10::DistStoreError&) {
    std::string missing;
    for (const std::string& key : keys) {
      if (!store.check({key})) missing += (missing.empty() ? "rank " : ", ") + key.substr(7);
    }
    return distributed_error("dist.join", "", missing + " did not join within " + seconds_text(timeout));
  }
} catch (...) {
  return distributed_error(
      "dist.join", "",
      "the store failed while ranks joined: " + std::string(status_from_current_exception().message()));
}

}  // namespace trainkit::detail
