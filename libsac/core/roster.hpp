// SPDX-License-Identifier: Apache-2.0
// The daemon's run directory: a record for each client, a file for each table. What a daemon
// that was killed leaves there tells the next one who still reads and writes. Clients can
// write to the tables' bytes only: what is known about a table is in its file's name.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "fork.hpp"
#include "peer.hpp"

namespace sac {

using Id = std::array<std::uint8_t, 16>;
std::string hex(const Id &id);
// Random bytes of the kernel.
Id random_id();

class Roster {
public:
    struct Client {
        Id id{};
        Process process;
        std::uint32_t uid = 0, gid = 0;
        bool evicted = false;
        std::uint64_t since_ms = 0;  // milliseconds since the epoch
        std::string name;
    };
    struct Table {
        Id client{}, pool{}, space{};  // space: the namespace's uuid
        std::uint32_t number = 0;
        bool writable = false;
        std::uint64_t capacity = 0;
        bool operator==(const Table &) const noexcept = default;
    };

    // The directory must be there, ours, and closed to others. Throws Error: SAC_E_BUSY while
    // another process has it, SAC_E_ACCESS, SAC_E_SYSTEM.
    explicit Roster(const std::string &directory);

    // Reads what is there; removes what was not written to its end, is of another boot or has
    // no client. Whether the processes live is the caller's to find out.
    void load(std::vector<Client> &clients, std::vector<Table> &tables);

    void write(const Client &client);  // new, or in the place of the old record
    void remove(const Id &client) noexcept;

    // The table's file, for both sides. A new one is zeros, with memory for its first bytes.
    // Throws Error.
    Fd create(const Table &table, std::uint64_t bytes);
    Fd open(const Table &table) const;
    void remove(const Table &table) noexcept;

    // How often a pool of this name lost its memory while clients had it mapped. Kept for the
    // next daemon. count_loss() throws Error.
    std::uint32_t losses(const std::string &pool) const noexcept;
    void count_loss(const std::string &pool);

private:
    std::string directory_;
    Fd lock_, clients_, tables_, losses_;
    Id boot_{};
};

}  // namespace sac
