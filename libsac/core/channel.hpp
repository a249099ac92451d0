// SPDX-License-Identifier: Apache-2.0
// A client's socket: a frame out, a frame in, and the file descriptors that come with it.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <vector>

#include "fork.hpp"
#include "wire.hpp"

namespace sac {

class Channel {
public:
    using Time = std::chrono::steady_clock::time_point;
    using Bytes = std::vector<std::uint8_t>;

    // Thrown where the other side has gone, or was not there in time.
    struct Lost {
        int number;  // errno
    };
    struct Frame {
        wire::Header header;
        Bytes payload;
        std::vector<Fd> fds;
        bool files_lost = false;  // not all fitted into this process
    };

    // A connection that does not exist yet.
    Channel() = default;
    // Throws Lost where nobody listens there, Error(SAC_E_ARG) for a path that is too long,
    // Error(SAC_E_SYSTEM), Error(SAC_E_NO_MEMORY).
    explicit Channel(const std::string &path);

    explicit operator bool() const noexcept { return static_cast<bool>(fd_); }
    void close() noexcept { fd_.reset(); }

    // Throws Lost.
    void send(const wire::Header &header, const Bytes &payload, Time until) const;
    // The next frame. Throws Lost, Error(SAC_E_VERSION), and Error(SAC_E_CORRUPT) for what is
    // no frame.
    Frame receive(Time until) const;

private:
    std::size_t read(void *head, std::size_t head_bytes, void *body, std::size_t body_bytes,
                     Frame &frame) const;
    void wait(short events, Time until) const;

    Fd fd_;
    std::string path_;
};

}  // namespace sac
