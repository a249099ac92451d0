// SPDX-License-Identifier: Apache-2.0
// The thread of all clients: its beginning and end, its turns, and what others tell it.
#include "server.hpp"

#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>

#include "error.hpp"
#include "stop.hpp"

namespace sac {

namespace {

using std::chrono::seconds;

constexpr seconds kLimit{30};  // docs/protocol.md

bool spare_core() {
    cpu_set_t set;
    return ::sched_getaffinity(0, sizeof set, &set) == 0 && CPU_COUNT(&set) >= 2;
}

Fd duplicate(int fd) {
    const int own = ::fcntl(fd, F_DUPFD_CLOEXEC, 3);
    if (own < 0)
        throw_errno(format("fd %d", fd), "cannot take the fd over");
    return Fd(own);
}

}  // namespace

Server::Server(const sac_server_options &o)
    : socket_path_(o.socket_path ? o.socket_path : ""), socket_mode_(o.socket_mode),
      socket_gid_(o.socket_gid), max_clients_(o.max_clients ? o.max_clients : 1024),
      epoch_(fork_epoch()), spin_(spare_core()),
      given_listener_(o.listen_fd >= 0 ? duplicate(o.listen_fd) : Fd()),
      service_(o.run_dir, o.creators_gid, max_clients_) {}

Server::~Server() { stop(); }

void Server::check() const {
    if (forked())
        throw Error(SAC_E_FORKED, "server", "the server belongs to the parent process");
}

void Server::add_pool(const std::string &name, std::shared_ptr<Pool> pool) {
    auto owned = std::dynamic_pointer_cast<OwnedPool>(std::move(pool));
    if (!owned)
        throw Error(SAC_E_ARG, name, "pool '" + name + "' is another daemon's");
    service_.add_pool(name, std::move(owned));
}

void Server::add(int fd, std::uint64_t data) {
    epoll_event e{};
    e.events = EPOLLIN, e.data.u64 = data;
    if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &e) != 0)
        throw_errno("epoll", "cannot look for events");
}

void Server::serve() {
    const std::lock_guard lock(stop_mutex_);
    if (serving_ || stopped_)
        throw Error(SAC_E_ARG, "server", "the server serves already, or was stopped");
    epoll_ = Fd(::epoll_create1(EPOLL_CLOEXEC));
    wake_ = Fd(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    if (!epoll_ || !wake_)
        throw_errno("epoll", "cannot look for events");
    add(wake_.get(), tag(kWake));
    for (const auto &client : service_.clients())
        follow(client);
    listener_ = given_listener_
                    ? std::make_unique<Listener>(given_listener_.get())
                    : std::make_unique<Listener>(socket_path_, socket_mode_, socket_gid_);
    add(listener_->fd(), tag(kListen));
    accepting_ = true;
    // Signals are for the program's own threads.
    sigset_t all, before;
    ::sigfillset(&all);
    for (const int fault : {SIGBUS, SIGSEGV, SIGFPE, SIGILL})
        ::sigdelset(&all, fault);
    ::pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        brief_.start();
        lengthy_.start();
        thread_ = std::thread([this] { run(); });
    } catch (...) {
        ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
    ::pthread_sigmask(SIG_SETMASK, &before, nullptr);
    serving_ = true;
}

void Server::stop() noexcept {
    if (forked())
        return;
    const std::lock_guard lock(stop_mutex_);
    stopped_ = true;
    stopping_ = true;
    wake();
    if (thread_.joinable())
        thread_.join();
    brief_.stop();
    lengthy_.stop();
    sessions_.clear();
    listener_.reset();
    admin_.stop();
}

void Server::wake() noexcept {
    const std::uint64_t one = 1;
    if (wake_)
        (void)!::write(wake_.get(), &one, sizeof one);
}

void Server::done(Done what) noexcept {
    {
        const std::lock_guard lock(done_mutex_);
        done_.push_back(std::move(what));
    }
    wake();
}

void Server::run() noexcept {
    ::pthread_setname_np(::pthread_self(), "sac-clients");
    while (!stopping_) {
        turns_.fetch_add(1, std::memory_order_relaxed);
        const Time now = std::chrono::steady_clock::now();
        if (now >= next_tick_)
            tick(now);
        turn(now < spin_until_ ? 0 : 500);
    }
}

void Server::turn(int timeout_ms) {
    epoll_event events[64];
    const int n = ::epoll_wait(epoll_.get(), events, 64, timeout_ms);
    for (int i = 0; i < n; ++i) {
        const std::uint64_t serial = events[i].data.u64 & ((std::uint64_t{1} << 56) - 1);
        switch (events[i].data.u64 >> 56) {
        case kListen:
            accept();
            break;
        case kWake:
            finish();
            break;
        case kClient:
            ended(serial);
            break;
        case kSession: {
            const auto it = sessions_.find(serial);
            if (it == sessions_.end())
                break;  // closed a moment ago, in this turn
            const SessionPtr session = it->second;
            try {
                ready(session, events[i].events);
            } catch (const std::exception &) {  // memory or files ran out
                close(serial);
            }
            break;
        }
        }
    }
}

// ------------------------------------------------------------------------- processes

void Server::follow(const std::shared_ptr<Client> &client) {
    if (!followed_.emplace(client->serial, client).second)
        return;
    add(client->pidfd.get(), tag(kClient, client->serial));
}

void Server::ended(std::uint64_t serial) {
    const auto it = followed_.find(serial);
    if (it == followed_.end())
        return;
    const std::shared_ptr<Client> client = it->second;
    followed_.erase(it);
    ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, client->pidfd.get(), nullptr);
    std::vector<std::uint64_t> its;
    for (const auto &[number, s] : sessions_)
        if (s->caller.client == client)
            its.push_back(number);
    for (const std::uint64_t number : its)
        close(number);
    // It may have had thousands of tables.
    brief_.add([this, client] { service_.gone(client); });
}

// ------------------------------------------------------------------------ from others

void Server::finish() {
    std::uint64_t count = 0;
    (void)!::read(wake_.get(), &count, sizeof count);
    std::vector<Done> all;
    {
        const std::lock_guard lock(done_mutex_);
        all.swap(done_);
    }
    for (Done &d : all) {
        const auto it = sessions_.find(d.session);
        if (it == sessions_.end())
            continue;
        const SessionPtr session = it->second;
        try {
            respond(*session, d.header, std::move(d.reply));
        } catch (const std::exception &) {
            close(d.session);
        }
    }
}

void Server::tick(Time now) {
    next_tick_ = now + seconds(1);
    std::vector<std::uint64_t> stuck;
    for (const auto &[serial, s] : sessions_)
        if (s->stuck(now, kLimit))
            stuck.push_back(serial);
    for (const std::uint64_t serial : stuck)
        close(serial);
    if (accepting_)
        return;
    epoll_event e{};
    e.events = EPOLLIN, e.data.u64 = tag(kListen);
    accepting_ = ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, listener_->fd(), &e) == 0;
}

}  // namespace sac
