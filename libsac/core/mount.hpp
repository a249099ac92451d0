// SPDX-License-Identifier: Apache-2.0
// A daemon's pool in this process: its extents mapped, and views of its namespaces asked for.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backing.hpp"
#include "connection.hpp"
#include "format.hpp"
#include "layout.hpp"
#include "remote_view.hpp"

namespace sac {

class Mount {
public:
    Mount(std::shared_ptr<Connection> connection, std::string pool);

    // What an ATTACH gave. The block has been checked, but for what only the owner can know.
    struct Attached {
        std::shared_ptr<RemoteView> view;
        std::shared_ptr<Backing> backing;
        fmt::NamespaceBlock block;
        Geometry geometry;
        bool writable;
    };
    // options: what a new one is to be, and an old one must be; null: as it is. Maps what was
    // not mapped yet; all of it, where the pool lost its memory and has come back. Throws
    // Error: what the daemon says, SAC_E_CORRUPT, SAC_E_CLOSED (another pool has taken the
    // name), SAC_E_SYSTEM.
    Attached attach(const std::string &name, const sac_ns_options *options, bool read_only);

    // Of the pool's namespaces. Throws Error.
    std::vector<std::string> names() const;

    Connection &connection() const noexcept { return *connection_; }
    const std::string &pool() const noexcept { return pool_; }
    // Nothing that was mapped may be used any more.
    void close() noexcept;

private:
    struct Handed;  // by one reply

    Handed ask(const std::string &name, const sac_ns_options *options, bool read_only);
    std::size_t mapped(bool writable) const noexcept;
    void map(Handed &handed, bool writable);
    std::shared_ptr<RemoteView> view(Handed &handed, const std::string &name);

    const std::shared_ptr<Connection> connection_;
    const std::string pool_;
    std::mutex mutex_;
    std::array<std::shared_ptr<Backing>, 2> backing_;  // to read; to read and write
    std::array<std::uint32_t, 2> life_{};              // of the pool, as the daemon counts
    std::array<std::uint8_t, 16> uuid_{};              // of what is mapped
};

}  // namespace sac
