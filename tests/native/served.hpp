// SPDX-License-Identifier: Apache-2.0
// A server with a pool, and processes that use it.
#pragma once

#include <chrono>
#include <thread>

#include "in_child.hpp"
#include "server_kit.hpp"

namespace kit {

// A server that serves one pool, "p".
struct Served {
    Place place;
    PoolHandle pool;
    ServerHandle server;
    explicit Served(std::uint32_t max_clients = 64)
        : pool(place.pool()), server(place.server(max_clients)) {
        MUST(sac_server_add_pool(server.get(), "p", pool.get()));
        MUST(sac_server_serve(server.get()));
    }
    // As a daemon that ended does, and another that comes.
    void restart() {
        server.reset(), pool.reset();
        pool = place.pool(), server = place.server();
        MUST(sac_server_add_pool(server.get(), "p", pool.get()));
        MUST(sac_server_serve(server.get()));
    }
    std::vector<sac_client_info> clients() {
        std::uint64_t n = 0;
        MUST(sac_server_clients(server.get(), nullptr, &n));
        std::vector<sac_client_info> out(n);
        MUST(sac_server_clients(server.get(), out.data(), &n));
        out.resize(std::min<std::size_t>(out.size(), n));
        return out;
    }
    std::vector<sac_table_info> tables() {
        std::uint64_t n = 0;
        MUST(sac_server_tables(server.get(), nullptr, &n));
        std::vector<sac_table_info> out(n);
        MUST(sac_server_tables(server.get(), out.data(), &n));
        return out;
    }
};

template <class Fn> bool soon(Fn &&fn) {
    for (int i = 0; i < 2000; ++i) {
        if (fn())
            return true;
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
    }
    return false;
}

inline const Layout kLayout = plain(16, 256);

inline Attached attach(Raw &raw, const char *name = "n") {
    return attached(raw.call(wire::kAttach, attach_request("p", name, wire::kCreate, kLayout)));
}

}  // namespace kit
