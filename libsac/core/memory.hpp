// SPDX-License-Identifier: Apache-2.0
// Memory of a structure of its own: private, or of a file that other processes map as well.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "fault.hpp"
#include "fork.hpp"

namespace sac {

// A zeroed mapping, given on first touch, not inherited by fork: private, or of a file that
// other processes map as well.
class Memory {
public:
    // Private. Throws Error(SAC_E_NO_MEMORY).
    explicit Memory(std::uint64_t bytes);
    // The first bytes of a file. Guarded: should another process cut it short, it reads as
    // zeros from then on. Throws Error(SAC_E_SYSTEM).
    Memory(Fd file, std::uint64_t bytes, bool writable, const std::string &name);
    // A new memfd that only this user can open again, and nobody can resize.
    static Fd memfd(std::uint64_t bytes, const char *name);
    ~Memory();
    Memory(const Memory &) = delete;
    Memory &operator=(const Memory &) = delete;
    std::uint8_t *data() const noexcept { return base_; }
    std::uint64_t bytes() const noexcept { return bytes_; }
    const Fd &file() const noexcept { return file_; }
    // Whether some of a file's memory was not there when it was touched.
    bool died() const noexcept { return guard_ && guard_->faults() != 0; }
    // Asks the kernel for huge pages behind a range of a file; small ones do as well.
    void make_huge(std::uint64_t offset, std::uint64_t bytes) const noexcept;

private:
    Fd file_;
    std::uint8_t *hold_ = nullptr, *base_;  // addresses taken; where the memory begins
    std::uint64_t hold_bytes_ = 0, bytes_;
    std::uint64_t epoch_;
    std::unique_ptr<FaultGuard> guard_;
};

}  // namespace sac
