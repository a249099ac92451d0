// SPDX-License-Identifier: Apache-2.0
// The directory of a pool's files, held by one owner.
#pragma once

#include <string>

#include "mapping.hpp"

namespace sac {

// As throw_errno(), but SAC_E_NO_SPACE where errno says that the file system is full.
[[noreturn]] void throw_file_errno(const std::string &object, const char *what,
                                   const char *advice = "");

class Directory {
public:
    // Opens and locks it; create: makes it where it is not there. Throws Error:
    // SAC_E_NOT_FOUND, SAC_E_BUSY, SAC_E_NO_SPACE, SAC_E_SYSTEM.
    Directory(const std::string &path, bool create);
    // Gives the lock up, unless it was moved on.
    ~Directory();
    Directory(const Directory &) = delete;
    Directory &operator=(const Directory &) = delete;

    const std::string &path() const noexcept { return path_; }
    std::string path(const std::string &file) const { return path_ + '/' + file; }
    bool made() const noexcept { return made_; }  // by this object
    bool has(const std::string &file) const;
    // With the file's lock: hard links may lead to it from other directories as well. No fd:
    // the file is not there (never with O_CREAT). name: for messages. Throws Error:
    // SAC_E_BUSY, SAC_E_NO_SPACE, SAC_E_SYSTEM.
    Extent open(const std::string &file, int flags, const std::string &name) const;
    void remove(const std::string &file) const noexcept;
    void rename(const std::string &from, const std::string &to) const;
    std::uint64_t free_bytes() const;
    // To be moved to whoever gives it up; the directory can be used as before.
    Fd &lock() noexcept { return lock_; }
    // Takes the lock again if it was moved on and given up. False: somebody else has it.
    bool relock();

private:
    std::string path_;
    Fd fd_, lock_;  // the same open file
    bool made_ = false;
};

}  // namespace sac
