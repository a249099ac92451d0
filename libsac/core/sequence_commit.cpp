// SPDX-License-Identifier: Apache-2.0
// Pages of a growing sequence that are full: committed, and held from then on as all others.
#include <algorithm>
#include <atomic>
#include <mutex>

#include "error.hpp"
#include "sequence.hpp"
#include "stop.hpp"

namespace sac {

std::uint64_t Sequence::flush() {
    const auto held = lock_alone();
    return flush_locked();
}

std::uint64_t Sequence::flush_locked() {
    const std::uint32_t per_page = ns_->block().page_tokens;
    const std::uint64_t before = committed_, most = sealed();
    std::size_t n = 0;
    // Taken out all at once: page by page, the rest of a long prompt would move each time.
    const auto settle = [&] {
        const auto ids = static_cast<std::ptrdiff_t>(n * per_page);
        ids_.erase(ids_.begin(), ids_.begin() + ids);
        open_.erase(open_.begin(), open_.begin() + static_cast<std::ptrdiff_t>(n));
    };
    try {
        while (n < open_.size() && before + n < most && ids_.size() / per_page > n &&
               complete(open_[n]) && quiet(open_[n])) {
            commit_page(open_[n], ids_.data() + n * per_page);
            ++n;
        }
    } catch (...) {
        settle();
        throw;
    }
    settle();
    if (n != 0)
        drop_old_tails();
    return n;
}

void Sequence::commit_page(const Open &page, const std::uint32_t *ids) {
    const std::uint32_t per_page = ns_->block().page_tokens;
    const Key key = Namespace::page_key(last_, ids, per_page);
    std::vector<CommitItem> items;
    retained_.reserve(retained_.size() + page.has.size());
    for (const auto part : {kTailPart, kBodyPart}) {
        if (!page.has[part])
            continue;
        CommitItem c{page.reservation[part], key, last_, nullptr, 0, false, borrowed_ != 0};
        if (ns_->block().flags & SAC_NS_TOKEN_IDS)
            c.tokens = ids;
        if (ns_->block().flags & SAC_NS_DATA_CHECKSUM)
            c.data_crc = ns_->geometry().crc(part, at_[part][committed_]);
        items.push_back(c);
    }
    SAC_STOP("sequence.commit");
    // Pinned as they become visible: another writer's page may have taken the place of ours.
    ns_->authority().commit(*page.view, items, true);
    for (const CommitItem &c : items)
        if (c.duplicate && c.retain)
            retained_.emplace_back(page.view, page.reservation[c.reservation.part]);
    for (const CommitItem &c : items)
        hold(page.view, c.reservation.part,
             {c.reservation.generation, c.reservation.slot, c.reservation.part});
    last_ = key;
    ++committed_;
}

void Sequence::viewed(std::uint64_t page, std::uint32_t part) const noexcept {
    if (part == kTailPart)
        std::atomic_ref<std::uint8_t>(viewed_tails_[page]).store(1, std::memory_order_relaxed);
}

// Window and state rows of pages that are no longer among the last stay in the cache, but
// not pinned.
void Sequence::drop_old_tails() noexcept {
    const std::uint64_t needed = ns_->geometry().tail_pages;
    const std::uint64_t full = tokens_ / ns_->block().page_tokens;
    for (std::uint64_t i = std::min(committed_, full - std::min(full, needed)); i-- > 0;) {
        Held &h = held_[kTailPart][i];
        if (h.slot == kNoSlot)
            break;
        if (viewed_tails_[i])
            continue;
        view_->pins().unpin(h.slot);
        h = {kNoSlot, 0};
        at_[kTailPart][i] = nullptr;
    }
    // The whole chain was just used, its head the hottest.
    std::vector<std::uint32_t> slots;
    for (std::uint64_t i = committed_; i-- > 0;)
        slots.push_back(held_[kBodyPart][i].slot);
    view_->pins().note(slots.data(), slots.size());
}

// Pins everything in the view that is current, then lets the old one go.
void Sequence::move_on() {
    for (;;) {
        const auto next = ns_->view();
        if (next == view_)
            return;
        if (&next->data() != &view_->data())
            throw Error(SAC_E_MEDIA, ns_->block().name,
                        "the memory of the sequence has gone with its device. Close the "
                        "sequence and compute it anew.");
        View::Pinned got = View::Pinned::yes;
        std::vector<std::uint32_t> pinned;
        for (const auto part : {kBodyPart, kTailPart})
            for (const Held &h : held_[part]) {
                if (h.slot == kNoSlot || got != View::Pinned::yes)
                    continue;
                got = next->pin(h.slot, h.generation);
                if (got == View::Pinned::yes)
                    pinned.push_back(h.slot);
            }
        const View &loser = got == View::Pinned::yes ? *view_ : *next;
        for (const std::uint32_t slot : pinned)
            loser.pins().unpin(slot);
        if (got == View::Pinned::yes) {
            view_ = next;
            return;
        }
        if (got == View::Pinned::gone)
            throw Error(SAC_E_STALE, ns_->block().name,
                        "a page of the sequence was taken out while it was pinned: its memory "
                        "failed or did not verify. Close the sequence and compute it anew.");
    }
}

// A page that was committed, pinned in the view it was written in, joins the others.
void Sequence::hold(const std::shared_ptr<View> &from, std::uint32_t part, sac_handle page) {
    // Where this view is not current, its index does not say where another writer's page is.
    if (view_->revoked())
        move_on();
    while (from != view_) {
        const View::Pinned got = view_->pin(page.slot, page.generation);
        if (got == View::Pinned::revoked) {
            move_on();
            continue;
        }
        from->pins().unpin(page.slot);
        if (got == View::Pinned::yes)
            break;
        throw Error(SAC_E_STALE, ns_->block().name,
                    "a page of the sequence was taken out while it was pinned. Close the "
                    "sequence and compute it anew.");
    }
    held_[part][committed_] = {page.slot, page.generation};
    at_[part][committed_] = ns_->address(*view_, page.slot, part);
}

}  // namespace sac
