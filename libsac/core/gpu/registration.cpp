// SPDX-License-Identifier: Apache-2.0
#include "registration.hpp"

#include <algorithm>
#include <chrono>
#include <cinttypes>
#include <system_error>

#include "error.hpp"

namespace sac::gpu {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr Chunk kEverything{0, UINT64_MAX};  // an extent that comes meanwhile too
constexpr const char *kOtherPath = "Rows go to the GPU by way of the CPU instead.";

}  // namespace

std::shared_ptr<Registration> Registration::start(const std::shared_ptr<Device> &device,
                                                  const Mapping &mapping,
                                                  std::uint64_t chunk_bytes) {
    device->check_usable();
    if (chunk_bytes % kPage != 0 || chunk_bytes > kChunkMost)
        throw Error(SAC_E_ARG, "chunk_bytes",
                    format("chunk_bytes is %" PRIu64 ": it must be a multiple of 4096, 64 GiB "
                           "at most",
                           chunk_bytes));
    const std::uint64_t chunk = chunk_bytes == 0 ? kChunkMost : chunk_bytes;
    const auto it = std::static_pointer_cast<Registration>(mapping.watch([&] {
        return std::shared_ptr<MappingWatch>(new Registration(device, mapping, chunk));
    }));
    it->check_usable();
    const std::lock_guard lock(it->sync_->mutex);
    if (it->state_ == State::ended) {
        it->chunk_bytes_ = chunk;
        it->begin();
    }
    return it;
}

std::shared_ptr<Registration> Registration::of(const Mapping &mapping) {
    return std::static_pointer_cast<Registration>(mapping.watch());
}

Registration::Registration(std::shared_ptr<Device> device, const Mapping &mapping,
                           std::uint64_t chunk_bytes)
    : device_(std::move(device)), mapping_(mapping), base_(mapping.data()),
      writable_(mapping.writable()), chunk_bytes_(chunk_bytes), epoch_(fork_epoch()),
      sync_(std::make_unique<Sync>()) {
    const std::lock_guard lock(sync_->mutex);
    begin();
    try {
        sync_->thread = std::thread([this] { run(); });
    } catch (const std::system_error &e) {
        throw Error(
            SAC_E_SYSTEM, "thread",
            format("cannot start the thread that registers the pool's memory: %s", e.what()),
            e.code().value());
    }
}

Registration::~Registration() {
    if (forked()) {
        (void)sync_.release();
        return;
    }
    unregister();
    {
        const std::lock_guard lock(sync_->mutex);
        ending_ = true;
    }
    sync_->changed.notify_all();
    if (sync_->thread.joinable())
        sync_->thread.join();
}

void Registration::begin() {
    waiting_.clear();
    for (const Extent &e : mapping_.extents())
        add_chunks(e.offset, e.bytes);
    state_ = waiting_.empty() ? State::registered : State::running;
    whole_ = waiting_.empty();
    result_ = 0, reason_.clear();
    sync_->changed.notify_all();
}

void Registration::add_chunks(std::uint64_t offset, std::uint64_t bytes) {
    const std::vector<Chunk> more = cut_living(mapping_.guard(), offset, bytes, chunk_bytes_);
    waiting_.insert(waiting_.begin(), more.rbegin(), more.rend());
}

bool Registration::known(std::uint64_t offset) const noexcept {
    const auto there = [&](const Chunk &c) { return c.touches(offset, 1); };
    return there(busy_) || std::any_of(waiting_.begin(), waiting_.end(), there) ||
           std::any_of(parts_.begin(), parts_.end(),
                       [&](const Part &p) { return there(p.chunk); });
}

void Registration::put_in(const Chunk &chunk, bool foreign) {
    const auto at = std::upper_bound(
        parts_.begin(), parts_.end(), chunk.offset,
        [](std::uint64_t offset, const Part &p) { return offset < p.chunk.offset; });
    parts_.insert(at, {chunk, foreign});
}

void Registration::refuse(Result result, std::string reason,
                          std::unique_lock<std::mutex> &lock) {
    waiting_.clear();
    // Before all was registered once, what is pinned already helps nobody.
    if (!whole_ && !parts_.empty()) {
        std::vector<Part> out;
        out.swap(parts_);
        // Busy with them all: whoever unmaps one of them waits.
        const std::uint64_t first = std::min(busy_.offset, out.front().chunk.offset);
        const std::uint64_t end = std::max(busy_.end(), out.back().chunk.end());
        busy_ = {first, end - first};
        lock.unlock();
        release(out);
        lock.lock();
        waiting_.clear();  // an extent may have come
    }
    state_ = State::refused;
    result_ = result;
    reason_ = std::move(reason);
}

void Registration::run() noexcept {
    int mode = cuda::kCaptureRelaxed;
    (void)device_->driver().capture_mode(&mode);
    std::unique_lock lock(sync_->mutex);
    for (;;) {
        sync_->changed.wait(lock, [this] { return ending_ || !waiting_.empty(); });
        if (ending_)
            return;
        do_one(lock);
        sync_->changed.notify_all();
    }
}

