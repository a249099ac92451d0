// SPDX-License-Identifier: Apache-2.0
// DAX devices themselves, which only a machine with CXL memory has: SAC_DAX_DEVICES names them,
// the metadata's first: /dev/dax0.1:/dev/dax0.0[:...]. Their contents are lost. Without it the
// test is about what needs no device.
#include "dax.hpp"

#include "check.hpp"
#include "extent_kit.hpp"
#include "served.hpp"

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }
using kit::kMiB;

std::vector<std::string> devices() {
    std::vector<std::string> out;
    const char *const text = std::getenv("SAC_DAX_DEVICES");
    for (std::string rest = text ? text : ""; !rest.empty();) {
        const std::size_t end = std::min(rest.find(':'), rest.size());
        out.push_back(rest.substr(0, end));
        rest.erase(0, end + 1);
    }
    return out;
}

kit::Extents opened() {
    kit::Extents e;
    for (const std::string &path : devices())
        e.add(sac::Fd(open(path.c_str(), O_RDWR | O_CLOEXEC)), path);
    return e;
}

bool none() { return devices().size() < 2; }

}  // namespace

TEST(other_devices_are_refused) {
    for (const char *path : {"/dev/null", "/dev/zero"}) {
        const sac::Fd fd(open(path, O_RDWR | O_CLOEXEC));
        CHECK_THROWS(SAC_E_ARG, sac::dax_device(fd.get(), path));
    }
    for (const std::uint64_t align : {std::uint64_t{2} << 20, std::uint64_t{1} << 30})
        CHECK(sac::dax_align(align));
    for (const std::uint64_t align : {std::uint64_t{0}, std::uint64_t{4096},
                                      std::uint64_t{3} << 20, std::uint64_t{2} << 30})
        CHECK(!sac::dax_align(align));
}

TEST(a_pool_on_devices) {
    if (none())
        return;
    const kit::Extents e = opened();
    for (std::size_t i = 0; i < e.fds.size(); ++i) {
        const sac::Dax dax = sac::dax_device(e.fds[i].get(), e.names[i]);
        CHECK(dax.bytes >= 2 * dax.align || dax.bytes >= 4 * kMiB);
        // As another owner left it.
        sac::Mapping m([&] {
            std::vector<sac::Extent> one(1);
            one[0].fd = sac::Fd(dup(e.fds[i].get()));
            one[0].bytes = dax.bytes, one[0].align = dax.align, one[0].name = e.names[i];
            return one;
        }());
        std::memset(m.data(), 0xA5, std::min(dax.bytes, 64 * kMiB));
        m.check_alive(0, dax.bytes);
    }
    kit::PoolHandle pool;
    CHECK_EQ(e.open(pool, 0), as_int(SAC_E_CORRUPT));
    pool = e.pool(SAC_POOL_FORMAT);
    CHECK_EQ(kit::info(pool).page_size_obtained % (2 * kMiB), 0u);
    const auto k = kit::keys(0, 64);
    const auto layout = kit::plain(16, 4096);
    {
        const auto ns = kit::space(pool, "ns", layout);
        CHECK_EQ(kit::put(ns, k), 64u);
        CHECK(kit::intact(ns, kit::pin(ns, k), k));
    }
    // flock works on devices: who opens it a second time is told.
    kit::PoolHandle other;
    CHECK_EQ(opened().open(other, 0), as_int(SAC_E_BUSY));
    pool.reset();
    pool = e.pool(SAC_POOL_PREFAULT);
    CHECK_EQ(kit::longest(kit::space(pool, "ns", layout), k), 64u);
    pool.reset();
    // Read only: refused, as is one device twice.
    kit::Extents bad;
    bad.add(sac::Fd(open(e.names[0].c_str(), O_RDONLY | O_CLOEXEC)), e.names[0]);
    bad.add(sac::Fd(dup(e.fds[1].get())), e.names[1]);
    CHECK_EQ(bad.open(pool, 0), as_int(SAC_E_ARG));
    // A new pool over the old one.
    pool = e.pool(SAC_POOL_FORMAT);
    CHECK_EQ(kit::info(pool).namespaces, 0u);
}

TEST(devices_are_cleared) {
    if (none())
        return;
    const kit::Extents e = opened();
    const sac_extent_fd x{e.fds[1].get(), 0, 0, e.names[1].c_str()};
    const sac::Dax dax = sac::dax_device(x.fd, x.name);
    const std::uint64_t some = std::min(dax.bytes, 8 * kMiB);
    MUST(sac_scrub(&x, 0, some, nullptr, nullptr));
    void *const at = mmap(nullptr, dax.align, PROT_READ, MAP_SHARED, x.fd, 0);
    CHECK(at != MAP_FAILED);
    const auto *const p = static_cast<const std::uint8_t *>(at);
    CHECK(std::all_of(p, p + std::min(some, dax.align), [](auto b) { return b == 0; }));
    munmap(at, dax.align);
    // Part of a page, and nothing beside it.
    CHECK_EQ(sac_scrub(&x, dax.bytes, 1, nullptr, nullptr), as_int(SAC_E_RANGE));
}

