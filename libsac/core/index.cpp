// SPDX-License-Identifier: Apache-2.0
#include "index.hpp"

#include <algorithm>
#include <cstring>

#include "error.hpp"

namespace sac {
namespace {

// A bucket holds 7; at 4 on average one in twenty overflows into its neighbour.
std::uint64_t bucket_count(std::uint64_t capacity) {
    return std::max<std::uint64_t>(capacity / 4, 16);
}

std::uint64_t chunk_count(std::uint64_t capacity, std::uint32_t chunk_slots) {
    return capacity / chunk_slots + 1;
}

std::uint64_t memory_bytes(std::uint64_t capacity, std::uint32_t chunk_slots) {
    return 4096 + bucket_count(capacity) * 64 + capacity * sizeof(Record) +
           chunk_count(capacity, chunk_slots) * 8;
}

constexpr char kMagic[8] = {'S', 'A', 'C', 'I', 'N', 'D', 'X', 0};

Memory memory(std::uint64_t bytes, bool shared) {
    if (!shared)
        return Memory(bytes);
    return Memory(Memory::memfd(bytes, "sac-index"), bytes, true, "index");
}

// 64x64 -> 128 bit product, folded: every input bit reaches every output bit.
__extension__ using Wide = unsigned __int128;
std::uint64_t fold(std::uint64_t a, std::uint64_t b) noexcept {
    const Wide p = static_cast<Wide>(a) * b;
    return static_cast<std::uint64_t>(p) ^ static_cast<std::uint64_t>(p >> 64);
}

}  // namespace

Key Key::load(const std::uint8_t *bytes) noexcept {
    Key k;
    std::memcpy(k.w, bytes, sizeof k.w);
    return k;
}

Index::Index(std::uint64_t capacity, std::uint32_t chunk_slots, std::uint64_t seed,
             std::uint64_t incarnation, bool shared)
    : capacity_(capacity), buckets_(bucket_count(capacity)), chunk_slots_(chunk_slots),
      seed_{fold(seed ^ 0x9e3779b97f4a7c15, 0xd6e8feb86659fd93),
            fold(seed ^ 0xbf58476d1ce4e5b9, 0xa0761d6478bd642f)},
      memory_(memory(memory_bytes(capacity, chunk_slots), shared)) {
    // The memory is zeros: empty buckets. A record's word of 0 reads as generation 0, which
    // no page ever has.
    place();
    write_head(incarnation << 32);
}

Index::Index(const Index &other, std::uint64_t capacity)
    : capacity_(capacity), buckets_(bucket_count(capacity)), chunk_slots_(other.chunk_slots_),
      seed_{other.seed_[0], other.seed_[1]},
      memory_(memory(memory_bytes(capacity, chunk_slots_), other.fd() >= 0)) {
    place();
    write_head(other.forced());
    for (std::uint32_t slot = 0; slot < other.capacity_; ++slot) {
        const Record &from = other.records_[slot];
        const std::uint64_t word = from.word.load(std::memory_order_relaxed);
        if (word == 0)
            continue;
        Record &to = records_[slot];
        for (int i = 0; i < 4; ++i)
            to.key[i].store(from.key[i].load(std::memory_order_relaxed),
                            std::memory_order_relaxed);
        to.stamp = from.stamp, to.parent = from.parent, to.children = from.children;
        to.colder = from.colder, to.hotter = from.hotter;
        to.word.store(word, std::memory_order_relaxed);
        if (!(word & Record::kAbsent))
            enter(hash(key(slot), word & Record::kTailBit ? 1 : 0), slot);
    }
    for (std::uint64_t c = 0; c < chunk_count(other.capacity_, chunk_slots_); ++c)
        set_chunk(c, other.chunks_[c].load(std::memory_order_relaxed));
}

Index::Index(Fd file, std::uint64_t bytes, const std::string &name)
    : memory_(std::move(file), bytes, false, name) {
    const Head &h = head();
    const auto corrupt = [&](const char *what) {
        throw Error(SAC_E_CORRUPT, name,
                    format("the index of %s that the daemon gave is not usable: %s",
                           name.c_str(), what));
    };
    if (bytes < sizeof(Head) || std::memcmp(h.magic, kMagic, sizeof h.magic) != 0)
        corrupt("it is no index");
    capacity_ = h.capacity, buckets_ = h.buckets, chunk_slots_ = h.chunk_slots;
    seed_[0] = h.seed[0], seed_[1] = h.seed[1];
    if (capacity_ == 0 || capacity_ >= kNoSlot || chunk_slots_ == 0 ||
        buckets_ != bucket_count(capacity_) || bytes < memory_bytes(capacity_, chunk_slots_))
        corrupt("its sizes do not fit together");
    place();
}

void Index::place() noexcept {
    bucket_ = reinterpret_cast<Bucket *>(memory_.data() + sizeof(Head));
    records_ = reinterpret_cast<Record *>(bucket_ + buckets_);
    chunks_ = reinterpret_cast<std::atomic<std::uint64_t> *>(records_ + capacity_);
}

void Index::make_huge(std::uint64_t first, std::uint64_t count, bool buckets) noexcept {
    const auto tell = [&](const void *from, const void *to) {
        const auto begin = static_cast<std::uint64_t>(static_cast<const std::uint8_t *>(from) -
                                                      memory_.data());
        const auto end =
            static_cast<std::uint64_t>(static_cast<const std::uint8_t *>(to) - memory_.data());
        // Whole blocks only: a short index needs none.
        for (std::uint64_t b = begin / kBlockBytes; b * kBlockBytes < end; ++b) {
            if (b >= huge_.size() || huge_[b])
                continue;
            huge_[b] = true;
            memory_.make_huge(b * kBlockBytes, kBlockBytes);
        }
    };
    try {
        huge_.resize(memory_.bytes() / kBlockBytes);
    } catch (...) {
        return;
    }
    if (buckets)
        tell(bucket_, records_);
    tell(records_ + first, records_ + first + count);
}

void Index::write_head(std::uint64_t forced) noexcept {
    Head &h = head();
    std::memcpy(h.magic, kMagic, sizeof h.magic);
    h.capacity = capacity_, h.buckets = buckets_, h.chunk_slots = chunk_slots_;
    h.seed[0] = seed_[0], h.seed[1] = seed_[1];
    h.forced.store(forced, std::memory_order_release);
}

std::uint64_t Index::hash(const Key &key, std::uint32_t part) const noexcept {
    // Seeded: engine keys may be chosen by somebody.
    const std::uint64_t a = fold(key.w[0] ^ seed_[0], key.w[1] ^ seed_[1]);
    const std::uint64_t b = fold(key.w[2] ^ seed_[1], key.w[3] ^ seed_[0]);
    return fold(a ^ b ^ part, 0x9e3779b97f4a7c15 ^ seed_[0]) ^ b;
}

bool Index::check(std::uint32_t slot, const Key &key, std::uint32_t part,
                  std::uint64_t &word) const noexcept {
    const Record &r = records_[slot];
    const std::uint64_t before = r.word.load(std::memory_order_acquire);
    if (before & Record::kAbsent || (before & Record::kGeneration) == 0 ||
        ((before & Record::kTailBit) != 0) != (part != 0))
        return false;
    bool same = true;
    // acquire keeps the second look at the word behind these loads.
    for (int i = 0; i < 4; ++i)
        same &= r.key[i].load(std::memory_order_acquire) == key.w[i];
    if (!same)
        return false;
    const std::uint64_t after = r.word.load(std::memory_order_relaxed);
    if ((before ^ after) & ~Record::kMark)
        return false;  // another page by now
    word = after;
    return true;
}

std::uint32_t Index::search(std::uint64_t hash, const Key &key, std::uint32_t part,
                            std::uint64_t &word) const noexcept {
    const std::uint64_t tag = hash << 32;
    std::uint64_t b = home(hash);
    for (std::uint64_t n = 0; n < buckets_; ++n) {
        const Bucket &bucket = bucket_[b];
        for (const auto &e : bucket.entry) {
            const std::uint64_t v = e.load(std::memory_order_acquire);
            if (v == 0 || ((v ^ tag) >> 32) != 0)
                continue;
            const auto slot = static_cast<std::uint32_t>(v) - 1;
            if (check(slot, key, part, word))
                return slot;
        }
        if (bucket.passed.load(std::memory_order_acquire) == 0)
            return kNoSlot;
        b = b + 1 == buckets_ ? 0 : b + 1;
    }
    return kNoSlot;
}

std::uint32_t Index::find(const Key &key, std::uint32_t part,
                          std::uint64_t &word) const noexcept {
    return search(hash(key, part), key, part, word);
}

std::uint64_t Index::find_batch(const std::uint8_t *keys, std::uint64_t count,
                                std::uint32_t part, sac_handle *out) const noexcept {
    constexpr std::uint64_t kGroup = 32;
    std::uint64_t hashes[kGroup];
    std::uint64_t hits = 0;
    for (std::uint64_t at = 0; at < count; at += kGroup) {
        const std::uint64_t n = std::min(kGroup, count - at);
        const std::uint8_t *const group = keys + at * SAC_KEY_BYTES;
        for (std::uint64_t i = 0; i < n; ++i) {
            hashes[i] = hash(Key::load(group + i * SAC_KEY_BYTES), part);
            __builtin_prefetch(&bucket_[home(hashes[i])]);
        }
        for (std::uint64_t i = 0; i < n; ++i) {
            for (const auto &e : bucket_[home(hashes[i])].entry) {
                const std::uint64_t v = e.load(std::memory_order_relaxed);
                if (v != 0 && (v >> 32) == (hashes[i] & 0xffffffff)) {
                    __builtin_prefetch(&records_[static_cast<std::uint32_t>(v) - 1]);
                    break;
                }
            }
        }
        for (std::uint64_t i = 0; i < n; ++i) {
            std::uint64_t word = 0;
            const std::uint32_t slot =
                search(hashes[i], Key::load(group + i * SAC_KEY_BYTES), part, word);
            const bool hit = slot != kNoSlot;
            hits += hit;
            if (out)
                out[at + i] = {hit ? word & Record::kGeneration : 0, hit ? slot : 0, part};
        }
    }
    return hits;
}

void Index::prefetch(const Key &key, std::uint32_t part) const noexcept {
    __builtin_prefetch(&bucket_[home(hash(key, part))], 1);
}

Key Index::key(std::uint32_t slot) const noexcept {
    Key k;
    for (int i = 0; i < 4; ++i)
        k.w[i] = records_[slot].key[i].load(std::memory_order_relaxed);
    return k;
}

void Index::insert(std::uint32_t slot, const Key &key, std::uint64_t word) noexcept {
    Record &r = records_[slot];
    // release: a reader that sees one of these also sees that the old word has gone.
    for (int i = 0; i < 4; ++i)
        r.key[i].store(key.w[i], std::memory_order_release);
    // seq_cst, as every change of the word: the pin protocol orders it against the pin counts.
    r.word.store(word, std::memory_order_seq_cst);
    enter(hash(key, word & Record::kTailBit ? 1 : 0), slot);
}

void Index::enter(std::uint64_t h, std::uint32_t slot) noexcept {
    const std::uint64_t entry = h << 32 | (slot + std::uint64_t{1});
    for (std::uint64_t b = home(h);; b = b + 1 == buckets_ ? 0 : b + 1) {
        for (auto &e : bucket_[b].entry) {
            if (e.load(std::memory_order_relaxed) != 0)
                continue;
            e.store(entry, std::memory_order_release);
            return;
        }
        bucket_[b].passed.fetch_add(1, std::memory_order_release);
    }
}

void Index::remove(std::uint32_t slot, std::uint64_t word) noexcept {
    Record &r = records_[slot];
    const bool tail = r.word.load(std::memory_order_relaxed) & Record::kTailBit;
    r.word.store(word, std::memory_order_seq_cst);
    const std::uint64_t h = hash(this->key(slot), tail);
    const std::uint64_t entry = h << 32 | (slot + std::uint64_t{1});
    std::uint64_t b = home(h);
    for (std::uint64_t n = 0; n < buckets_; ++n) {
        for (auto &e : bucket_[b].entry) {
            if (e.load(std::memory_order_relaxed) != entry)
                continue;
            e.store(0, std::memory_order_release);
            for (std::uint64_t p = home(h); p != b; p = p + 1 == buckets_ ? 0 : p + 1)
                bucket_[p].passed.fetch_sub(1, std::memory_order_release);
            return;
        }
        b = b + 1 == buckets_ ? 0 : b + 1;
    }
}

}  // namespace sac
