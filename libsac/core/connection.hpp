// SPDX-License-Identifier: Apache-2.0
// A client's way to the daemon: one request at a time. Where the connection is lost it is made
// again, as the same client, and the request is sent again.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "channel.hpp"
#include "error.hpp"
#include "fork.hpp"
#include "wire.hpp"

namespace sac {

class Connection {
public:
    using Time = Channel::Time;
    using Bytes = Channel::Bytes;
    using Reply = Channel::Frame;

    struct Options {
        std::string socket;              // of the daemon
        std::string name;                // how this client is called in lists; may be empty
        std::uint64_t timeout_ms = 0;    // how long the constructor waits for a daemon
        std::uint64_t reconnect_ms = 0;  // how long a call waits for one that went away
    };
    // To be said to the daemon as soon as it can be: reservations given up, or a table.
    struct Owed {
        std::uint32_t table;
        std::uint64_t life;                // of the client that the table belongs to
        std::vector<wire::HeldItem> held;  // empty: the table is detached
    };

    // Throws Error: SAC_E_NO_DAEMON, SAC_E_ACCESS, SAC_E_VERSION, and what the daemon says.
    explicit Connection(Options options);
    ~Connection();
    Connection(const Connection &) = delete;
    Connection &operator=(const Connection &) = delete;

    // Throws where a call must not go on: SAC_E_FORKED, SAC_E_CLOSED.
    void check() const;
    bool forked() const noexcept { return epoch_ != fork_epoch(); }
    const std::string &socket() const noexcept { return options_.socket; }
    // Changes when the daemon did not know the client any more: what it had is gone.
    std::uint64_t life() const noexcept { return life_.load(std::memory_order_acquire); }

    // For requests that may not be sent twice just so.
    struct Care {
        // Called where the connection was lost before the answer came, as soon as there is
        // another one, and before anything else is asked: the daemon may have done what was
        // asked. May use once() only.
        std::function<void()> mend;
        // Looked at before each sending; false: SAC_E_STALE.
        std::function<bool()> still;
    };

    // Sends a request and hands the reply to take(Reply &), whose result it returns. Nothing
    // else passes until take has returned; take must not ask. Where the connection was lost
    // the request is sent again. Throws Error: what the daemon says, SAC_E_NO_DAEMON, and
    // SAC_E_CORRUPT where the answer is none, or where take says SAC_E_ARG.
    template <class Take>
    auto ask(std::uint16_t op, const Bytes &payload, Take &&take, const Care &care = {}) {
        check();
        const Flusher last(*this);
        const Holder held(*this);
        Reply reply = exchange(op, payload, care);
        const Taking taking(*this);
        try {
            return take(reply);
        } catch (const Error &e) {
            if (e.status == SAC_E_ARG)
                nonsense(op, e.message);
            throw;
        }
    }
    // As ask, where the reply says nothing but that it was done.
    void tell(std::uint16_t op, const Bytes &payload) {
        ask(op, payload, [](const Reply &) {});
    }
    // As ask, where the reply is a list of names.
    std::vector<std::string> names(std::uint16_t op, const Bytes &payload);
    // For mend(). Whatever the daemon says to it, it has been said.
    void once(std::uint16_t op, const Bytes &payload) { (void)once(op, payload, Time::max()); }

    // Neither throws nor waits.
    void owe(Owed what) noexcept;
    // Says what is owed: at once, or, where the connection is busy, right after that.
    void flush() noexcept;
    // Nothing is asked any more; what is owed is still said.
    void close() noexcept;

private:
    // Who has the connection to itself.
    class Holder {
    public:
        explicit Holder(Connection &c) : c_(c), lock_(c.mutex_) { note(); }
        Holder(Connection &c, std::try_to_lock_t how) : c_(c), lock_(c.mutex_, how) {
            if (lock_)
                note();
        }
        ~Holder() {
            if (lock_)
                c_.holder_.store({}, std::memory_order_relaxed);
        }
        Holder(const Holder &) = delete;
        Holder &operator=(const Holder &) = delete;
        explicit operator bool() const noexcept { return lock_.owns_lock(); }

    private:
        void note() { c_.holder_.store(std::this_thread::get_id(), std::memory_order_relaxed); }

        Connection &c_;
        std::unique_lock<std::mutex> lock_;
    };

    // Who finds the connection busy leaves what is owed to the one who has it.
    class Flusher {
    public:
        explicit Flusher(Connection &c) : c_(c) {}
        ~Flusher() { c_.flush(); }
        Flusher(const Flusher &) = delete;
        Flusher &operator=(const Flusher &) = delete;

    private:
        Connection &c_;
    };

    // An answer that cannot be taken counts as none: the connection is given up.
    class Taking {
    public:
        explicit Taking(Connection &c) : c_(c), exceptions_(std::uncaught_exceptions()) {}
        ~Taking() {
            if (std::uncaught_exceptions() == exceptions_)
                c_.mend_ = {};
            else
                c_.lose();
        }
        Taking(const Taking &) = delete;
        Taking &operator=(const Taking &) = delete;

    private:
        Connection &c_;
        const int exceptions_;
    };

    // The rest needs the mutex held, but for what is in the constructor.
    Reply exchange(std::uint16_t op, const Bytes &payload, const Care &care);
    Reply once(std::uint16_t op, const Bytes &payload, Time until);
    void connect(Time until, std::chrono::seconds patience);
    void hello(Time until);
    void lose() noexcept;
    void say_owed(Time until);
    [[noreturn]] void refused(std::uint16_t op, const Reply &reply);
    [[noreturn]] void nonsense(std::uint16_t op, const std::string &why);
    [[noreturn]] void no_daemon(int number) const;

    const Options options_;
    const std::uint64_t epoch_;
    std::mutex mutex_;
    std::atomic<std::thread::id> holder_{};
    std::atomic<bool> closed_{false};
    std::atomic<std::uint64_t> life_{0};
    Channel channel_;
    std::uint8_t id_[16]{};
    std::uint64_t sequence_ = 0;
    Time lost_at_ = Time::max();  // since when nothing was answered
    std::function<void()> mend_;  // of a request whose answer never came

    std::mutex owed_mutex_;
    std::vector<Owed> owed_;
};

}  // namespace sac
