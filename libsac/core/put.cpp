// SPDX-License-Identifier: Apache-2.0
#include "put.hpp"

#include <algorithm>
#include <cinttypes>

#include "error.hpp"
#include "stop.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kDeadlineMs = 60000;

}  // namespace

Put::Put(std::shared_ptr<Namespace> ns, const std::uint8_t *keys, std::uint64_t count,
         const sac_put_options &o)
    : ns_(std::move(ns)) {
    ns_->check();
    const bool token_ids = ns_->block().flags & SAC_NS_TOKEN_IDS;
    if (token_ids && !o.tokens && count)
        throw Error(
            SAC_E_ARG, ns_->block().name,
            format("namespace '%s' keeps token ids: give them to put", ns_->block().name));
    keys_.reserve(count), parents_.reserve(count);
    for (std::uint64_t i = 0; i < count; ++i) {
        keys_.push_back(Key::load(keys + i * SAC_KEY_BYTES));
        if (keys_.back().zero())
            throw Error(SAC_E_ARG, "key",
                        format("key %" PRIu64 " is all zeros, which names no page", i));
        Key parent{};
        if (o.parents)
            parent = Key::load(o.parents + i * SAC_KEY_BYTES);
        else if (i > 0)
            parent = keys_[i - 1];
        else if (o.first_parent)
            parent = Key::load(o.first_parent);
        parents_.push_back(parent);
    }
    if (token_ids && count)
        tokens_.assign(o.tokens, o.tokens + count * ns_->block().page_tokens);

    const std::uint64_t tails = std::min<std::uint64_t>(ns_->geometry().tail_pages, count);
    const std::uint64_t first_tail = o.first_tail == UINT64_MAX ? count - tails : o.first_tail;
    std::array<std::vector<std::uint64_t>, 2> missing;
    try {
        const std::vector<Reservation> got = begin(first_tail, o, missing);
        auto next = got.begin();
        for (const auto part : {kBodyPart, kTailPart}) {
            for (const std::uint64_t i : missing[part]) {
                if (part == kBodyPart)
                    chain_[i] = next->slot;
                pages_[part].push_back({i, *next++, false});
            }
            written_[part].assign(pages_[part].size() * ns_->geometry().pairs[part], 0);
        }
        ns_->check();  // dropped meanwhile?
    } catch (...) {
        give_up(true);
        throw;
    }
}

Put::~Put() { give_up(true); }

std::vector<Reservation> Put::begin(std::uint64_t first_tail, const sac_put_options &o,
                                    std::array<std::vector<std::uint64_t>, 2> &missing) {
    for (;;) {
        view_ = ns_->view();
        if (pin_present(first_tail, missing)) {
            if (missing[0].empty() && missing[1].empty())
                return {};
            try {
                return ns_->reserve(view_, missing[0].size(), missing[1].size(),
                                    o.deadline_ms ? o.deadline_ms : kDeadlineMs, o.timeout_ms);
            } catch (const Error &e) {
                if (e.status != SAC_E_STALE)
                    throw;
            }
        }
        unpin();  // the view was revoked: all anew in the next
    }
}

void Put::unpin() noexcept {
    for (const std::uint32_t slot : pinned_)
        view_->pins().unpin(slot);
    pinned_.clear();
}

bool Put::pin_present(std::uint64_t first_tail,
                      std::array<std::vector<std::uint64_t>, 2> &missing) {
    const auto *const bytes = reinterpret_cast<const std::uint8_t *>(keys_.data());
    std::vector<sac_handle> found(keys_.size());
    chain_.assign(keys_.size(), kNoSlot);
    missing = {};
    for (const auto part : {kBodyPart, kTailPart}) {
        if (part == kTailPart && !ns_->geometry().has_tail())
            continue;
        ns_->lookup(*view_, bytes, keys_.size(), part, found.data());
        for (std::uint64_t i = part == kTailPart ? first_tail : 0; i < keys_.size(); ++i) {
            const auto pinned = found[i].generation == 0
                                    ? View::Pinned::gone
                                    : view_->pin(found[i].slot, found[i].generation);
            if (pinned == View::Pinned::revoked)
                return false;
            if (pinned == View::Pinned::gone) {
                missing[part].push_back(i);
                continue;
            }
            pinned_.push_back(found[i].slot);
            if (part == kBodyPart)
                chain_[i] = found[i].slot;
        }
    }
    return true;
}

std::unique_lock<std::mutex> Put::lock() const {
    // Before the lock: in a forked child another thread of the parent may hold it for ever.
    ns_->check();
    return std::unique_lock(mutex_);
}

std::unique_lock<std::mutex> Put::lock_open() const {
    std::unique_lock held = lock();
    if (!open_)
        throw Error(SAC_E_CLOSED, "put", "the put has ended: it was committed or given up");
    return held;
}

