// SPDX-License-Identifier: Apache-2.0
#include "sequence.hpp"

#include <algorithm>
#include <array>
#include <bit>
#include <cinttypes>
#include <mutex>

#include "error.hpp"

namespace sac {
namespace {

// A page may be open as long as its request decodes; extend renews it, but not at each token.
constexpr std::uint64_t kDeadlineMs = 600000;
constexpr std::chrono::seconds kRenewAfter{60};

}  // namespace

Sequence::Sequence(std::shared_ptr<Namespace> ns, const std::uint32_t *tokens,
                   std::uint64_t count, const void *salt, std::uint64_t salt_bytes)
    : Prefix(std::move(ns)) {
    ns_->check();
    const std::uint32_t per_page = ns_->block().page_tokens;
    const std::uint64_t pages = count / per_page;
    std::vector<Key> keys;
    keys.reserve(pages);
    const Key root = ns_->root(salt, salt_bytes);
    for (std::uint64_t i = 0; i < pages; ++i)
        keys.push_back(
            Namespace::page_key(i ? keys[i - 1] : root, tokens + i * per_page, per_page));
    pin(reinterpret_cast<const std::uint8_t *>(keys.data()), pages);
    committed_ = Prefix::pages();
    tokens_ = committed_ * per_page;
    last_ = committed_ ? keys[committed_ - 1] : root;
    for (auto &list : held_)
        list.resize(committed_, {kNoSlot, 0});
    for (auto &list : at_)
        list.resize(committed_, nullptr);
    viewed_tails_.resize(committed_);
    const Geometry &g = ns_->geometry();
    for (std::uint32_t p = 0; p < g.planes.size(); ++p) {
        plane_word_.push_back(bits_[g.at[p].part]);
        bits_[g.at[p].part] += words(p) * g.at[p].layer_count;
    }
}

Sequence::~Sequence() {
    if (ns_->backing().forked())
        return;
    const std::unique_lock held(mutex_);
    end();  // whoever borrowed it would have kept it
}

std::uint64_t Sequence::words(std::uint32_t plane) const noexcept {
    return (std::uint64_t{ns_->geometry().at[plane].rows} + 63) / 64;
}

std::uint64_t Sequence::first_word(std::uint32_t plane, std::uint32_t layer) const noexcept {
    const auto ordinal = static_cast<std::uint64_t>(ns_->geometry().at[plane].ordinal[layer]);
    return plane_word_[plane] + ordinal * words(plane);
}

std::uint64_t Sequence::rows_exist(std::uint32_t plane) const noexcept {
    const Geometry &g = ns_->geometry();
    const std::uint32_t per_row = g.planes[plane].kind == SAC_PLANE_STATE
                                      ? g.page_tokens
                                      : g.planes[plane].tokens_per_row;
    return (tokens_ + per_row - 1) / per_row;
}

std::uint64_t Sequence::rows(std::uint32_t plane, std::uint32_t layer) const noexcept {
    const PlaneGeometry &at = ns_->geometry().at[plane];
    std::uint64_t n = committed_ * at.rows;
    // Up to the first row that is not written.
    for (const Open &page : open_) {
        std::uint64_t in_page = 0;
        if (!page.has[at.part]) {
            n += at.rows;  // outside the window: the gather refuses these rows itself
            continue;
        }
        const std::uint64_t *const bits =
            page.written[at.part].data() + first_word(plane, layer);
        for (std::uint64_t w = 0; w < words(plane); ++w) {
            const auto ones = static_cast<std::uint64_t>(std::countr_one(bits[w]));
            in_page += ones;
            if (ones < 64)
                break;
        }
        n += in_page;
        if (in_page < at.rows)
            break;
    }
    return n;
}

bool Sequence::written(const Open &page, std::uint32_t plane,
                       std::uint32_t layer) const noexcept {
    const PlaneGeometry &at = ns_->geometry().at[plane];
    const std::uint64_t *const bits = page.written[at.part].data() + first_word(plane, layer);
    for (std::uint64_t w = 0; w < words(plane); ++w) {
        const std::uint64_t left = at.rows - w * 64;
        const std::uint64_t all =
            left >= 64 ? ~std::uint64_t{0} : (std::uint64_t{1} << left) - 1;
        if ((bits[w] & all) != all)
            return false;
    }
    return true;
}

// Calls fn(plane, layer) for those of which a row is missing, until it returns false.
template <class Fn> void Sequence::each_missing(const Open &page, Fn &&fn) const {
    const Geometry &g = ns_->geometry();
    for (std::uint32_t p = 0; p < g.planes.size(); ++p)
        for (std::uint32_t l = 0; page.has[g.at[p].part] && l < SAC_MAX_LAYERS; ++l)
            if (g.at[p].ordinal[l] >= 0 && !written(page, p, l) && !fn(p, l))
                return;
}

bool Sequence::complete(const Open &page) const noexcept {
    bool all = true;
    each_missing(page, [&](std::uint32_t, std::uint32_t) { return all = false; });
    return all;
}

void Sequence::throw_incomplete(std::size_t open) const {
    std::uint32_t plane = 0, layer = 0;
    each_missing(open_[open], [&](std::uint32_t p, std::uint32_t l) {
        plane = p, layer = l;
        return false;
    });
    const char *const name = ns_->geometry().planes[plane].name;
    throw Error(SAC_E_INCOMPLETE, name,
                format("sequence: page %" PRIu64
                       " is full of tokens, but plane '%s', layer %u of "
                       "it is not written; write it before the next tokens",
                       committed_ + open, name, layer));
}

void Sequence::extend(const std::uint32_t *tokens, std::uint64_t count,
                      std::uint64_t timeout_ms) {
    const auto held = lock_alone();
    flush_locked();
    const std::uint32_t per_page = ns_->block().page_tokens;
    for (std::size_t i = 0; i < open_.size(); ++i)
        if ((i + 1) * per_page <= ids_.size() && !complete(open_[i]))
            throw_incomplete(i);
    const std::uint64_t total = tokens_ + count;
    const std::uint64_t pages = (total + per_page - 1) / per_page;
    const std::uint64_t have = committed_ + open_.size();
    renew();
    if (pages > have) {
        const std::uint64_t needed = ns_->geometry().tail_pages;
        // Counted from the last page full of tokens: it ends a stored prefix, and a window of
        // the newest tokens reaches back as far.
        const std::uint64_t full = total / per_page;
        const std::uint64_t first_tail =
            needed ? std::max(have, full - std::min(full, needed)) : pages;
        const std::uint64_t bodies = pages - have, tails = pages - first_tail;
        open_.reserve(open_.size() + bodies);
        ids_.reserve(ids_.size() + count);
        for (const auto part : {kBodyPart, kTailPart})
            at_[part].reserve(pages), held_[part].reserve(pages);
        viewed_tails_.resize(pages);
        const auto got = reserve(bodies, tails, timeout_ms);
        for (std::uint64_t i = 0; i < bodies; ++i) {
            Open page{};
            page.view = view_;
            for (const auto part : {kBodyPart, kTailPart}) {
                page.has[part] = part == kBodyPart || have + i >= first_tail;
                if (page.has[part]) {
                    page.reservation[part] =
                        got[part == kBodyPart ? i : bodies + have + i - first_tail];
                    page.written[part].assign(bits_[part], 0);
                }
                add(part,
                    page.has[part] ? ns_->address(*view_, page.reservation[part].slot, part)
                                   : nullptr,
                    {kNoSlot, 0});
            }
            open_.push_back(std::move(page));
        }
    }
    ids_.insert(ids_.end(), tokens, tokens + count);
    tokens_ = total;
}

void Sequence::renew() {
    const auto now = std::chrono::steady_clock::now();
    if (now - renewed_ < kRenewAfter)
        return;
    for (const Open &page : open_)
        for (const auto part : {kBodyPart, kTailPart})
            if (page.has[part])
                ns_->authority().renew(*page.view, {&page.reservation[part], 1}, kDeadlineMs);
    for (const auto &[view, reservation] : retained_)
        ns_->authority().renew(*view, {&reservation, 1}, kDeadlineMs);
    renewed_ = now;
}

std::vector<Reservation> Sequence::reserve(std::uint64_t bodies, std::uint64_t tails,
                                           std::uint64_t timeout_ms) {
    for (;;) {
        if (view_->revoked())
            move_on();
        try {
            return ns_->reserve(view_, bodies, tails, kDeadlineMs, timeout_ms);
        } catch (const Error &e) {
            if (e.status != SAC_E_STALE)
                throw;
        }
    }
}

void Sequence::give_up() noexcept {
    // In batches, each one request to the daemon; without allocating.
    std::array<Reservation, 256> some;
    std::size_t n = 0;
    View *of = nullptr;
    const auto end = [&] {
        if (n != 0)
            ns_->authority().abort(*of, {some.data(), n});
        n = 0;
    };
    for (const Open &page : open_)
        for (const auto part : {kBodyPart, kTailPart}) {
            if (!page.has[part])
                continue;
            if (page.view.get() != of || n == some.size())
                end();
            of = page.view.get();
            some[n++] = page.reservation[part];
        }
    end();
    open_.clear();
    for (const auto &[view, reservation] : retained_)
        ns_->authority().abort(*view, {&reservation, 1});
    retained_.clear();
}

void Sequence::end() noexcept {
    give_up();
    ids_.clear();
    unpin_all();
}

}  // namespace sac