void Registration::do_one(std::unique_lock<std::mutex> &lock) {
    busy_ = waiting_.back();
    waiting_.pop_back();
    const Chunk chunk = busy_;
    lock.unlock();
    bool foreign = false;
    std::string reason;
    Result result = cuda::kInvalidValue;
    try {
        result = register_chunk(chunk, foreign, reason);
    } catch (const Error &e) {
        result = e.sys_errno, reason = e.message;
    }
    std::vector<Chunk> living;
    // A block may have died since the chunks were cut.
    if (!reason.empty())
        living = cut_living(mapping_.guard(), chunk.offset, chunk.bytes, chunk_bytes_);
    lock.lock();
    if (reason.empty()) {
        put_in(chunk, foreign);
    } else if (living != std::vector<Chunk>{chunk}) {
        waiting_.insert(waiting_.end(), living.rbegin(), living.rend());
    } else {
        refuse(result, std::move(reason), lock);
    }
    if (state_ == State::running && waiting_.empty())
        state_ = State::registered, whole_ = true;
    busy_ = {0, 0};
}

Result Registration::register_chunk(const Chunk &chunk, bool &foreign,
                                    std::string &reason) const {
    const DeviceInfo &info = device_->info();
    const Driver &driver = device_->driver();
    const std::string name = name_of(chunk);
    if (!info.can_register || !info.same_address) {
        reason = format("%s cannot read memory of the host in place. %s", info.name.c_str(),
                        kOtherPath);
        return cuda::kNotSupported;
    }
    if (!writable_ && !info.can_register_read_only) {
        reason = format("%s is mapped to be read only, and %s cannot register such memory. "
                        "Open the namespace to write, or: %s",
                        name.c_str(), info.name.c_str(), kOtherPath);
        return cuda::kNotSupported;
    }
    const Current current(*device_);
    std::uint8_t *const memory = base_ + chunk.offset;
    const unsigned flags = cuda::kRegisterPortable | cuda::kRegisterMapped |
                           (writable_ ? 0u : unsigned{cuda::kRegisterReadOnly});
    const Result result = driver.host_register(memory, chunk.bytes, flags);
    if (result == cuda::kAlreadyRegistered) {
        foreign = registered_by_others(chunk);
        if (!foreign)
            reason = format("%s: a part of it, not all, is registered with CUDA by somebody "
                            "else in this process. Register all of it or none. %s",
                            name.c_str(), kOtherPath);
    } else if (result != cuda::kSuccess) {
        reason = format("CUDA does not register %" PRIu64 " bytes of %s: %s. Look at the limit "
                        "on locked memory (ulimit -l) and at the memory that is free. %s",
                        chunk.bytes, name.c_str(), driver.text(result).c_str(), kOtherPath);
    } else {
        Address seen = 0;
        const Result found = driver.host_address(&seen, memory, 0);
        if (found != cuda::kSuccess || seen != reinterpret_cast<std::uintptr_t>(memory)) {
            (void)driver.host_unregister(memory);
            reason = format("%s sees %s at another address than the host. %s",
                            info.name.c_str(), name.c_str(), kOtherPath);
            return found != cuda::kSuccess ? found : Result{cuda::kNotSupported};
        }
    }
    return result;
}

// All of it: an answer about a byte says nothing about its neighbours.
bool Registration::registered_by_others(const Chunk &chunk) const noexcept {
    const auto there = [&](std::uint64_t offset) {
        const auto at = reinterpret_cast<std::uintptr_t>(base_ + offset);
        Address seen = 0;
        return device_->driver().pointer_attribute(&seen, cuda::kPointerDevice, at) ==
                   cuda::kSuccess &&
               seen == at;
    };
    const std::uint64_t end = chunk.offset + chunk.bytes;
    for (std::uint64_t at = chunk.offset; at < end; at += kBlockBytes)
        if (!there(at))
            return false;
    return there(end - 1);
}

std::string Registration::name_of(const Chunk &chunk) const {
    std::uint64_t within = 0;
    const Extent &e = mapping_.locate(chunk.offset, within);
    return e.fd ? e.name : std::string("the pool's memory");
}

void Registration::release(const std::vector<Part> &parts) const noexcept {
    try {
        const Current current(*device_);
        for (const Part &p : parts)
            if (!p.foreign)
                (void)device_->driver().host_unregister(base_ + p.chunk.offset);
    } catch (const Error &) {
        // A process that is ending: the driver has let go.
    }
}

void Registration::take_out(const Chunk &leaving) noexcept {
    std::unique_lock lock(sync_->mutex);
    const auto gone = [&](const Chunk &c) { return c.touches(leaving.offset, leaving.bytes); };
    std::erase_if(waiting_, gone);
    sync_->changed.wait(lock, [&] { return !gone(busy_); });
    std::erase_if(waiting_, gone);  // what was busy may have been put back
    std::vector<Part> out;
    std::copy_if(parts_.begin(), parts_.end(), std::back_inserter(out),
                 [&](const Part &p) { return gone(p.chunk); });
    std::erase_if(parts_, [&](const Part &p) { return gone(p.chunk); });
    // Before the state says so: whoever sees it ended may register the same memory again.
    lock.unlock();
    release(out);
    lock.lock();
    if (empty() && (leaving == kEverything || state_ != State::refused))
        state_ = State::ended;
    else if (state_ == State::running && waiting_.empty() && busy_.bytes == 0)
        state_ = State::registered, whole_ = true;
    lock.unlock();
    sync_->changed.notify_all();
}