std::vector<std::uint64_t> Put::missing(std::uint32_t part) const {
    const auto held = lock();
    std::vector<std::uint64_t> out;
    for (const Page &p : pages_[part])
        out.push_back(p.position);
    return out;
}

bool Put::quiet() const {
    const auto held = lock();
    return std::all_of(fences_.begin(), fences_.end(),
                       [](const auto &fence) { return fence->done(); });
}

std::uint8_t *Put::view(std::uint64_t missing, std::uint32_t plane, std::uint32_t layer,
                        std::uint64_t &bytes) {
    const auto held = lock_open();
    const Geometry &g = ns_->geometry();
    const std::uint64_t offset = g.offset(plane, layer);
    const std::uint32_t part = g.at[plane].part;
    if (missing >= pages_[part].size())
        throw Error(SAC_E_RANGE, g.planes[plane].name,
                    format("put: there is no missing page %" PRIu64 " of plane '%s'", missing,
                           g.planes[plane].name));
    written_[part][missing * g.pairs[part] + g.pair(plane, layer)] = 1;
    bytes = g.at[plane].layer_stride;
    view_->pins().counters().bytes_written.fetch_add(bytes, std::memory_order_relaxed);
    pages_[part][missing].viewed = true;
    return ns_->address(*view_, pages_[part][missing].reservation.slot, part) + offset;
}

void Put::check_written() const {
    const Geometry &g = ns_->geometry();
    for (std::uint32_t p = 0; p < g.planes.size(); ++p)
        for (std::uint32_t l = 0; l < SAC_MAX_LAYERS; ++l) {
            if (g.at[p].ordinal[l] < 0)
                continue;
            const std::uint32_t part = g.at[p].part;
            for (std::uint64_t i = 0; i < pages_[part].size(); ++i)
                if (!written_[part][i * g.pairs[part] + g.pair(p, l)])
                    throw Error(SAC_E_INCOMPLETE, g.planes[p].name,
                                format("put: plane '%s', layer %u of page %" PRIu64
                                       " was not written; nothing was committed",
                                       g.planes[p].name, l, pages_[part][i].position));
        }
}

std::uint64_t Put::commit() {
    const auto held = lock_open();
    check_written();
    for (const auto &fence : fences_)
        fence->wait();
    std::vector<CommitItem> items;
    // Tails first: a body that is visible has the tail that was put with it.
    for (const auto part : {kTailPart, kBodyPart})
        for (const Page &p : pages_[part]) {
            CommitItem c{p.reservation, keys_[p.position], parents_[p.position], nullptr, 0,
                         false};
            if (!tokens_.empty())
                c.tokens = tokens_.data() + p.position * ns_->block().page_tokens;
            if (ns_->block().flags & SAC_NS_DATA_CHECKSUM)
                c.data_crc =
                    ns_->geometry().crc(part, ns_->address(*view_, p.reservation.slot, part));
            items.push_back(c);
        }
    SAC_STOP("put.commit");
    if (!items.empty())
        ns_->authority().commit(*view_, items, false);
    std::uint64_t mine = 0;
    for (std::size_t i = 0; i < pages_[kBodyPart].size(); ++i) {
        const CommitItem &c = items[pages_[kTailPart].size() + i];
        chain_[pages_[kBodyPart][i].position] = c.reservation.slot;
        mine += !c.duplicate;
    }
    for (auto &p : pages_)
        p.clear();
    // The head of the chain is the hottest.
    std::vector<std::uint32_t> used(chain_.rbegin(), chain_.rend());
    PinTable &table = view_->pins();
    table.note(used.data(), used.size());
    table.counters().puts.fetch_add(1, std::memory_order_relaxed);
    table.latency(PinTable::kPut).add(begun_);
    give_up(true);
    return mine;
}

// Ends what is left: reservations and pins.
void Put::give_up(bool viewed_too) noexcept {
    open_ = false;
    if (ns_->backing().forked())
        return;
    // Nobody else may get pages that a GPU still writes to.
    for (const auto &fence : fences_) {
        try {
            fence->wait();
        } catch (const Error &) {
            // Its work has ended, with rows that nobody will see.
        }
    }
    fences_.clear();
    // In batches, each one request to the daemon; without allocating.
    std::array<Reservation, 256> some;
    std::size_t n = 0;
    const auto end = [&] {
        if (n != 0)
            ns_->authority().abort(*view_, {some.data(), n});
        n = 0;
    };
    for (auto &pages : pages_) {
        for (const Page &p : pages) {
            if (!viewed_too && p.viewed)
                continue;
            some[n++] = p.reservation;
            if (n == some.size())
                end();
        }
        std::erase_if(pages, [&](const Page &p) { return viewed_too || !p.viewed; });
    }
    end();
    unpin();
}

void Put::abort() {
    const auto held = lock();
    if (open_)
        give_up(false);
}

void Put::close() {
    if (ns_->backing().forked())
        return;
    const std::lock_guard held(mutex_);
    give_up(true);
}

}  // namespace sac
