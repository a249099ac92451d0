// SPDX-License-Identifier: Apache-2.0
// What passes between a client and the daemon: docs/protocol.md in C++.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <vector>

#include "format.hpp"
#include "sac.h"

namespace sac::wire {

constexpr std::uint32_t kMagic = 0x31434153;  // "SAC1"
constexpr std::uint16_t kVersion = 1;
constexpr std::uint16_t kReply = 0x8000;
constexpr std::uint32_t kMaxPayload = std::uint32_t{16} << 20;
constexpr std::uint64_t kMaxReserve = std::uint64_t{1} << 19;
constexpr std::size_t kMaxFds = fmt::kMaxExtents + 2;
constexpr std::size_t kNameBytes = 64;

enum Op : std::uint16_t {
    kHello = 1,
    kPools = 2,
    kAttach = 4,
    kDetach = 5,
    kReserve = 6,
    kRenew = 7,
    kCommit = 8,
    kAbort = 9,
    kEvents = 10,
    kStats = 11,
    kEvict = 12,
    kVerify = 13,
    kDead = 14,
    kPoolInfo = 15,
    kNames = 16,
    kDrop = 17,
    kAdmin = 32,
};

enum AttachFlags : std::uint32_t { kCreate = 1, kReadOnly = 2 };
enum Access : std::uint32_t { kRead = 1, kWrite = 2 };
enum CommitFlags : std::uint32_t { kKeep = 1 };

struct Header {
    std::uint32_t magic;
    std::uint16_t version, op;
    std::uint32_t length, status;
    std::uint64_t sequence;
};
static_assert(sizeof(Header) == 24);

struct ErrorReply {
    std::int32_t sys_errno;
    std::uint32_t reserved;
    std::uint64_t offset;
    std::uint16_t object_bytes, message_bytes;
    std::uint32_t reserved2;
};
static_assert(sizeof(ErrorReply) == 24);

struct HelloRequest {
    std::uint32_t flags, reserved;
    std::uint8_t id[16];
    char name[kNameBytes];
};
static_assert(sizeof(HelloRequest) == 88);
struct HelloReply {
    std::uint8_t id[16];
    std::uint64_t incarnation;
    std::uint32_t pid, reserved;
    char version[32];
};
static_assert(sizeof(HelloReply) == 64);

struct AttachRequest {
    char pool[kNameBytes], name[kNameBytes];
    std::uint32_t flags, ns_flags, key_scheme, mode;
    std::uint64_t max_bytes;
    char model[128];
    std::uint32_t page_tokens, plane_count, have_extents, life;
};
static_assert(sizeof(AttachRequest) == 296);
struct AttachReply {
    std::uint32_t table, extents, access, first_fd;
    std::uint64_t index_bytes, capacity, incarnation;
    std::uint8_t pool[16];
};
static_assert(sizeof(AttachReply) == 56);
struct ExtentInfo {
    std::uint64_t bytes;
    char name[112];
    std::uint32_t align, life;  // align: of a DAX device; a file: 0
};
static_assert(sizeof(ExtentInfo) == 128);

struct TableRequest {  // DETACH, STATS, VERIFY
    std::uint32_t table, reserved;
};
struct ReserveRequest {
    std::uint32_t table, reserved;
    std::uint64_t bodies, tails, deadline_ms;
};
struct ReservationItem {
    std::uint32_t slot, part;
    std::uint64_t generation, token;
};
struct HeldRequest {  // RENEW, ABORT
    std::uint32_t table, count;
    std::uint64_t deadline_ms;
};
struct HeldItem {
    std::uint32_t slot, reserved;
    std::uint64_t token;
};
struct CommitRequest {
    std::uint32_t table, flags, count, tokens;
};
struct CommitEntry {
    std::uint32_t slot, part;
    std::uint64_t token;
    std::uint8_t key[SAC_KEY_BYTES], parent[SAC_KEY_BYTES];
    std::uint32_t data_crc, reserved;
};
static_assert(sizeof(CommitEntry) == 88);
struct CommitResult {
    std::uint32_t slot, duplicate;
    std::uint64_t generation;
};
struct EventsRequest {
    std::uint32_t table, most;
    std::uint64_t next;
};
struct EventsReply {
    std::uint64_t next, lost;
    std::uint32_t count, reserved;
};
static_assert(sizeof(sac_event) == 96);
struct StatsReply {
    sac_ns_stats stats;
    std::uint64_t assigned_bytes;
};
struct EvictRequest {
    std::uint32_t table, reserved;
    std::uint64_t count;
};
struct VerifyReply {
    std::uint64_t checked, dropped;
};
struct DeadRequest {
    std::uint32_t table, count;
};
struct PoolRequest {  // POOL_INFO, NAMES
    char pool[kNameBytes];
};
struct DropRequest {
    char pool[kNameBytes], name[kNameBytes];
};

// A payload being put together.
class Writer {
public:
    template <class T> Writer &add(const T &value) {
        static_assert(std::is_trivially_copyable_v<T> && !std::is_pointer_v<T>);
        return add(&value, sizeof value);
    }
    Writer &add(const void *bytes, std::size_t n) {
        const auto *const p = static_cast<const std::uint8_t *>(bytes);
        bytes_.insert(bytes_.end(), p, p + n);
        return *this;
    }
    const std::vector<std::uint8_t> &bytes() const noexcept { return bytes_; }
    std::vector<std::uint8_t> take() noexcept { return std::move(bytes_); }

private:
    std::vector<std::uint8_t> bytes_;
};

// A payload being taken apart. Throws Error(SAC_E_ARG) where it is too short; done() where
// bytes are left over.
class Reader {
public:
    Reader(const std::uint8_t *bytes, std::size_t n, const char *what)
        : at_(bytes), left_(n), what_(what) {}
    template <class T> T get() {
        static_assert(std::is_trivially_copyable_v<T>);
        T value;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    // So many items in place; checked against what is left before anything is multiplied.
    template <class T> std::vector<T> get(std::uint64_t count) {
        if (count > left_ / sizeof(T))
            too_short();
        std::vector<T> out(count);
        if (count != 0)
            std::memcpy(out.data(), take(count * sizeof(T)), count * sizeof(T));
        return out;
    }
    const std::uint8_t *take(std::size_t n) {
        if (n > left_)
            too_short();
        const std::uint8_t *const p = at_;
        at_ += n, left_ -= n;
        return p;
    }
    std::size_t left() const noexcept { return left_; }
    void done() const;

private:
    [[noreturn]] void too_short() const;

    const std::uint8_t *at_;
    std::size_t left_;
    const char *what_;
};

// A name field: its text. Throws Error(SAC_E_ARG) where no zero ends it.
std::string name(const char *field, std::size_t bytes, const char *what);
// Fills a name field. Throws Error(SAC_E_ARG) where the text does not fit.
void set_name(char *field, std::size_t bytes, const std::string &text, const char *what);

// The payload of a failed reply, and the Error it says.
std::vector<std::uint8_t> error_payload(int sys_errno, std::uint64_t offset,
                                        const std::string &object, const std::string &message);
[[noreturn]] void throw_reply(std::uint32_t status, const std::uint8_t *payload,
                              std::size_t bytes);

const char *op_name(std::uint16_t op) noexcept;

}  // namespace sac::wire
