// SPDX-License-Identifier: Apache-2.0
// Requests of a hostile client to a service with a live pool, without a socket; and bytes to
// the parser of frames. Any reply is an answer; a crash, a hang, a leak or a sanitizer's report
// is a fault of the library.
//
// Input: a first byte. 0xff: the rest is sent into a socket pair. Else requests follow: op (1
// byte), length (2, little-endian), so many bytes of payload. What a fuzzer cannot guess is put
// in: a table number below 4 becomes that of one of the client's tables, a token below 16 that
// of one of its reservations, and so does that item's slot.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdlib>
#include <filesystem>

#include "../kit.hpp"
#include "service.hpp"
#include "session.hpp"

namespace {

namespace wire = sac::wire;

struct World {
    std::string run;
    kit::PoolHandle pool;
    std::unique_ptr<sac::Service> service;
    sac::Peer peer;

    World() {
        std::string name = "/tmp/sac-fuzz-XXXXXX";
        if (!mkdtemp(name.data()))
            std::abort();
        run = name;
        const sac::Fd meta = memory(4 << 20), data = memory(12 << 20), more = memory(12 << 20);
        const sac_extent_fd extents[] = {{data.get(), 0, 0, "data"},
                                         {more.get(), 0, 0, "more"}};
        sac_open_options o{};
        o.struct_size = sizeof o;
        o.flags = std::uint32_t{SAC_POOL_SHARED} | SAC_POOL_FORMAT;
        o.data_count = 2, o.meta = {meta.get(), 0, 0, "meta"}, o.data = extents;
        sac_pool *out = nullptr;
        kit::must(sac_pool_open_fds(&o, &out), "open_fds");
        pool.reset(out);
        service = std::make_unique<sac::Service>(run, UINT32_MAX, 64);
        service->add_pool("p", std::dynamic_pointer_cast<sac::OwnedPool>(pool->it));
        peer.process = {static_cast<std::uint32_t>(getpid()),
                        sac::start_time_of(static_cast<std::uint32_t>(getpid()))};
        peer.uid = 4711;  // not the daemon's user: the rules of access hold
        peer.gid = 4711;
    }
    ~World() {
        service.reset(), pool.reset();
        std::filesystem::remove_all(run);
    }
    static sac::Fd memory(off_t bytes) {
        const int fd = memfd_create("fuzz", MFD_CLOEXEC);
        if (fd < 0 || ftruncate(fd, bytes) != 0)
            std::abort();
        return sac::Fd(fd);
    }
};

World &world() {
    static World w;
    return w;
}

class HostileClient {
public:
    HostileClient() {
        caller_.peer.process = world().peer.process;
        caller_.peer.uid = world().peer.uid, caller_.peer.gid = world().peer.gid;
        caller_.session = 1;
        wire::HelloRequest hello{};
        ask(wire::kHello, wire::Writer().add(hello).take());
    }
    ~HostileClient() {
        if (caller_.client)
            world().service->gone(caller_.client);
    }

    void ask(std::uint16_t op, std::vector<std::uint8_t> payload) {
        patch(op, payload);
        sac::Frame frame;
        frame.header = {
            wire::kMagic, wire::kVersion, op, static_cast<std::uint32_t>(payload.size()), 0, 1};
        frame.payload = std::move(payload);
        const sac::Reply reply = world().service->handle(caller_, frame);
        world().service->count(op, reply.status != SAC_OK, 1);
        if (reply.status != SAC_OK)
            return;
        if (op == wire::kReserve)
            for (std::size_t at = 0; at + 24 <= reply.payload.size() && held_.size() < 16;
                 at += 24) {
                std::memcpy(&held_.emplace_back(), reply.payload.data() + at, 24);
            }
    }

private:
    void patch(std::uint16_t op, std::vector<std::uint8_t> &p) {
        if (op < wire::kDetach || op > wire::kDead || p.size() < 4)
            return;
        std::uint32_t number = 0;
        std::memcpy(&number, p.data(), 4);
        const auto &tables = caller_.client->tables;
        if (number < 4 && number < tables.size()) {
            number = std::next(tables.begin(), number)->first;
            std::memcpy(p.data(), &number, 4);
        }
        const bool commit = op == wire::kCommit;
        if (!commit && op != wire::kRenew && op != wire::kAbort)
            return;
        // Slot and token lie in both items at 0 and 8.
        for (std::size_t at = 16; at + 16 <= p.size(); at += commit ? 88 : 16) {
            std::uint64_t token = 0;
            std::memcpy(&token, p.data() + at + 8, 8);
            if (token >= held_.size())
                continue;
            std::memcpy(p.data() + at, &held_[token].slot, 4);
            std::memcpy(p.data() + at + 8, &held_[token].token, 8);
        }
    }

    sac::Caller caller_;
    std::vector<wire::ReservationItem> held_;
};

void bytes_into_a_session(const std::uint8_t *data, std::size_t size) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, pair) != 0)
        std::abort();
    const sac::Fd ours(pair[0]);
    sac::Session session(sac::Fd(pair[1]), sac::Peer(), 1);
    if (size != 0 && write(ours.get(), data, size) < 0)
        return;
    for (;;) {
        sac::Frame frame;
        const auto input = session.read(frame, wire::kMaxPayload);
        if (input != sac::Session::Input::frame)
            return;
        if (frame.payload.size() != frame.header.length)
            std::abort();
        session.send(frame.header, world().service->handle(session.caller, frame));
    }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    world();
    if (size == 0)
        return 0;
    if (*data == 0xff) {
        bytes_into_a_session(data + 1, size - 1);
        return 0;
    }
    {
        HostileClient client;
        for (std::size_t at = 1; at + 3 <= size;) {
            const std::uint16_t op = data[at];
            const std::size_t length = std::min<std::size_t>(
                data[at + 1] | std::size_t{data[at + 2]} << 8, size - at - 3);
            client.ask(op, {data + at + 3, data + at + 3 + length});
            at += 3 + length;
        }
    }
    // Nobody holds anything any more: every page and every namespace can go.
    sac::Pool &pool = *world().pool->it;
    for (const std::string &name : pool.names())
        pool.drop(name);
    if (!world().service->clients().empty())
        std::abort();
    return 0;
}
