// SPDX-License-Identifier: Apache-2.0
// The authority where a daemon owns the pool: each decision is a request.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "authority.hpp"
#include "mount.hpp"

namespace sac {

class RemoteAuthority final : public Authority {
public:
    // block and dropped are the namespace's, which outlives this; first is what its opening
    // gave. A new view brings the block's quota up to date; dropped is set where the daemon
    // does not have the namespace any more.
    RemoteAuthority(std::shared_ptr<Mount> mount, fmt::NamespaceBlock &block,
                    std::atomic<bool> &dropped, const Mount::Attached &first);

    std::shared_ptr<View> view() override;
    std::vector<Reservation> reserve(const std::shared_ptr<View> &view, std::uint64_t bodies,
                                     std::uint64_t tails, std::uint64_t deadline_ms) override;
    void renew(View &view, std::span<const Reservation> held,
               std::uint64_t deadline_ms) override;
    void commit(View &view, std::span<CommitItem> items, bool keep) override;
    void abort(View &view, std::span<const Reservation> held) noexcept override;
    std::uint64_t evict(std::uint64_t count) override;
    void verify(std::uint64_t &checked, std::uint64_t &dropped) override;
    void drop_dead() override;
    void events(std::uint64_t &next, sac_event *out, std::uint64_t &count,
                std::uint64_t &lost) override;
    std::uint64_t assigned_bytes() override;
    void stats(sac_ns_stats &out, std::uint64_t &assigned) override;

private:
    struct Results;

    Connection &connection() const noexcept { return mount_->connection(); }
    [[noreturn]] void gone();
    void check_writable() const;
    void check_life(const RemoteView &view) const;
    std::shared_ptr<RemoteView> current();
    // As Connection::ask, about the namespace: request(table's number) is the payload.
    template <class Request, class Take>
    auto ask(std::uint16_t op, Request &&request, Take &&take);
    void reserve_some(const std::shared_ptr<RemoteView> &view, std::uint64_t bodies,
                      std::uint64_t tails, std::uint64_t deadline_ms,
                      std::vector<Reservation> &out);
    std::vector<wire::CommitResult> ask_commit(RemoteView &view, std::span<CommitItem> items,
                                               bool keep);
    void commit_some(RemoteView &view, std::span<CommitItem> items);
    void commit_kept(RemoteView &view, std::span<CommitItem> items);
    bool settle(RemoteView &view, CommitItem &item, const wire::CommitResult &result);
    bool pin_other(RemoteView &view, CommitItem &item, wire::CommitResult &other);
    void give_up(RemoteView &view, const Reservation *held, std::size_t count) noexcept;
    std::size_t commit_bytes(std::span<const CommitItem> items) const noexcept;

    const std::shared_ptr<Mount> mount_;
    std::shared_ptr<const Backing> backing_;  // of view_
    fmt::NamespaceBlock &block_;
    std::atomic<bool> &dropped_;
    const bool writable_;
    std::mutex mutex_;  // of the view
    std::shared_ptr<RemoteView> view_;
    std::atomic<std::uint64_t> faults_told_{0};
};

}  // namespace sac
