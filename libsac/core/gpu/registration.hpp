// SPDX-License-Identifier: Apache-2.0
// A pool's memory, registered with CUDA, so that kernels read it in place. Once a process and
// mapping, by a thread in the background; it stays until the mapping goes.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "chunks.hpp"
#include "device.hpp"
#include "mapping.hpp"

namespace sac::gpu {

// Told before memory is unregistered; address() says 0 of it by then. Kernels may still run
// that would read it: when going() returns, none does, and none is launched that would. Called
// with locks of the pool held: it must not call the pool, nor the registration, and no mutex
// that it takes may be held by somebody who does.
class RegistrationUser {
public:
    virtual ~RegistrationUser() = default;
    virtual void going(const std::uint8_t *memory, std::uint64_t bytes) noexcept = 0;
};

class Registration final : public MappingWatch {
public:
    enum class State {
        running,     // some of it is not registered yet
        registered,  // all of it, but for dead memory and lost extents
        refused,     // some of it is not, and nothing more is tried: info().reason
        ended,       // the mapping went, or unregister() was called
    };
    struct Info {
        State state;
        std::uint64_t bytes, bytes_done;  // all of it; that the GPU can read now
        std::uint64_t bytes_foreign;      // of those, registered by somebody else
        std::uint32_t chunks, chunks_done;
        Result result;       // of the driver's call that was refused; 0: none
        std::string reason;  // a sentence; "" where nothing was refused
    };

    // Starts it, or gives what there is: then chunk_bytes counts for nothing. What ended is
    // started again. chunk_bytes: a multiple of 4096; 0: 64 GiB. Throws Error: SAC_E_ARG,
    // SAC_E_FORKED, SAC_E_SYSTEM (no thread).
    static std::shared_ptr<Registration> start(const std::shared_ptr<Device> &device,
                                               const Mapping &mapping,
                                               std::uint64_t chunk_bytes = 0);
    // What was started for the mapping; null where nothing was.
    static std::shared_ptr<Registration> of(const Mapping &mapping);

    ~Registration() override;

    // Waits until it is not running any more, at most timeout_ms; the state then. Throws
    // Error(SAC_E_FORKED), as the next two.
    State wait(std::uint64_t timeout_ms) const;
    Info info() const;
    // As wait(), then throws where not all is registered: SAC_E_GPU (refused, with the reason;
    // ended), SAC_E_BUSY (time is up).
    void require(std::uint64_t timeout_ms) const;
    // Where the GPU sees these bytes of the mapping, all of them registered; else 0, as long as
    // it is running for the first time, and as soon as the memory is about to go. It is the
    // host's own address: a GPU that sees it elsewhere is refused.
    Address address(const std::uint8_t *memory, std::uint64_t bytes) const noexcept;

    // Users must be taken out before they are destroyed; remove() waits for a call to going().
    void add(RegistrationUser &user);
    void remove(RegistrationUser &user) noexcept;

    // Unregisters all of it now, after the users were told.
    void unregister() noexcept;

    void came(std::uint64_t offset, std::uint64_t bytes) noexcept override;
    void going(std::uint64_t offset, std::uint64_t bytes) noexcept override;

private:
    struct Part {
        Chunk chunk;
        bool foreign;
    };
    // Leaked in a forked child: a condition that a thread of the parent waits for cannot be
    // destroyed there.
    struct Sync {
        std::mutex users_mutex;  // taken before the next
        std::mutex mutex;
        std::condition_variable changed;
        std::thread thread;
    };

    Registration(std::shared_ptr<Device> device, const Mapping &mapping,
                 std::uint64_t chunk_bytes);

    void begin();  // mutex held, as for the next five
    bool empty() const noexcept {
        return parts_.empty() && waiting_.empty() && busy_.bytes == 0;
    }
    void add_chunks(std::uint64_t offset, std::uint64_t bytes);
    bool known(std::uint64_t offset) const noexcept;
    void put_in(const Chunk &chunk, bool foreign);
    void refuse(Result result, std::string reason, std::unique_lock<std::mutex> &lock);
    void run() noexcept;
    void do_one(std::unique_lock<std::mutex> &lock);
    Result register_chunk(const Chunk &chunk, bool &foreign, std::string &reason) const;
    bool registered_by_others(const Chunk &chunk) const noexcept;
    std::string name_of(const Chunk &chunk) const;
    void release(const std::vector<Part> &parts) const noexcept;
    void let_go(const Chunk &told, const Chunk &leaving) noexcept;
    void take_out(const Chunk &leaving) noexcept;
    std::uint64_t end() const noexcept;
    bool forked() const noexcept { return epoch_ != fork_epoch(); }
    void check_usable() const;

    const std::shared_ptr<Device> device_;
    const Mapping &mapping_;  // until all of it has gone
    std::uint8_t *const base_;
    const bool writable_;
    std::uint64_t chunk_bytes_;
    const std::uint64_t epoch_;

    std::unique_ptr<Sync> sync_;
    std::vector<Chunk> waiting_;  // to be registered; the last comes first
    std::vector<Part> parts_;     // registered, by offset
    Chunk busy_{0, 0};            // being registered or let go now; bytes 0: none
    Chunk leaving_{0, 0};         // whose users are being told
    State state_ = State::running;
    bool whole_ = false;  // all of it was registered at some time
    Result result_ = 0;
    std::string reason_;
    bool ending_ = false;
    std::vector<RegistrationUser *> users_;
};

}  // namespace sac::gpu
