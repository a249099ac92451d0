// SPDX-License-Identifier: Apache-2.0
#include "wire.hpp"

#include <algorithm>

#include "error.hpp"

namespace sac::wire {

void Reader::too_short() const {
    throw Error(SAC_E_ARG, what_,
                std::string(what_) + ": the request is too short for what it says");
}

void Reader::done() const {
    if (left_ != 0)
        throw Error(SAC_E_ARG, what_,
                    format("%s: the request has %zu bytes too many", what_, left_));
}

std::string name(const char *field, std::size_t bytes, const char *what) {
    const void *const end = std::memchr(field, 0, bytes);
    if (!end)
        throw Error(
            SAC_E_ARG, what,
            format("%s: a name has at most %zu bytes and a zero after them", what, bytes - 1));
    return {field, static_cast<const char *>(end)};
}

void set_name(char *field, std::size_t bytes, const std::string &text, const char *what) {
    if (text.size() >= bytes || text.find('\0') != std::string::npos)
        throw Error(SAC_E_ARG, what,
                    format("%s: '%.80s' does not fit: a name has at most %zu bytes, none zero",
                           what, text.c_str(), bytes - 1));
    std::memset(field, 0, bytes);
    std::memcpy(field, text.data(), text.size());
}

std::vector<std::uint8_t> error_payload(int sys_errno, std::uint64_t offset,
                                        const std::string &object, const std::string &message) {
    ErrorReply e{};
    e.sys_errno = sys_errno, e.offset = offset;
    e.object_bytes = static_cast<std::uint16_t>(std::min<std::size_t>(object.size(), 4096));
    e.message_bytes = static_cast<std::uint16_t>(std::min<std::size_t>(message.size(), 16384));
    Writer w;
    w.add(e).add(object.data(), e.object_bytes).add(message.data(), e.message_bytes);
    return w.take();
}

void throw_reply(std::uint32_t status, const std::uint8_t *payload, std::size_t bytes) {
    Reader r(payload, bytes, "daemon's reply");
    const auto e = r.get<ErrorReply>();
    const auto text = [&r](std::size_t n) {
        return std::string(reinterpret_cast<const char *>(r.take(n)), n);
    };
    std::string object = text(e.object_bytes);
    std::string message = text(e.message_bytes);
    if (status == SAC_OK || status > SAC_E_ACCESS)
        throw Error(SAC_E_SYSTEM, object,
                    format("the daemon answered with the unknown status %u: %s", status,
                           message.c_str()));
    throw Error(static_cast<sac_status>(status), std::move(object), std::move(message),
                e.sys_errno, e.offset);
}

const char *op_name(std::uint16_t op) noexcept {
    switch (op) {
    case kHello:
        return "HELLO";
    case kPools:
        return "POOLS";
    case kAttach:
        return "ATTACH";
    case kDetach:
        return "DETACH";
    case kReserve:
        return "RESERVE";
    case kRenew:
        return "RENEW";
    case kCommit:
        return "COMMIT";
    case kAbort:
        return "ABORT";
    case kEvents:
        return "EVENTS";
    case kStats:
        return "STATS";
    case kEvict:
        return "EVICT";
    case kVerify:
        return "VERIFY";
    case kDead:
        return "DEAD";
    case kPoolInfo:
        return "POOL_INFO";
    case kNames:
        return "NAMES";
    case kDrop:
        return "DROP";
    case kAdmin:
        return "ADMIN";
    default:
        return "?";
    }
}

}  // namespace sac::wire