TEST(clients_map_devices) {
    if (none())
        return;
    const kit::Extents e = opened();
    const kit::PoolHandle pool = e.pool(SAC_POOL_FORMAT | SAC_POOL_SHARED);
    const kit::Place place;
    const kit::ServerHandle server = place.server();
    MUST(sac_server_add_pool(server.get(), "p", pool.get()));
    MUST(sac_server_serve(server.get()));
    const std::string socket = place.socket();
    sac_connect_options o{};
    o.struct_size = sizeof o;
    o.socket = socket.c_str(), o.timeout_ms = 10000;
    sac_pool *out = nullptr;
    MUST(sac_pool_connect(&o, &out));
    const kit::PoolHandle client(out);
    const auto k = kit::keys(0, 64);
    const auto ns = kit::space(client, "n", kit::plain(16, 4096));
    CHECK_EQ(kit::put(ns, k), 64u);
    CHECK(kit::intact(ns, kit::pin(ns, k), k));
    // Who may only read is given an fd that cannot do more.
    const sac::Dax dax = sac::dax_device(e.fds[1].get(), e.names[1]);
    std::vector<sac::Extent> one(1);
    one[0].fd = sac::Fd(open(e.names[1].c_str(), O_RDONLY | O_CLOEXEC));
    one[0].bytes = dax.bytes, one[0].align = dax.align, one[0].name = e.names[1];
    const sac::Mapping reader(std::move(one), false);
    CHECK(std::memcmp(reader.data(), "SACPOOL", 8) == 0 ||
          std::memcmp(reader.data() + 4096, "SACPOOL", 8) == 0);
    reader.check_alive(0, dax.bytes);
}

namespace {

// Writes the device's name into a file of its driver; the errno, or 0.
int driver(const std::string &path, const char *file) {
    const std::string name = path.substr(path.rfind('/') + 1);
    const std::string to = std::string("/sys/bus/dax/drivers/device_dax/") + file;
    const sac::Fd fd(open(to.c_str(), O_WRONLY | O_CLOEXEC));
    return write(fd.get(), name.data(), name.size()) == static_cast<ssize_t>(name.size())
               ? 0
               : errno;
}

sac::Fd soon_open(const std::string &path) {
    for (int i = 0; i < 500; ++i) {
        const int fd = open(path.c_str(), O_RDWR | O_CLOEXEC);
        if (fd >= 0)
            return sac::Fd(fd);
        usleep(10000);
    }
    throw std::runtime_error("no " + path);
}

}  // namespace

TEST(a_device_that_goes_while_it_is_mapped) {
    if (none())
        return;
    kit::Extents e = opened();
    kit::PoolHandle pool = e.pool(SAC_POOL_FORMAT);
    const auto layout = kit::plain(16, 4096);
    auto ns = kit::space(pool, "ns", layout);
    const auto k = kit::keys(0, 64);
    CHECK_EQ(kit::put(ns, k), 64u);
    kit::PrefixHandle prefix = kit::pin(ns, k);
    std::vector<std::uint8_t> row;
    MUST(kit::gather_row(ns, prefix, 3, row));
    CHECK_EQ(driver(e.names[1], "unbind"), 0);
    // The kernel tears the mapping down: each touch is a SIGBUS from now on.
    CHECK_EQ(kit::gather_row(ns, prefix, 3, row), as_int(SAC_E_MEDIA));
    CHECK(std::strstr(sac_last_error()->object, e.names[1].c_str()) != nullptr);
    MUST(sac_pool_lose(pool.get(), 0, nullptr));
    CHECK_EQ(kit::longest(ns, k), 0u);
    kit::PutHandle put;
    CHECK_EQ(kit::begin(ns, k, put), as_int(SAC_E_MEDIA));
    // Opened while no driver has it: the caller's ENXIO.
    const int unbound = open(e.names[1].c_str(), O_RDWR | O_CLOEXEC);
    CHECK(unbound < 0);
    // Nobody may have the device open when a driver takes it again: the kernel would count
    // the old file's references on the new device.
    put.reset(), prefix.reset(), ns.reset(), pool.reset();
    e.fds.clear();
    CHECK_EQ(driver(e.names[1], "bind"), 0);
    kit::Extents back;
    for (const std::string &path : e.names)
        back.add(soon_open(path), path);
    pool = back.pool();
    ns = kit::space(pool, "ns", layout);
    CHECK_EQ(kit::longest(ns, k), 0u);
    CHECK_EQ(kit::put(ns, k), 64u);
    CHECK(kit::intact(ns, kit::pin(ns, k), k));
}
