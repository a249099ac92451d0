// SPDX-License-Identifier: Apache-2.0
// Room for pages that are to be written, and what to say where there is none.
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "control.hpp"
#include "error.hpp"
#include "stop.hpp"

namespace sac {

std::uint64_t CacheControl::random_token() {
    if (tokens_.empty()) {
        tokens_.resize(32);  // getrandom gives 256 bytes at once without a short read
        if (getrandom(tokens_.data(), 256, 0) != 256)
            tokens_.clear(), throw_errno("getrandom", "cannot draw a reservation's token");
    }
    const std::uint64_t t = tokens_.back();
    tokens_.pop_back();
    return t;
}

void CacheControl::no_space(const Want &want, std::uint64_t pins) const {
    const std::uint64_t bodies = want[kBodyPart], tails = want[kTailPart];
    std::uint64_t expired = 0;
    for (const auto &[slot, held] : held_)
        expired += held.expired;
    const std::uint64_t free = media_.free_bytes() / fmt::kDataSlab;
    // Memory may have died that is not looked at yet, and is counted twice here.
    const std::uint64_t all = media_.slab_count();
    const std::uint64_t others = all - std::min(all, free + held_slabs() + media_.dead_slabs());
    // What chunks enough for the request take, at least one of each part that there is.
    std::uint64_t least = 0;
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        if (const Shape &s = shape_[part]; s.pages != 0)
            least += std::max<std::uint64_t>(1, (want[part] + s.pages - 1) / s.pages) * s.slabs;
    const auto mib = [](std::uint64_t slabs) { return slabs * fmt::kDataSlab >> 20; };
    const std::string quota =
        block_.quota() ? format(" of a quota of %" PRIu64 " MiB", mib(max_slabs_)) : "";
    const std::string dead =
        dead_slabs_ ? format("%" PRIu64 " MiB more lie on dead memory%s; ", mib(dead_slabs_),
                             block_.quota() ? ", which the quota does not count" : "")
                    : "";
    std::string why = format(
        "namespace '%s': no space for %" PRIu64 " pages and %" PRIu64
        " tails: it holds %" PRIu64 " MiB%s with room for %" PRIu64 " pages and %" PRIu64
        " tails; %" PRIu64 " are pinned, %zu are being written (%" PRIu64
        " of them past their deadline); %sother namespaces hold %" PRIu64 " MiB, %" PRIu64
        " MiB are free. ",
        block_.name, bodies, tails, mib(held_slabs()), quota.c_str(),
        slots_[kBodyPart] - dead_slots_[kBodyPart], slots_[kTailPart] - dead_slots_[kTailPart],
        pins, held_.size(), expired, dead.c_str(), mib(others), mib(free));
    if (media_.file_system_full())
        why += "The file system of the pool is full: free some of it.";
    else if (metadata_full_)
        why += "The pool's metadata is full: create the pool with more metadata_bytes.";
    else if (least > std::min(max_slabs_, held_slabs() + free))
        why += others > 0 && block_.quota() == 0
                   ? "So much can never fit beside the other namespaces, which keep what they "
                     "have: drop one, give them quotas when you create them, or make the pool "
                     "larger."
                   : "So much can never fit: put fewer pages at a time, or create the pool, or "
                     "the quota, larger.";
    else
        why += "End pins and puts, or wait for them with a time-out.";
    throw Error(SAC_E_NO_SPACE, block_.name, why);
}

bool CacheControl::enough(std::uint32_t part, std::uint64_t count) const noexcept {
    const EvictionPolicy &policy = *policy_[part];
    // Not much longer than what it may save, the look at all slots.
    std::uint64_t looks = count + 4096;
    for (std::uint32_t leaf = policy.victim(); count > 0 && leaf != kNoSlot && looks > 0;
         leaf = policy.next(leaf)) {
        // A leaf, and its ancestors as long as they have no other child.
        for (std::uint32_t s = leaf; s != kNoSlot && count > 0; s = index_->record(s).parent) {
            --looks;
            if (looks == 0 || pinned(s) || index_->record(s).children > (s == leaf ? 0u : 1u))
                break;
            --count;
        }
    }
    return count == 0;
}

CacheControl::Survey CacheControl::survey() {
    drain();
    Survey s;
    s.chunks.resize(chunk_part_.size());
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        for (const std::uint32_t slot : free_[part]) {
            ChunkState &c = s.chunks[slot / block_.chunk_slots];
            ++c.there, ++c.avail, ++s.avail[part];
        }
    // Pinned pages stay, and so do the ones in front of them: leaves leave first.
    std::vector<bool> stays(index_->capacity()), pins(index_->capacity());
    for (const auto &t : pins_)
        t->each_used([&](std::uint32_t slot) {
            if (slot < pins.size() && t->pinned(slot))
                pins[slot] = true;
        });
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        if (!pins[slot] || held_.count(slot) != 0)  // a reservation's count is no pin
            return;
        ++s.pinned;
        if (!committed(slot, part))
            return;
        ++s.chunks[slot / block_.chunk_slots].pinned;
        for (std::uint32_t p = slot; p != kNoSlot && !stays[p]; p = index_->record(p).parent)
            stays[p] = true;
    });
    each_slot([&](std::uint32_t slot, std::uint32_t part) {
        if (!committed(slot, part))
            return;
        ChunkState &c = s.chunks[slot / block_.chunk_slots];
        ++c.there;
        c.newest = std::max(c.newest, index_->record(slot).stamp);
        if (!stays[slot])
            ++c.avail, ++s.avail[part];
    });
    return s;
}

