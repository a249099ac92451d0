// SPDX-License-Identifier: Apache-2.0
// Connections: taken, read, answered, closed. On the thread of all clients.
#include <sys/epoll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>

#include "error.hpp"
#include "server.hpp"
#include "stop.hpp"

namespace sac {

namespace {

using std::chrono::microseconds;

// A writer reserves, copies for some 40 us and commits; a thread that sleeps needs 60 us to
// wake up.
constexpr microseconds kSpin{100};
// Connections that have not said HELLO: of all users over the clients' number, of one user.
constexpr std::size_t kMostNew = 512, kMostNewOfUser = 128;
constexpr int kAcceptsATurn = 16;
constexpr std::uint32_t kMostBeforeHello = 4096, kMostAdmin = 1 << 20;
constexpr std::size_t kMostHeld = std::size_t{1} << 30;

}  // namespace

bool Server::welcome(const Peer &peer) const {
    if (sessions_.size() >= std::size_t{max_clients_} + kMostNew)
        return false;
    const auto same = std::count_if(sessions_.begin(), sessions_.end(), [&](const auto &s) {
        return !s.second->caller.client && s.second->caller.peer.uid == peer.uid;
    });
    return static_cast<std::size_t>(same) < kMostNewOfUser;
}

void Server::accept() {
    for (int i = 0; i < kAcceptsATurn; ++i) {
        const int fd =
            ::accept4(listener_->fd(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd < 0) {
            // No files or no memory: later, or the same event would come at once.
            if (errno == EMFILE || errno == ENFILE || errno == ENOBUFS || errno == ENOMEM) {
                ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, listener_->fd(), nullptr);
                accepting_ = false;
            }
            return;
        }
        const std::uint64_t serial = next_session_++;
        try {
            Fd socket(fd);
            Peer peer = peer_of(socket.get());
            if (!welcome(peer))
                continue;
            const auto session =
                std::make_shared<Session>(std::move(socket), std::move(peer), serial);
            sessions_.emplace(serial, session);
            session->events = EPOLLIN;
            add(session->fd(), tag(kSession, serial));
        } catch (const std::exception &) {
            sessions_.erase(serial);  // whom nobody can know is not served
        }
    }
}

void Server::ready(const SessionPtr &session, std::uint32_t events) {
    Session &s = *session;
    if (s.sending()) {
        if ((events & (EPOLLHUP | EPOLLERR)) || !s.flush())
            return close(s.serial());
        if (!s.sending())
            sent(s);
        return;
    }
    // Nobody reads the answer any more.
    if (s.busy)
        return (events & (EPOLLHUP | EPOLLERR)) ? close(s.serial()) : void();
    read(session);
}

void Server::read(const SessionPtr &session) {
    Session &s = *session;
    Frame frame;
    switch (s.read(frame, s.caller.client ? wire::kMaxPayload : kMostBeforeHello)) {
    case Session::Input::nothing:
        if (too_much(s))
            close(s.serial());
        return;
    case Session::Input::closed:
        return close(s.serial());
    case Session::Input::version:
        s.whole = std::chrono::steady_clock::now();
        s.ending = true;
        return respond(
            s, frame.header,
            Service::failed({SAC_E_VERSION, "protocol",
                             format("the request is of protocol version %u; this "
                                    "daemon (%s) speaks version %u",
                                    frame.header.version, SAC_VERSION, wire::kVersion)}));
    case Session::Input::frame:
        return request(session, std::move(frame));
    }
}

// Others must have memory, too.
bool Server::too_much(const Session &session) const {
    if (session.held() <= std::size_t{1} << 16)
        return false;
    std::size_t all = 0;
    for (const auto &[serial, s] : sessions_)
        all += s->held();
    return all > kMostHeld;
}

void Server::request(const SessionPtr &session, Frame frame) {
    Session &s = *session;
    s.whole = std::chrono::steady_clock::now();
    s.op = frame.header.op;
    if (s.op == wire::kAdmin && s.caller.client) {
        if (frame.payload.size() > kMostAdmin)
            return respond(
                s, frame.header,
                Service::failed(
                    {SAC_E_ARG, "ADMIN", "a request of the administrator has at most 1 MiB"}));
        s.caller.client->requests.fetch_add(1, std::memory_order_relaxed);
        AdminQueue::Request r;
        r.session = s.serial(), r.header = frame.header;
        r.pid = s.caller.peer.process.pid;
        r.uid = s.caller.peer.uid, r.gid = s.caller.peer.gid;
        r.groups = s.caller.peer.groups;
        r.fds = std::move(frame.fds), r.body = std::move(frame.payload);
        s.busy = true;
        watch(s);
        return admin_.add(std::move(r));
    }
    frame.fds.clear();
    const Service::Speed speed = Service::speed(frame);
    if (speed != Service::Speed::fast && s.caller.client) {
        s.busy = true;
        watch(s);
        // std::function wants to copy.
        const auto held = std::make_shared<Frame>(std::move(frame));
        (speed == Service::Speed::brief ? brief_ : lengthy_).add([this, session, held] {
            done({session->serial(), held->header, service_.handle(session->caller, *held)});
        });
        return;
    }
    const bool hello = !s.caller.client;
    Reply reply = service_.handle(s.caller, frame);
    SAC_STOP("server.before_reply");
    if (hello && s.caller.client) {
        take_over(s);
        follow(s.caller.client);
        s.caller.peer.pidfd.reset();
    } else if (hello) {
        s.ending = true;
    } else if (spin_) {
        spin_until_ = std::chrono::steady_clock::now() + kSpin;
    }
    respond(s, frame.header, std::move(reply));
}

void Server::respond(Session &s, const wire::Header &header, Reply reply) {
    s.op = header.op;
    s.error = reply.status != SAC_OK;
    s.busy = false;
    if (!s.send(header, std::move(reply)))
        return close(s.serial());
    if (!s.sending())
        return sent(s);
    watch(s);
}

void Server::sent(Session &s) {
    const auto taken = std::chrono::steady_clock::now() - s.whole;
    service_.count(s.op, s.error,
                   static_cast<std::uint64_t>(
                       std::chrono::duration_cast<std::chrono::nanoseconds>(taken).count()));
    if (s.ending)
        return close(s.serial());
    watch(s);
}

void Server::watch(Session &s) {
    const std::uint32_t events = s.sending() ? EPOLLOUT : s.busy ? 0u : std::uint32_t{EPOLLIN};
    if (events == s.events)
        return;
    epoll_event e{};
    e.events = events, e.data.u64 = tag(kSession, s.serial());
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, s.fd(), &e) != 0)
        throw_errno("epoll", "cannot look for events");
    s.events = events;
}

void Server::close(std::uint64_t serial) {
    const auto it = sessions_.find(serial);
    if (it == sessions_.end())
        return;
    const SessionPtr session = it->second;
    sessions_.erase(it);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, session->fd(), nullptr);
    admin_.forget(serial);
    SAC_STOP("server.session_closed");
    const std::shared_ptr<Client> &client = session->caller.client;
    if (service_.left(session->caller) && followed_.erase(client->serial) != 0)
        ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->pidfd.get(), nullptr);
    // A job that still works for it holds the session: the other end must not wait for that.
    ::shutdown(session->fd(), SHUT_RDWR);
}

// The client speaks through this session now: an older one of it ends.
void Server::take_over(const Session &session) {
    std::vector<std::uint64_t> old;
    for (const auto &[serial, s] : sessions_)
        if (s->caller.client == session.caller.client && serial != session.serial())
            old.push_back(serial);
    for (const std::uint64_t serial : old)
        close(serial);
}

}  // namespace sac
