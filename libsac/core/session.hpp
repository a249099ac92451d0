// SPDX-License-Identifier: Apache-2.0
// One connection: whole frames out of a stream of bytes, replies into it, never waiting.
#pragma once

#include <chrono>
#include <cstdint>
#include <vector>

#include "service.hpp"
#include "wire.hpp"

namespace sac {

class Session {
public:
    using Time = std::chrono::steady_clock::time_point;

    // socket: does not block.
    Session(Fd socket, Peer peer, std::uint64_t serial);

    int fd() const noexcept { return socket_.get(); }
    std::uint64_t serial() const noexcept { return caller.session; }

    // nothing: no whole frame yet. version: a frame of another version, to be answered.
    enum class Input { nothing, frame, version, closed };
    // Reads what has come, at most to the end of a frame. Frames of more than limit bytes
    // close the session.
    Input read(Frame &out, std::uint32_t limit);

    // Sends, or keeps for flush() what the socket does not take. One reply at a time.
    // False: the session is to be closed.
    bool send(const wire::Header &request, Reply reply);
    bool flush();
    bool sending() const noexcept { return sending_; }

    // A frame has begun but not ended, or a reply is not taken, for so long.
    bool stuck(Time now, std::chrono::seconds limit) const noexcept;
    Time begun() const noexcept { return begun_; }
    // Bytes held in memory for it.
    std::size_t held() const noexcept { return payload_.capacity() + reply_.payload.size(); }

    Caller caller;
    bool busy = false;     // a request is being worked on elsewhere
    bool ending = false;   // to be closed when the reply is sent
    std::uint16_t op = 0;  // of the request whose reply is being sent, and when it was whole
    Time whole{};
    bool error = false;
    std::uint32_t events = 0;  // that epoll looks for

private:
    // Bytes read, 0: none now, -1: the end.
    long receive(std::uint8_t *to, std::size_t most);
    void take_fds(const void *control);
    Input check_header(std::uint32_t limit) const noexcept;

    Fd socket_;
    Time begun_, last_;  // of the connection or the frame; of the last progress in sending
    std::size_t have_ = 0;
    wire::Header header_{};
    std::vector<std::uint8_t> payload_;
    std::vector<Fd> fds_;
    bool sending_ = false;
    wire::Header reply_header_{};
    Reply reply_;
    std::size_t sent_ = 0;
};

}  // namespace sac
