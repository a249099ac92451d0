// SPDX-License-Identifier: Apache-2.0
#include "prefix.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <utility>

#include "error.hpp"

namespace sac {

std::uint64_t with_tails(const std::uint8_t *tail, std::uint64_t n,
                         std::uint64_t needed) noexcept {
    std::uint64_t run = 0, best = 0;
    for (std::uint64_t i = 0; i < n; ++i) {
        run = tail[i] ? run + 1 : 0;
        if (run >= std::min(needed, i + 1))
            best = i + 1;
    }
    return best;
}

std::uint64_t longest(Namespace &ns, const std::uint8_t *keys, std::uint64_t count) {
    const auto view = ns.view();
    std::vector<sac_handle> found(count);
    ns.lookup(*view, keys, count, kBodyPart, found.data());
    std::uint64_t n = 0;
    while (n < count && found[n].generation != 0)
        ++n;
    const std::uint64_t needed = ns.geometry().tail_pages;
    if (needed == 0)
        return n;
    ns.lookup(*view, keys, n, kTailPart, found.data());
    std::vector<std::uint8_t> tail(n);
    for (std::uint64_t i = 0; i < n; ++i)
        tail[i] = found[i].generation != 0;
    return with_tails(tail.data(), n, needed);
}

Prefix::Prefix(std::shared_ptr<Namespace> ns) : ns_(std::move(ns)) {}

Prefix::~Prefix() { unpin_all(); }

void Prefix::add(std::uint32_t part, std::uint8_t *at, Held held) {
    at_[part].push_back(at);
    held_[part].push_back(held);
}

void Prefix::pin(const std::uint8_t *keys, std::uint64_t count) {
    const auto begin = std::chrono::steady_clock::now();
    do
        view_ = ns_->view();
    while (!try_pin(keys, count));
    PinTable &table = view_->pins();
    table.counters().pins.fetch_add(1, std::memory_order_relaxed);
    table.latency(PinTable::kPin).add(begin);
}

// False, and nothing is pinned, where the view was revoked meanwhile.
bool Prefix::try_pin(const std::uint8_t *keys, std::uint64_t count) {
    checked_ = view_->index().forced();
    std::vector<sac_handle> found(count);
    ns_->lookup(*view_, keys, count, kBodyPart, found.data());
    std::uint64_t n = 0;
    while (n < count && found[n].generation != 0)
        ++n;
    for (auto part : {kBodyPart, kTailPart})
        at_[part].reserve(n), held_[part].reserve(n);

    constexpr std::uint64_t kAhead = 16;
    for (std::uint64_t i = 0; i < n; ++i) {
        if (i + kAhead < n)
            view_->pins().prefetch(found[i + kAhead].slot);
        const View::Pinned got = view_->pin(found[i].slot, found[i].generation);
        if (got == View::Pinned::revoked)
            return unpin_all(), false;
        if (got == View::Pinned::gone) {
            n = i;
            break;
        }
        add(kBodyPart, ns_->address(*view_, found[i].slot, kBodyPart),
            {found[i].slot, found[i].generation});
    }

    const std::uint64_t needed = ns_->geometry().tail_pages;
    std::vector<std::uint8_t> tail(n, 0);
    std::vector<sac_handle> tails(needed ? n : 0);
    if (needed) {
        ns_->lookup(*view_, keys, n, kTailPart, tails.data());
        for (std::uint64_t i = 0; i < n; ++i)
            tail[i] = tails[i].generation != 0;
        // A tail may leave between its lookup and its pin: then the prefix is a shorter one.
        for (bool again = true; again;) {
            again = false;
            n = with_tails(tail.data(), n, needed);
            held_[kTailPart].assign(n, {kNoSlot, 0});
            at_[kTailPart].assign(n, nullptr);
            for (std::uint64_t i = n - std::min(n, needed); i < n && !again; ++i) {
                again = view_->pin(tails[i].slot, tails[i].generation) != View::Pinned::yes;
                if (again) {
                    tail[i] = 0;
                    continue;
                }
                held_[kTailPart][i] = {tails[i].slot, tails[i].generation};
                at_[kTailPart][i] = ns_->address(*view_, tails[i].slot, kTailPart);
            }
            if (!again)
                break;
            for (Held &h : held_[kTailPart])
                if (h.slot != kNoSlot)
                    view_->pins().unpin(std::exchange(h.slot, kNoSlot));
            if (view_->revoked())
                return unpin_all(), false;
        }
    }
    while (at_[kBodyPart].size() > n) {
        view_->pins().unpin(held_[kBodyPart].back().slot);
        held_[kBodyPart].pop_back();
        at_[kBodyPart].pop_back();
    }
    ns_->check();  // dropped meanwhile? The destructor ends the pins.
    // Tail first: the head of the prefix is the hottest.
    std::vector<std::uint32_t> slots;
    slots.reserve(n + needed);
    for (const auto part : {kTailPart, kBodyPart})
        for (auto it = held_[part].rbegin(); it != held_[part].rend(); ++it)
            if (it->slot != kNoSlot)
                slots.push_back(it->slot);
    view_->pins().note(slots.data(), slots.size());
    return true;
}

void Prefix::unpin_all() noexcept {
    if (ns_->backing().forked())
        return;
    for (auto &list : held_) {
        for (const Held &h : list)
            if (h.slot != kNoSlot)
                view_->pins().unpin(h.slot);
        list.clear();
    }
    for (auto &list : at_)
        list.clear();
}

std::shared_lock<FairMutex> Prefix::lock() const {
    // Before the lock: in a forked child another thread of the parent may hold it for ever.
    ns_->check();
    std::shared_lock held(mutex_);
    check_open();
    return held;
}

std::unique_lock<FairMutex> Prefix::lock_alone() const {
    ns_->check();
    std::unique_lock held(mutex_);
    check_open();
    return held;
}

void Prefix::close() {
    if (ns_->backing().forked())
        return;
    const std::unique_lock held(mutex_);
    closed_ = true;
    if (borrowed_ == 0)
        end();
}

void Prefix::borrow() {
    const auto held = lock_alone();
    ++borrowed_;
}

void Prefix::give_back() noexcept {
    if (ns_->backing().forked())
        return;
    const std::unique_lock held(mutex_);
    if (--borrowed_ == 0 && closed_)
        end();
}

void Prefix::check_open() const {
    if (closed_)
        throw Error(SAC_E_CLOSED, "prefix",
                    "the prefix was closed; its pages are not pinned any more");
}

std::uint64_t Prefix::tokens() const noexcept { return pages() * ns_->geometry().page_tokens; }

std::uint64_t Prefix::rows(std::uint32_t plane, std::uint32_t layer) const noexcept {
    (void)layer;
    return pages() * ns_->geometry().at[plane].rows;
}

sac_handle Prefix::handle(std::uint64_t page) const noexcept {
    const Held &h = held_[kBodyPart][page];
    return {h.generation, h.slot == kNoSlot ? 0 : h.slot, kBodyPart};
}

bool Prefix::gone(std::uint64_t page) const noexcept {
    const Mapping &data = view_->data();
    const auto at = static_cast<std::uint64_t>(at_[kBodyPart][page] - data.data());
    if (data.guard().any_dead(at, ns_->geometry().part_bytes[kBodyPart]) || view_->lost())
        return true;
    const Held &h = held_[kBodyPart][page];
    if (h.slot == kNoSlot)
        return false;  // being written
    const std::uint64_t word =
        view_->index().record(h.slot).word.load(std::memory_order_acquire);
    return (word & Record::kGeneration) != h.generation || (word & Record::kAbsent) != 0;
}

std::uint64_t Prefix::losses() const noexcept {
    return view_->data().guard().faults() + view_->index().forced() + view_->lost();
}

void Prefix::check_current() const {
    if (view_->lost())
        throw Error(SAC_E_STALE, ns_->block().name,
                    format("namespace '%s': the daemon was started without its run directory "
                           "and does not know what this process reads: the pages may be "
                           "others' by now. Close the prefix and look it up again.",
                           ns_->block().name));
    // A revoked view's index says nothing about what happened since.
    const std::shared_ptr<View> now = view_->revoked() ? ns_->view() : view_;
    if (&now->data() != &view_->data())
        throw Error(SAC_E_MEDIA, ns_->block().name,
                    format("namespace '%s': the memory of the prefix has gone with its device. "
                           "Close it, and look it up again.",
                           ns_->block().name));
    const std::uint64_t forced = now->index().forced();
    if (forced == checked_.load(std::memory_order_relaxed))
        return;
    for (const auto part : {kBodyPart, kTailPart})
        for (std::uint64_t i = 0; i < held_[part].size(); ++i) {
            const Held &h = held_[part][i];
            if (h.slot == kNoSlot)
                continue;
            const std::uint64_t word =
                now->index().record(h.slot).word.load(std::memory_order_acquire);
            if ((word & Record::kGeneration) == h.generation && !(word & Record::kAbsent))
                continue;
            if (Record::lost(word)) {
                const Mapping &data = view_->data();
                const auto at = static_cast<std::uint64_t>(at_[part][i] - data.data());
                data.check_alive(at, ns_->geometry().part_bytes[part]);
                data.throw_dead(at);  // the owner of the pool knows which block
            }
            throw Error(SAC_E_STALE, ns_->block().name,
                        format("page %" PRIu64
                               " of the prefix was taken out while it was pinned: its "
                               "memory failed or did not verify. Compute it anew.",
                               i));
        }
    checked_.store(forced, std::memory_order_relaxed);
}

}  // namespace sac
