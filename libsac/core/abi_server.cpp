// SPDX-License-Identifier: Apache-2.0
// sac_server.h.
#include <cstring>

#include "abi.hpp"
#include "sac_server.h"
#include "server.hpp"

struct sac_server {
    std::unique_ptr<sac::Server> it;
};

namespace {

using sac::abi::guarded;
using sac::abi::need;

// Runs fn(server) where the handle is usable.
template <class Fn> int with(sac_server *server, Fn &&fn) noexcept {
    return guarded([&] {
        need(server, "server");
        server->it->check();
        fn(*server->it);
    });
}

}  // namespace

extern "C" {

int sac_server_open(const sac_server_options *options, sac_server **out) {
    return guarded([&] {
        sac::abi::need_struct(options, "options");
        need(out, "out"), need(options->run_dir, "run_dir");
        if (options->listen_fd < 0)
            need(options->socket_path, "socket_path");
        auto handle = std::make_unique<sac_server>();
        handle->it = std::make_unique<sac::Server>(*options);
        *out = handle.release();
    });
}

int sac_server_add_pool(sac_server *server, const char *name, sac_pool *pool) {
    return with(server, [&](sac::Server &s) {
        need(name, "name"), need(pool, "pool");
        s.add_pool(name, pool->it);
    });
}

int sac_server_remove_pool(sac_server *server, const char *name) {
    return with(server, [&](sac::Server &s) {
        need(name, "name");
        s.service().remove_pool(name);
    });
}

int sac_server_lose_pool(sac_server *server, const char *name) {
    return with(server, [&](sac::Server &s) {
        need(name, "name");
        s.service().lose_pool(name);
    });
}

int sac_server_serve(sac_server *server) {
    return with(server, [](sac::Server &s) { s.serve(); });
}

int sac_server_stop(sac_server *server) {
    return with(server, [](sac::Server &s) { s.stop(); });
}

int sac_server_close(sac_server *server) {
    if (!server)
        return SAC_OK;
    const int status = with(server, [](sac::Server &s) { s.stop(); });
    // In a forked child the threads are not there that the parent's server has.
    if (server->it->forked())
        (void)server->it.release();
    delete server;
    return status;
}

int sac_server_heartbeat(sac_server *server, uint64_t *turns) {
    return with(server, [&](sac::Server &s) {
        need(turns, "turns");
        *turns = s.heartbeat();
    });
}

int sac_server_admin(sac_server *server, uint64_t timeout_ms, sac_admin_request *out) {
    return with(server, [&](sac::Server &s) {
        need(out, "out");
        s.admin(timeout_ms, *out);
    });
}

int sac_server_answer(sac_server *server, uint64_t id, const char *json, uint64_t json_bytes) {
    return with(server, [&](sac::Server &s) {
        need(json, "json");
        s.answer(id, json, json_bytes);
    });
}

int sac_server_clients(sac_server *server, sac_client_info *out, uint64_t *count) {
    return with(server, [&](sac::Server &s) {
        need(count, "count");
        s.service().clients(out, *count);
    });
}

int sac_server_tables(sac_server *server, sac_table_info *out, uint64_t *count) {
    return with(server, [&](sac::Server &s) {
        need(count, "count");
        s.service().tables(out, *count);
    });
}

int sac_server_ops(sac_server *server, sac_op_info *out, uint64_t *count) {
    return with(server, [&](sac::Server &s) {
        need(count, "count");
        s.service().ops(out, *count);
    });
}

int sac_server_evict(sac_server *server, const uint8_t *id, int kill) {
    return with(server, [&](sac::Server &s) {
        need(id, "id");
        sac::Id client;
        std::memcpy(client.data(), id, client.size());
        s.service().evict(client, kill != 0);
    });
}

}  // extern "C"
