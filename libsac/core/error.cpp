// SPDX-License-Identifier: Apache-2.0
#include "error.hpp"

#include <cerrno>
#include <cstdarg>
#include <cstdio>
#include <cstring>

namespace sac {

namespace {

// strerror_r has two signatures (GNU and POSIX); an overload takes either result, so that
// the thread-safe call is used on both.
[[maybe_unused]] const char *error_text(const char *gnu_result, const char *) noexcept {
    return gnu_result;
}
[[maybe_unused]] const char *error_text(int posix_result, const char *buffer) noexcept {
    return posix_result == 0 ? buffer : "unknown error";
}

}  // namespace

std::string format(const char *fmt, ...) {
    char small[256];
    va_list args;
    va_start(args, fmt);
    va_list again;
    va_copy(again, args);
    const int length = std::vsnprintf(small, sizeof small, fmt, args);
    va_end(args);
    std::string text;
    if (length >= 0 && static_cast<std::size_t>(length) < sizeof small) {
        text.assign(small, static_cast<std::size_t>(length));
    } else if (length > 0) {
        try {
            text.resize(static_cast<std::size_t>(length));
        } catch (...) {
            va_end(again);
            throw;
        }
        // data() has room for the terminating zero behind its last character.
        std::vsnprintf(text.data(), text.size() + 1, fmt, again);
    }
    va_end(again);
    return text;
}

std::string errno_text(int number) {
    char buffer[128] = "";
    return error_text(strerror_r(number, buffer, sizeof buffer), buffer);
}

void throw_errno(const std::string &object, const char *what, const char *advice) {
    const int number = errno;
    std::string message =
        format("%s: %s: %s.", object.c_str(), what, errno_text(number).c_str());
    if (*advice != '\0') {
        message += ' ';
        message += advice;
    }
    throw Error(SAC_E_SYSTEM, object, std::move(message), number);
}

}  // namespace sac