// A look at the counts of pins alone: who waits for a cache that is full comes often, and a
// survey of many slots takes long. Throws where so many bodies cannot be made free.
void CacheControl::quick_refusal(const Want &want) const {
    std::uint64_t pins = 0;
    for (const auto &[first, count] : slot_ranges())
        pins += pins_[0]->pinned_slots(first, count);
    // Those of readers who came too late for the page do not count.
    std::uint64_t late = dead_slots_[kBodyPart];
    for (const std::uint32_t slot : free_[kBodyPart])
        late += pinned(slot);
    for (const std::uint32_t slot : limbo_)
        late += pinned(slot);
    for (const auto &[slot, held] : held_)
        late += pinned(slot);
    const std::uint64_t stay = std::min(committed_[kBodyPart], pins - std::min(pins, late));
    if (free_[kBodyPart].size() + committed_[kBodyPart] - stay < want[kBodyPart])
        no_space(want, pins - std::min(pins, late));  // a reservation's count is no pin
}

// So many free slots of each part: by growing, by evicting within the part, by taking chunks
// back from the other part. Evicts nothing where that cannot be enough.
void CacheControl::make_room(const Want &want) {
    bool sure = true;
    for (const std::uint32_t part : {kBodyPart, kTailPart}) {
        while (free_[part].size() < want[part] && grow(part)) {
        }
        sure &=
            free_[part].size() >= want[part] || enough(part, want[part] - free_[part].size());
    }
    Survey s;
    if (!sure) {
        if (!geometry_.has_tail() && pins_.size() == 1)
            quick_refusal(want);
        s = survey();
        const auto lacks = [&](std::uint32_t part) { return s.avail[part] < want[part]; };
        if (lacks(kBodyPart) || lacks(kTailPart)) {
            if (!geometry_.has_tail() || (lacks(kBodyPart) && lacks(kTailPart)))
                no_space(want, s.pinned);
            convert(lacks(kBodyPart) ? kBodyPart : kTailPart, want, s);
        }
    }
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        // Once is not enough where a slot that was freed turns out to lie on dead memory.
        while (free_[part].size() < want[part])
            if (evict_part(part, want[part] - free_[part].size()) == 0)
                no_space(want, sure ? survey().pinned : s.pinned);
}

std::vector<Reservation> CacheControl::reserve(std::uint64_t bodies, std::uint64_t tails,
                                               Clock::time_point deadline, PinTable *owner) {
    const std::lock_guard lock(mutex_);
    SAC_STOP("reserve.begin");
    if (retired_)
        throw Error(SAC_E_CLOSED, block_.name,
                    format("namespace '%s' was dropped", block_.name));
    if (owner && (owner->capacity() < index_->capacity() ||
                  std::none_of(pins_.begin(), pins_.end(),
                               [owner](const auto &t) { return t.get() == owner; })))
        throw Error(SAC_E_STALE, block_.name,
                    format("namespace '%s' has grown: attach it anew", block_.name));
    media_.check_writable();
    media_.check_room();
    const auto now = Clock::now();
    sweep(now);
    // Memory that was lost is there again, beside what was taken in its place.
    if (held_slabs() > max_slabs_ && now >= next_trim_) {
        trim(max_slabs_);
        next_trim_ = now + std::chrono::seconds(1);  // pins may be in the way for long
    }
    const Want want{bodies, tails};
    std::vector<Reservation> out;
    out.reserve(bodies + tails);
    make_room(want);
    // All that can fail comes before the first slot is taken, the nodes of held_ as well.
    std::unordered_map<std::uint32_t, Held> nodes;
    nodes.reserve(bodies + tails);
    held_.reserve(held_.size() + bodies + tails);
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        for (std::uint64_t i = 0; i < want[part]; ++i) {
            out.push_back({0, part, media_.generation(), random_token()});
            nodes.emplace(
                static_cast<std::uint32_t>(out.size() - 1),
                Held{out.back().token, out.back().generation, deadline, false, owner});
        }
    for (const std::uint32_t part : {kBodyPart, kTailPart})
        for (std::uint64_t i = 1; owner && i <= want[part]; ++i)
            if (!owner->make_room(free_[part][free_[part].size() - i]))
                throw Error(SAC_E_NO_SPACE, block_.name,
                            format("namespace '%s': the file system of the daemon's run "
                                   "directory is full: free some of it",
                                   block_.name),
                            ENOSPC);
    while (!nodes.empty()) {  // nothing fails from here on
        auto node = nodes.extract(nodes.begin());
        Reservation &r = out[node.key()];
        r.slot = free_[r.part].back();
        free_[r.part].pop_back();
        node.key() = r.slot;
        held_.insert(std::move(node));
        if (owner)
            owner->grant(r.slot, r.token);
        SAC_STOP("reserve.granted");
    }
    next_deadline_ = std::min(next_deadline_, deadline);
    SAC_STOP("reserve.end");
    return out;
}

}  // namespace sac
