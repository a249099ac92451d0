// SPDX-License-Identifier: Apache-2.0
// The daemon's sockets and threads, around Service: one thread for all clients, which never
// waits for one of them, and two for what takes longer.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <thread>
#include <unordered_map>

#include "listen.hpp"
#include "service.hpp"
#include "session.hpp"
#include "worker.hpp"

namespace sac {

// The reply to ADMIN is written by others.
class AdminQueue {
public:
    struct Request {
        std::uint64_t id = 0, session = 0;
        wire::Header header{};
        std::uint32_t pid = 0, uid = 0, gid = 0;
        std::vector<gid_t> groups;
        std::vector<Fd> fds;
        std::vector<std::uint8_t> body;
        Session::Time whole{};
    };

    void add(Request request);
    // The session has ended: nobody waits for an answer to what was not begun.
    void forget(std::uint64_t session);
    void stop();
    // id 0: none came in time. Throws Error(SAC_E_CLOSED) after stop().
    void next(std::uint64_t timeout_ms, sac_admin_request &out);
    // What answer() needs of the request. Throws Error(SAC_E_NOT_FOUND).
    Request take(std::uint64_t id);

private:
    std::mutex mutex_;
    std::condition_variable changed_;
    std::deque<std::shared_ptr<Request>> waiting_;
    std::map<std::uint64_t, std::shared_ptr<Request>> given_;
    std::uint64_t next_ = 1;
    bool stopped_ = false;
};

class Server {
public:
    explicit Server(const sac_server_options &options);
    ~Server();
    Server(const Server &) = delete;
    Server &operator=(const Server &) = delete;

    // Throws where a call must not go on: forked.
    void check() const;
    bool forked() const noexcept { return epoch_ != fork_epoch(); }

    Service &service() noexcept { return service_; }
    void add_pool(const std::string &name, std::shared_ptr<Pool> pool);
    void serve();
    void stop() noexcept;
    std::uint64_t heartbeat() const noexcept { return turns_.load(); }
    void admin(std::uint64_t timeout_ms, sac_admin_request &out);
    void answer(std::uint64_t id, const char *json, std::uint64_t bytes);

private:
    struct Done {
        std::uint64_t session;
        wire::Header header;
        Reply reply;
    };
    using SessionPtr = std::shared_ptr<Session>;
    using Time = Session::Time;

    // What an epoll event is about: in the upper byte; a serial number in the others.
    enum Kind : std::uint64_t { kListen = 1, kWake = 2, kSession = 3, kClient = 4 };
    static constexpr std::uint64_t tag(Kind kind, std::uint64_t serial = 0) {
        return kind << 56 | serial;
    }

    // ---- the thread of all clients
    void run() noexcept;
    void turn(int timeout_ms);
    // Looks for what can be read there.
    void add(int fd, std::uint64_t data);
    void accept();
    bool welcome(const Peer &peer) const;
    void ready(const SessionPtr &session, std::uint32_t events);
    void read(const SessionPtr &session);
    void request(const SessionPtr &session, Frame frame);
    void respond(Session &session, const wire::Header &header, Reply reply);
    void sent(Session &session);
    void watch(Session &session);
    void follow(const std::shared_ptr<Client> &client);
    void take_over(const Session &session);
    void finish();
    void ended(std::uint64_t client);
    void close(std::uint64_t session);
    void tick(Time now);
    bool too_much(const Session &session) const;

    // ---- from others to it
    void wake() noexcept;
    void done(Done what) noexcept;

    const std::string socket_path_;
    const std::uint32_t socket_mode_, socket_gid_, max_clients_;
    const std::uint64_t epoch_;
    const bool spin_;  // a core is left for whoever asks
    Fd given_listener_;
    Service service_;
    AdminQueue admin_;
    Worker brief_, lengthy_;

    Fd epoll_, wake_;
    std::unique_ptr<Listener> listener_;
    std::thread thread_;
    std::mutex stop_mutex_;
    bool serving_ = false, stopped_ = false;
    std::atomic<bool> stopping_{false};
    std::atomic<std::uint64_t> turns_{0};

    std::mutex done_mutex_;
    std::vector<Done> done_;

    // Of that thread alone.
    std::unordered_map<std::uint64_t, SessionPtr> sessions_;
    std::unordered_map<std::uint64_t, std::shared_ptr<Client>> followed_;
    std::uint64_t next_session_ = 1;
    Time spin_until_{}, next_tick_{};
    bool accepting_ = false;
};

}  // namespace sac
