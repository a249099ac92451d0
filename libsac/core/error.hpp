// SPDX-License-Identifier: Apache-2.0
// The one exception of the core; abi.cpp turns it into a status and sac_last_error().
#pragma once

#include <cstdint>
#include <exception>
#include <string>
#include <utility>

#include "sac.h"

namespace sac {

class Error : public std::exception {
public:
    Error(sac_status code, std::string on, std::string text, int number = 0,
          std::uint64_t byte = 0)
        : status(code), sys_errno(number), offset(byte), object(std::move(on)),
          message(std::move(text)) {}

    const char *what() const noexcept override { return message.c_str(); }

    sac_status status;
    int sys_errno;
    std::uint64_t offset;
    std::string object;
    std::string message;
};

// printf into a std::string.
[[gnu::format(printf, 1, 2)]] std::string format(const char *fmt, ...);

// What a system call's error number means.
std::string errno_text(int number);

// SAC_E_SYSTEM with errno and its text: "<object>: <what>: <strerror>. <advice>".
[[noreturn]] void throw_errno(const std::string &object, const char *what,
                              const char *advice = "");

}  // namespace sac