// Of what is registered or will be. The mapping may have gone.
std::uint64_t Registration::end() const noexcept {
    const std::lock_guard lock(sync_->mutex);
    std::uint64_t end = busy_.end();
    for (const Chunk &c : waiting_)
        end = std::max(end, c.end());
    for (const Part &p : parts_)
        end = std::max(end, p.chunk.end());
    return end;
}

void Registration::unregister() noexcept {
    if (!forked())
        let_go({0, end()}, kEverything);
}

void Registration::came(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (forked())
        return;
    const std::lock_guard lock(sync_->mutex);
    if (state_ == State::ended || state_ == State::refused || known(offset))
        return;
    add_chunks(offset, bytes);
    if (!waiting_.empty())
        state_ = State::running;
    sync_->changed.notify_all();
}

void Registration::going(std::uint64_t offset, std::uint64_t bytes) noexcept {
    if (!forked())
        let_go({offset, bytes}, {offset, bytes});
}

void Registration::let_go(const Chunk &told, const Chunk &leaving) noexcept {
    const std::lock_guard lock(sync_->users_mutex);
    {
        const std::lock_guard begun(sync_->mutex);
        leaving_ = leaving;
    }
    for (RegistrationUser *const user : users_)
        user->going(base_ + told.offset, told.bytes);
    take_out(leaving);
    const std::lock_guard left(sync_->mutex);
    leaving_ = {0, 0};
}

void Registration::check_usable() const {
    if (forked())
        throw Error(SAC_E_FORKED, "registration",
                    "the pool's memory was registered by the parent process; a forked child "
                    "cannot use CUDA after that");
}

Registration::State Registration::wait(std::uint64_t timeout_ms) const {
    check_usable();
    std::unique_lock lock(sync_->mutex);
    // No time that a clock cannot hold.
    const auto most = std::chrono::milliseconds(std::min<std::uint64_t>(timeout_ms, 1u << 31));
    sync_->changed.wait_for(lock, most, [this] { return state_ != State::running; });
    return state_;
}

Registration::Info Registration::info() const {
    check_usable();
    const std::lock_guard lock(sync_->mutex);
    Info i{};
    i.state = state_;
    const auto waiting = [&i](const Chunk &c) {
        i.bytes += c.bytes;
        i.chunks += c.bytes != 0;
    };
    for (const Chunk &c : waiting_)
        waiting(c);
    waiting(busy_);
    for (const Part &p : parts_) {
        waiting(p.chunk);
        i.bytes_done += p.chunk.bytes;
        i.bytes_foreign += p.foreign ? p.chunk.bytes : 0;
        ++i.chunks_done;
    }
    i.result = result_;
    i.reason = reason_;
    return i;
}

void Registration::require(std::uint64_t timeout_ms) const {
    const State state = wait(timeout_ms);
    if (state == State::running)
        throw Error(SAC_E_BUSY, "registration",
                    format("the pool's memory is not registered with CUDA after %" PRIu64
                           " ms; wait longer",
                           timeout_ms));
    const Info i = info();
    if (state == State::refused)
        throw Error(SAC_E_GPU, "registration", i.reason, i.result);
    if (state == State::ended)
        throw Error(SAC_E_GPU, "registration",
                    "the pool's memory is not registered with CUDA any more: it was "
                    "unregistered, or has gone with its device");
}

Address Registration::address(const std::uint8_t *memory, std::uint64_t bytes) const noexcept {
    if (forked() || memory < base_)
        return 0;
    std::uint64_t at = static_cast<std::uint64_t>(memory - base_);
    const std::uint64_t end = at + bytes;
    const std::lock_guard lock(sync_->mutex);
    if (!whole_ || leaving_.touches(at, bytes))
        return 0;
    auto part = std::upper_bound(
        parts_.begin(), parts_.end(), at,
        [](std::uint64_t offset, const Part &p) { return offset < p.chunk.offset; });
    if (part == parts_.begin())
        return 0;
    for (--part; part != parts_.end() && part->chunk.offset <= at; ++part) {
        at = std::max(at, std::min(end, part->chunk.end()));
        if (at >= end && end <= part->chunk.end())
            return reinterpret_cast<std::uintptr_t>(memory);
    }
    return 0;
}

void Registration::add(RegistrationUser &user) {
    check_usable();
    const std::lock_guard lock(sync_->users_mutex);
    users_.push_back(&user);
}

void Registration::remove(RegistrationUser &user) noexcept {
    if (forked())
        return;
    const std::lock_guard lock(sync_->users_mutex);
    std::erase(users_, &user);
}

}  // namespace sac::gpu
