// SPDX-License-Identifier: Apache-2.0
// Who may do what: users other than the daemon's. Needs root, to become others.
#include <grp.h>

#include "check.hpp"
#include "in_child.hpp"
#include "server_kit.hpp"

namespace {

using kit::Raw;
namespace wire = sac::wire;

const kit::Layout kLayout = kit::plain(16, 256);
constexpr uid_t kAnn = 64001, kBob = 64002;
constexpr gid_t kStaff = 64100, kOthers = 64200;

struct Served {
    kit::Place place;
    kit::PoolHandle pool;
    kit::ServerHandle server;
    explicit Served(std::uint32_t creators = UINT32_MAX) : pool(place.pool()) {
        const std::string path = place.socket();
        MUST(chmod(path.substr(0, path.rfind('/')).c_str(), 0755) == 0 ? SAC_OK : SAC_E_SYSTEM);
        server = place.server(64, 0666, creators);
        MUST(sac_server_add_pool(server.get(), "p", pool.get()));
        MUST(sac_server_serve(server.get()));
    }
};

// What a process of that user gets for this.
template <class Ask>
int status_as(const Served &s, uid_t user, gid_t group, gid_t supplementary, Ask &&ask) {
    return kit::in_child([&] {
        if (setgroups(supplementary ? 1 : 0, &supplementary) != 0 || setgid(group) != 0 ||
            setuid(user) != 0)
            _exit(99);
        Raw raw(s.place.socket());
        raw.hello();
        _exit(ask(raw));
    });
}

// For ATTACH: the status, or 100 + access.
int attach_as(const Served &s, uid_t user, gid_t group, const wire::Writer &request,
              gid_t supplementary = 0) {
    return status_as(s, user, group, supplementary, [&](Raw &raw) {
        const kit::Answer a = raw.call(wire::kAttach, request);
        if (a.header.status != SAC_OK)
            return static_cast<int>(a.header.status);
        const auto n = a.as<wire::AttachReply>();
        const int mode = fcntl(a.fds.at(2).get(), F_GETFL) & O_ACCMODE;
        if ((mode == O_RDWR) != (n.access == 3) || fcntl(a.fds[0].get(), F_GETFL) & O_RDWR)
            return 98;
        // What was given to read is not opened anew to write.
        for (std::size_t i = 0; i < a.fds.size(); ++i) {
            const std::string again = "/proc/self/fd/" + std::to_string(a.fds[i].get());
            if (open(again.c_str(), O_RDWR) >= 0)
                return 97;
        }
        return static_cast<int>(100 + n.access);
    });
}

bool root() {
    if (geteuid() == 0)
        return true;
    std::printf("not root: skipped\n");
    return false;
}

TEST(owner_group_and_others) {
    if (!root())
        return;
    const Served s;
    const auto create = [](const char *name, std::uint32_t mode) {
        return kit::attach_request("p", name, wire::kCreate, kLayout, mode);
    };
    CHECK_EQ(attach_as(s, kAnn, kStaff, create("private", 0600)), 103);
    CHECK_EQ(attach_as(s, kAnn, kStaff, create("group", 0640)), 103);
    CHECK_EQ(attach_as(s, kAnn, kStaff, create("all", 0664)), 103);
    const auto open = [](const char *name) { return kit::attach_request("p", name, 0); };
    CHECK_EQ(attach_as(s, kAnn, kOthers, open("private")), 103);
    CHECK_EQ(attach_as(s, kBob, kStaff, open("private")), int{SAC_E_ACCESS});
    CHECK_EQ(attach_as(s, kBob, kStaff, open("group")), 101);
    CHECK_EQ(attach_as(s, kBob, kOthers, open("group"), kStaff), 101);
    CHECK_EQ(attach_as(s, kBob, kOthers, open("group")), int{SAC_E_ACCESS});
    CHECK_EQ(attach_as(s, kBob, kOthers, open("all")), 101);
    CHECK_EQ(attach_as(s, kBob, kStaff, open("all")), 103);
    // It is not told how another's namespace looks.
    CHECK_EQ(attach_as(s, kBob, kOthers,
                       kit::attach_request("p", "private", wire::kCreate, kit::plain(8, 64))),
             int{SAC_E_ACCESS});
}

TEST(creators_only) {
    if (!root())
        return;
    const Served s(kStaff);
    const auto create = kit::attach_request("p", "new", wire::kCreate, kLayout, 0666);
    CHECK_EQ(attach_as(s, kBob, kOthers, create), int{SAC_E_ACCESS});
    CHECK_EQ(attach_as(s, kBob, kOthers, create, kStaff), 103);
    CHECK_EQ(attach_as(s, kAnn, kOthers, create), 103);  // there by now
}

TEST(dropping_needs_write_access) {
    if (!root())
        return;
    const Served s;
    CHECK_EQ(
        attach_as(s, kAnn, kStaff, kit::attach_request("p", "n", wire::kCreate, kLayout, 0644)),
        103);
    const int status = status_as(s, kBob, kOthers, 0, [](Raw &raw) {
        wire::DropRequest d{};
        wire::set_name(d.pool, sizeof d.pool, "p", "pool");
        wire::set_name(d.name, sizeof d.name, "n", "name");
        return static_cast<int>(raw.call(wire::kDrop, wire::Writer().add(d)).header.status);
    });
    CHECK_EQ(status, int{SAC_E_ACCESS});
}

}  // namespace
