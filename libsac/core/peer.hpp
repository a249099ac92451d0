// SPDX-License-Identifier: Apache-2.0
// Who is at the other end of a socket, as the kernel says.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>
#include <vector>

#include "fork.hpp"

namespace sac {

// A process, told from another that has its number later.
struct Process {
    std::uint32_t pid = 0;
    std::uint64_t start_time = 0;  // clock ticks since boot
    bool operator==(const Process &) const noexcept = default;
};

struct Peer {
    Process process;
    uid_t uid = 0;
    gid_t gid = 0;
    std::vector<gid_t> groups;  // supplementary ones
    Fd pidfd;                   // readable when the process has ended

    bool in_group(gid_t group) const noexcept;
};

// Throws Error: SAC_E_ACCESS where the process cannot be seen or has ended, SAC_E_SYSTEM.
Peer peer_of(int socket);

// 0: there is no such process, or it has ended.
std::uint64_t start_time_of(std::uint32_t pid) noexcept;
// Empty: that process has ended. Throws Error(SAC_E_SYSTEM).
Fd open_process(const Process &process);
// What the process is called, at most 15 bytes; empty: not known.
std::string process_name(std::uint32_t pid);

}  // namespace sac
