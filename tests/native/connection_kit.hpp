// SPDX-License-Identifier: Apache-2.0
// A client's connection to a daemon that a test plays.
#pragma once

#include <chrono>
#include <functional>
#include <string>

#include "connection.hpp"
#include "fake_daemon.hpp"

namespace fake {

using sac::Connection;

inline Connection::Options options(const std::string &socket,
                                   std::uint64_t reconnect_ms = 5000) {
    Connection::Options o;
    o.socket = socket, o.name = "test", o.reconnect_ms = reconnect_ms;
    return o;
}

inline Answer echo(const Request &r) { return good(r, r.payload); }

inline double seconds_since(std::chrono::steady_clock::time_point begin) {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

inline std::string message_of(const std::function<void()> &run) {
    try {
        run();
    } catch (const sac::Error &e) {
        return e.message;
    }
    return {};
}

}  // namespace fake
