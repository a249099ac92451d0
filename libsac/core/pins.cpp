// SPDX-License-Identifier: Apache-2.0
#include "pins.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "error.hpp"

namespace sac {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr char kMagic[8] = {'S', 'A', 'C', 'T', 'A', 'B', 'L', 0};

std::uint64_t pages(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// A note for each slot is enough; more than 65,536 are forgotten before anybody asks.
std::uint64_t ring_size(std::uint64_t capacity, std::uint64_t most) {
    return std::clamp<std::uint64_t>(std::bit_ceil(capacity), 1024, most);
}

}  // namespace

std::uint64_t PinTable::file_bytes(std::uint64_t capacity) noexcept {
    return sizeof(Head) + pages(ring_size(capacity, kMostRing) * sizeof(std::uint32_t)) +
           pages(capacity * sizeof(std::uint32_t)) + pages(capacity * sizeof(std::uint64_t));
}

std::uint64_t PinTable::first_bytes(std::uint64_t capacity) noexcept {
    return sizeof(Head) + pages(ring_size(capacity, kMostRing) * sizeof(std::uint32_t));
}

PinTable::PinTable(std::uint64_t capacity)
    : capacity_(capacity), ring_size_(ring_size(capacity, kMostRing)),
      memory_(file_bytes(capacity)) {
    place();
}

PinTable::PinTable(Fd file, std::uint64_t capacity, const std::string &name)
    : capacity_(capacity), ring_size_(ring_size(capacity, kMostRing)),
      memory_(std::move(file), file_bytes(capacity), true, name) {
    struct stat st;
    const auto bytes = static_cast<off_t>(file_bytes(capacity));
    if (fstat(memory_.file().get(), &st) != 0)
        throw_errno(name, "cannot stat the table");
    if (st.st_size < bytes && ftruncate(memory_.file().get(), bytes) != 0)
        throw_errno(name, "cannot give the table its size");
    place();
    known_ = std::make_unique<std::atomic<bool>[]>(file_bytes(capacity) / kPage);
    // For people and debuggers: nobody believes it.
    Head &h = head();
    std::memcpy(h.magic, kMagic, sizeof h.magic);
    h.capacity = capacity_, h.ring = ring_size_;
}

void PinTable::place() noexcept {
    std::uint8_t *at = memory_.data() + sizeof(Head);
    ring_ = reinterpret_cast<std::atomic<std::uint32_t> *>(at);
    at += pages(ring_size_ * sizeof(std::uint32_t));
    counts_ = reinterpret_cast<std::atomic<std::uint32_t> *>(at);
    at += pages(capacity_ * sizeof(std::uint32_t));
    tokens_ = reinterpret_cast<std::atomic<std::uint64_t> *>(at);
}

bool PinTable::look(const void *at) const noexcept {
    const auto page = static_cast<off_t>(page_of(at) * kPage);
    // A file system that knows no holes has none.
    if (lseek(memory_.file().get(), page, SEEK_DATA) != page)
        return false;
    known_[page_of(at)].store(true, std::memory_order_relaxed);
    return true;
}

bool PinTable::make_room(std::uint32_t slot) noexcept {
    if (!known_ || slot >= capacity_)
        return true;
    for (const void *const at : {static_cast<const void *>(&counts_[slot]),
                                 static_cast<const void *>(&tokens_[slot])}) {
        if (there(at))
            continue;
        const auto page = static_cast<off_t>(page_of(at) * kPage);
        int number = 0;
        do
            number = fallocate(memory_.file().get(), 0, page, kPage) == 0 ? 0 : errno;
        while (number == EINTR);
        if (number != 0 && number != EOPNOTSUPP)
            return false;
        known_[page_of(at)].store(true, std::memory_order_relaxed);
    }
    return true;
}

void PinTable::read(void *to, const void *from, std::size_t bytes) const noexcept {
    const auto at = static_cast<const std::uint8_t *>(from) - memory_.data();
    // What cannot be read is cut off: nothing is there, as in the zeros that to holds.
    (void)!pread(memory_.file().get(), to, bytes, at);
}

std::uint64_t PinTable::pinned_slots(std::uint64_t first, std::uint64_t count) const noexcept {
    std::uint64_t n = 0;
    if (!memory_.file()) {
        for (std::uint64_t i = first; i < first + count; ++i)
            n += pinned(static_cast<std::uint32_t>(i));
        return n;
    }
    for (const std::uint64_t end = std::min(first + count, capacity_); first < end;) {
        std::uint32_t counts[kBlock] = {};
        const std::uint64_t some = std::min(kBlock, end - first);
        read(counts, counts_ + first, some * sizeof *counts);
        n += some - static_cast<std::uint64_t>(std::count(counts, counts + some, 0u));
        first += some;
    }
    return n;
}

bool PinTable::used_block(std::uint64_t first, std::uint64_t count, std::uint8_t *used) const {
    std::uint32_t counts[kBlock] = {};
    std::uint64_t tokens[kBlock] = {};
    if (memory_.file()) {
        read(counts, counts_ + first, count * sizeof *counts);
        read(tokens, tokens_ + first, count * sizeof *tokens);
    } else {
        for (std::uint64_t i = 0; i < count; ++i) {
            counts[i] = counts_[first + i].load(std::memory_order_seq_cst);
            tokens[i] = tokens_[first + i].load(std::memory_order_seq_cst);
        }
    }
    bool any = false;
    for (std::uint64_t i = 0; i < count; ++i) {
        used[i] = counts[i] != 0 || tokens[i] != 0;
        any |= used[i] != 0;
    }
    return any;
}

void PinTable::note(const std::uint32_t *slots, std::uint64_t count) noexcept {
    // Only the newest fit; a slot may still be read as an older note: a hint, no more.
    if (count > ring_size_)
        slots += count - ring_size_, count = ring_size_;
    const std::uint64_t at = head().noted.fetch_add(count, std::memory_order_acq_rel);
    for (std::uint64_t i = 0; i < count; ++i)
        ring_[(at + i) & (ring_size_ - 1)].store(slots[i], std::memory_order_relaxed);
}

}  // namespace sac
