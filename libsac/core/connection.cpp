// SPDX-License-Identifier: Apache-2.0
#include "connection.hpp"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>

namespace sac {
namespace {

using std::chrono::milliseconds;
using Steady = std::chrono::steady_clock;

// How long a daemon that is there may take for the answer to HELLO.
constexpr std::chrono::seconds kHelloPatience{5};
// How long a call waits that must not: what is owed can be said later.
constexpr std::chrono::seconds kShort{1};
constexpr auto kFirstNap = milliseconds(1), kLongestNap = milliseconds(100);

Connection::Time after(Connection::Time from, std::uint64_t ms) {
    // Centuries are as good as for ever, and do not overflow the clock.
    return from + milliseconds(std::min<std::uint64_t>(ms, std::uint64_t{1} << 42));
}

}  // namespace

Connection::Connection(Options options) : options_(std::move(options)), epoch_(fork_epoch()) {
    const Holder held(*this);
    connect(after(Steady::now(), options_.timeout_ms), kHelloPatience);
}

Connection::~Connection() { flush(); }

void Connection::check() const {
    if (forked())
        throw Error(SAC_E_FORKED, options_.socket,
                    "the pool was connected by the parent process; connect anew in this one");
    if (closed_.load(std::memory_order_acquire))
        throw Error(SAC_E_CLOSED, options_.socket, "the pool was closed");
}

std::vector<std::string> Connection::names(std::uint16_t op, const Bytes &payload) {
    return ask(op, payload, [op](const Reply &reply) {
        wire::Reader in(reply.payload.data(), reply.payload.size(), wire::op_name(op));
        std::vector<std::string> out;
        while (in.left() != 0) {
            const auto *const field = reinterpret_cast<const char *>(in.take(wire::kNameBytes));
            out.push_back(wire::name(field, wire::kNameBytes, wire::op_name(op)));
        }
        return out;
    });
}

Connection::Reply Connection::exchange(std::uint16_t op, const Bytes &payload,
                                       const Care &care) {
    auto nap = kFirstNap;
    for (;;) {
        int number = 0;
        try {
            if (!channel_)
                connect(after(std::min(lost_at_, Steady::now()), options_.reconnect_ms),
                        kHelloPatience);
            say_owed(Time::max());
            if (care.still && !care.still())
                throw Error(SAC_E_STALE, options_.socket,
                            "the daemon was started anew, or the namespace has changed, since "
                            "the pages were looked up; look again");
            mend_ = care.mend;
            Reply reply = once(op, payload, Time::max());
            lost_at_ = Time::max();
            if (reply.header.status != SAC_OK) {
                mend_ = {};
                refused(op, reply);
            }
            return reply;
        } catch (const Channel::Lost &lost) {
            number = lost.number;
            lose();
        }
        const Time now = Steady::now(), end = after(lost_at_, options_.reconnect_ms);
        // The first time at once: a daemon may have come back since the last call.
        if (nap != kFirstNap) {
            if (now >= end)
                no_daemon(number);
            std::this_thread::sleep_for(std::min<Steady::duration>(nap, end - now));
        }
        nap = std::min(nap * 2, kLongestNap);
    }
}

Connection::Reply Connection::once(std::uint16_t op, const Bytes &payload, Time until) {
    if (!channel_)
        throw Channel::Lost{ENOTCONN};
    if (payload.size() > wire::kMaxPayload)
        throw Error(SAC_E_ARG, wire::op_name(op),
                    format("a request of %zu bytes; at most %u are allowed", payload.size(),
                           wire::kMaxPayload));
    wire::Header header{};
    header.magic = wire::kMagic, header.version = wire::kVersion, header.op = op;
    header.length = static_cast<std::uint32_t>(payload.size());
    header.sequence = ++sequence_;
    Reply reply;
    try {
        channel_.send(header, payload, until);
        reply = channel_.receive(until);
    } catch (const Error &) {
        lose();
        throw;
    }
    if (reply.header.op != (op | wire::kReply) || reply.header.sequence != header.sequence)
        nonsense(op, format("it is for op %u, number %" PRIu64, reply.header.op & 0x7fffu,
                            reply.header.sequence));
    return reply;
}

void Connection::connect(Time until, std::chrono::seconds patience) {
    auto nap = kFirstNap;
    for (;;) {
        int number = 0;
        try {
            channel_ = Channel(options_.socket);
            hello(std::max(until, Steady::now() + patience));
            if (mend_) {
                mend_();
                mend_ = {};
            }
            return;
        } catch (const Channel::Lost &lost) {
            number = lost.number;
            channel_.close();
        } catch (...) {
            channel_.close();
            throw;
        }
        if (number == EACCES || number == EPERM)
            throw Error(SAC_E_ACCESS, options_.socket,
                        format("%s: this user may not connect to the daemon. Ask the "
                               "administrator for its group (socket_group in the settings).",
                               options_.socket.c_str()),
                        number);
        const Time now = Steady::now();
        if (now >= until)
            no_daemon(number);
        std::this_thread::sleep_for(std::min<Steady::duration>(nap, until - now));
        nap = std::min(nap * 2, kLongestNap);
    }
}

void Connection::hello(Time until) {
    wire::HelloRequest request{};
    std::memcpy(request.id, id_, sizeof request.id);
    wire::set_name(request.name, sizeof request.name, options_.name, "the client's name");
    const Reply reply = once(wire::kHello, wire::Writer().add(request).take(), until);
    if (reply.header.status != SAC_OK)
        refused(wire::kHello, reply);
    if (reply.payload.size() != sizeof(wire::HelloReply))
        nonsense(wire::kHello, format("it has %zu bytes", reply.payload.size()));
    wire::HelloReply answer;
    std::memcpy(&answer, reply.payload.data(), sizeof answer);
    if (std::memcmp(id_, answer.id, sizeof id_) == 0)
        return;
    std::memcpy(id_, answer.id, sizeof id_);
    mend_ = {};
    life_.fetch_add(1, std::memory_order_acq_rel);
}

void Connection::lose() noexcept {
    channel_.close();
    lost_at_ = std::min(lost_at_, Steady::now());
}

void Connection::say_owed(Time until) {
    for (;;) {
        Owed next;
        {
            const std::lock_guard lock(owed_mutex_);
            if (owed_.empty())
                return;
            next = owed_.front();
        }
        if (next.life == life()) {
            wire::Writer w;
            if (next.held.empty())
                w.add(wire::TableRequest{next.table, 0});
            else
                w.add(wire::HeldRequest{next.table,
                                        static_cast<std::uint32_t>(next.held.size()), 0})
                    .add(next.held.data(), next.held.size() * sizeof next.held[0]);
            // Whatever it says: there is nothing more to be done about it.
            (void)once(next.held.empty() ? wire::kDetach : wire::kAbort, w.take(), until);
        }
        const std::lock_guard lock(owed_mutex_);
        owed_.erase(owed_.begin());
    }
}

void Connection::owe(Owed what) noexcept {
    if (forked())
        return;
    try {
        const std::lock_guard lock(owed_mutex_);
        owed_.push_back(std::move(what));
    } catch (...) {
        return;  // no memory: it is the daemon's when this process ends
    }
    if (closed_.load(std::memory_order_acquire))
        flush();
}

void Connection::flush() noexcept {
    if (forked() || holder_.load(std::memory_order_relaxed) == std::this_thread::get_id())
        return;
    try {
        {
            const std::lock_guard lock(owed_mutex_);
            if (owed_.empty())
                return;
        }
        const Holder held(*this, std::try_to_lock);
        if (!held)
            return;
        for (bool again = false;; again = true) {
            try {
                if (!channel_)
                    connect(Steady::now(), kShort);
                say_owed(Steady::now() + kShort);
                return;
            } catch (const Channel::Lost &lost) {
                lose();
                if (again || lost.number == ETIMEDOUT)
                    return;  // it hangs, or is gone
            }
        }
    } catch (...) {
        // Said with the next request, or by the end of this process.
    }
}

void Connection::close() noexcept {
    closed_.store(true, std::memory_order_release);
    flush();
}

// Throws what the daemon says.
void Connection::refused(std::uint16_t op, const Reply &reply) {
    wire::ErrorReply e{};
    if (reply.payload.size() >= sizeof e)
        std::memcpy(&e, reply.payload.data(), sizeof e);
    if (reply.payload.size() < sizeof e + e.object_bytes + e.message_bytes)
        nonsense(op, "it refuses without saying why");
    wire::throw_reply(reply.header.status, reply.payload.data(), reply.payload.size());
}

void Connection::nonsense(std::uint16_t op, const std::string &why) {
    lose();
    throw Error(
        SAC_E_CORRUPT, options_.socket,
        format("%s: the daemon's answer to %s is none (%s). Bring daemon and library to "
               "the same release.",
               options_.socket.c_str(), wire::op_name(op), why.c_str()));
}

void Connection::no_daemon(int number) const {
    throw Error(SAC_E_NO_DAEMON, options_.socket,
                format("no daemon answers on %s: %s. Start it with 'sacctl daemon run' (as a "
                       "service: 'systemctl start sacd'), or name its socket in SAC_SOCKET.",
                       options_.socket.c_str(), errno_text(number).c_str()),
                number);
}

}  // namespace sac
