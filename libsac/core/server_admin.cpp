// SPDX-License-Identifier: Apache-2.0
// Requests of the administrator: written down here, answered by the daemon's program.
#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>

#include "error.hpp"
#include "server.hpp"

namespace sac {

void AdminQueue::add(Request request) {
    const auto held = std::make_shared<Request>(std::move(request));
    {
        const std::lock_guard lock(mutex_);
        held->id = next_++;
        waiting_.push_back(held);
    }
    changed_.notify_one();
}

void AdminQueue::forget(std::uint64_t session) {
    const std::lock_guard lock(mutex_);
    std::erase_if(waiting_, [&](const auto &r) { return r->session == session; });
}

void AdminQueue::stop() {
    {
        const std::lock_guard lock(mutex_);
        stopped_ = true;
    }
    changed_.notify_all();
}

void AdminQueue::next(std::uint64_t timeout_ms, sac_admin_request &out) {
    out = {};
    std::unique_lock lock(mutex_);
    // A day at most: longer overflows nothing, and nobody notices.
    const auto until = std::chrono::steady_clock::now() +
                       std::chrono::milliseconds(std::min<std::uint64_t>(timeout_ms, 86400000));
    changed_.wait_until(lock, until, [this] { return stopped_ || !waiting_.empty(); });
    if (stopped_)
        throw Error(SAC_E_CLOSED, "server", "the server was stopped");
    if (waiting_.empty())
        return;
    const std::shared_ptr<Request> r = waiting_.front();
    for (const Fd &fd : r->fds) {
        const int own = ::fcntl(fd.get(), F_DUPFD_CLOEXEC, 3);
        if (own < 0) {
            for (std::uint32_t i = 0; i < out.fd_count; ++i)
                ::close(out.fds[i]);
            out = {};
            throw_errno("ADMIN", "cannot take a file over that came with the request");
        }
        out.fds[out.fd_count++] = own;
    }
    waiting_.pop_front();
    r->fds.clear();
    given_.emplace(r->id, r);
    out.id = r->id;
    out.pid = r->pid, out.uid = r->uid, out.gid = r->gid;
    out.group_count =
        static_cast<std::uint32_t>(std::min(r->groups.size(), std::size(out.groups)));
    std::copy_n(r->groups.begin(), out.group_count, out.groups);
    out.json = reinterpret_cast<const char *>(r->body.data());
    out.json_bytes = r->body.size();
}

AdminQueue::Request AdminQueue::take(std::uint64_t id) {
    const std::lock_guard lock(mutex_);
    const auto it = given_.find(id);
    if (it == given_.end())
        throw Error(SAC_E_NOT_FOUND, "ADMIN", "there is no such request, or it was answered");
    Request out = std::move(*it->second);
    given_.erase(it);
    return out;
}

void Server::admin(std::uint64_t timeout_ms, sac_admin_request &out) {
    admin_.next(timeout_ms, out);
}

void Server::answer(std::uint64_t id, const char *json, std::uint64_t bytes) {
    const AdminQueue::Request r = admin_.take(id);
    Reply reply;
    reply.payload.assign(json, json + bytes);
    done({r.session, r.header, std::move(reply)});
}

}  // namespace sac
