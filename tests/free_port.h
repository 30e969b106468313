#pragma once
/// Ports for the jobs of tests.

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>

namespace trainkit::test {

/// A port on which nothing listens and that no other call returns, in any test process, until this process ends. It is
/// below the range from which the kernel takes the ports of outgoing connections. The claim is an abstract Unix socket:
/// the kernel releases it when the process ends.
inline uint16_t free_port() {
  constexpr int kFirst = 12000, kCount = 20000;
  static std::atomic<int> next{static_cast<int>(getpid() * 61L % kCount)};
  for (int tried = 0; tried < kCount; ++tried) {
    const int port = kFirst + next++ % kCount;
    const int claim = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un name{};
    name.sun_family = AF_UNIX;
    const std::string text = "trainkit-test-port-" + std::to_string(port);
    std::memcpy(name.sun_path + 1, text.data(), text.size());
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + text.size());
    const bool claimed = bind(claim, reinterpret_cast<const sockaddr*>(&name), size) == 0;
    const int listener = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(static_cast<uint16_t>(port));
    const bool is_free = bind(listener, reinterpret_cast<const sockaddr*>(&address), sizeof(address)) == 0;
    close(listener);
    if (claimed && is_free) return static_cast<uint16_t>(port);
    close(claim);
  }
  throw std::runtime_error("no free port");
}

}  // namespace trainkit::test
