// SPDX-License-Identifier: Apache-2.0
#include "roster.hpp"

#include <dirent.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>

#include "error.hpp"
#include "kernel.hpp"
#include "roster_files.hpp"
#include "stop.hpp"

namespace sac {

namespace {

Fd folder(int parent, const char *name, const std::string &path) {
    if (::mkdirat(parent, name, 0700) != 0 && errno != EEXIST)
        throw_errno(path, "cannot make the folder");
    const int fd = ::openat(parent, name, O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        throw_errno(path, "cannot open the folder");
    return Fd(fd);
}

std::vector<std::string> list(const Fd &directory, const std::string &path) {
    const int again = ::openat(directory.get(), ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    DIR *const raw = again < 0 ? nullptr : ::fdopendir(again);
    if (!raw) {
        const int number = errno;
        if (again >= 0)
            ::close(again);
        errno = number;
        throw_errno(path, "cannot read the folder");
    }
    const auto end = [](DIR *d) { ::closedir(d); };
    const std::unique_ptr<DIR, decltype(end)> dir(raw, end);
    std::vector<std::string> out;
    while (const dirent *const e = ::readdir(dir.get()))
        if (std::strcmp(e->d_name, ".") != 0 && std::strcmp(e->d_name, "..") != 0)
            out.emplace_back(e->d_name);
    return out;
}

}  // namespace

Id random_id() {
    Id id;
    random_bytes(id.data(), id.size());
    return id;
}

Roster::Roster(const std::string &directory) : directory_(directory) {
    read_boot_id(boot_.data());
    const int raw = ::open(directory.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    if (raw < 0)
        throw_errno(directory, "cannot open the run directory");
    const Fd base(raw);
    struct stat st{};
    if (::fstat(base.get(), &st) != 0)
        throw_errno(directory, "cannot look at the run directory");
    if (st.st_uid != ::geteuid() || (st.st_mode & 022) != 0)
        throw Error(SAC_E_ACCESS, directory,
                    format("%s: owner %u, mode %04o: the run directory must belong to this "
                           "process's user (%u), and nobody else may write to it",
                           directory.c_str(), st.st_uid, st.st_mode & 07777u, ::geteuid()));
    const int lock =
        ::openat(base.get(), "lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (lock < 0)
        throw_errno(directory + "/lock", "cannot open the file");
    lock_ = Fd(lock);
    if (::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        if (errno != EWOULDBLOCK)
            throw_errno(directory + "/lock", "cannot lock the file");
        char text[32] = "";
        if (::pread(lock_.get(), text, sizeof text - 1, 0) <= 0)
            std::strcpy(text, "?");
        text[std::strcspn(text, "\n")] = '\0';
        throw Error(SAC_E_BUSY, directory,
                    format("%s: the daemon with process number %s serves here already",
                           directory.c_str(), text));
    }
    const std::string pid = format("%d\n", ::getpid());
    if (::ftruncate(lock_.get(), 0) != 0 ||
        ::pwrite(lock_.get(), pid.data(), pid.size(), 0) != static_cast<ssize_t>(pid.size()))
        throw_errno(directory + "/lock", "cannot write the file");
    clients_ = folder(base.get(), "roster", directory + "/roster");
    tables_ = folder(base.get(), "tables", directory + "/tables");
    losses_ = folder(base.get(), "losses", directory + "/losses");
}

void Roster::load(std::vector<Client> &clients, std::vector<Table> &tables) {
    clients.clear(), tables.clear();
    for (const std::string &name : list(clients_, directory_ + "/roster")) {
        Client client;
        if (read_client(clients_.get(), name, boot_, client))
            clients.push_back(std::move(client));
        else
            ::unlinkat(clients_.get(), name.c_str(), 0);
    }
    std::sort(clients.begin(), clients.end(),
              [](const Client &a, const Client &b) { return a.id < b.id; });
    for (const std::string &name : list(tables_, directory_ + "/tables")) {
        Table table;
        const bool known = parse_table(name, table) &&
                           std::binary_search(clients.begin(), clients.end(), table,
                                              [](const auto &a, const auto &b) {
                                                  if constexpr (requires { a.id; })
                                                      return a.id < b.client;
                                                  else
                                                      return a.client < b.id;
                                              });
        if (known)
            tables.push_back(table);
        else
            ::unlinkat(tables_.get(), name.c_str(), 0);
    }
}

void Roster::write(const Client &client) {
    const std::string name = hex(client.id), temporary = name + ".new";
    const std::string path = directory_ + "/roster/" + name;
    write_client(clients_.get(), temporary, boot_, client, path);
    SAC_STOP("roster.written");
    if (::renameat(clients_.get(), temporary.c_str(), clients_.get(), name.c_str()) != 0)
        throw_errno(path, "cannot put the client's record in its place");
}

void Roster::remove(const Id &client) noexcept {
    ::unlinkat(clients_.get(), hex(client).c_str(), 0);
}

Fd Roster::create(const Table &table, std::uint64_t bytes) {
    const std::string name = table_file(table);
    const int fd = ::openat(tables_.get(), name.c_str(),
                            O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        throw_errno(directory_ + "/tables/" + name, "cannot make the table's file");
    Fd file(fd);
    int number = 0;
    do {
        number = ::fallocate(fd, 0, 0, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    } while (number == EINTR);
    if (number == EOPNOTSUPP)  // such a file system gives it when it is touched
        number = ::ftruncate(fd, static_cast<off_t>(bytes)) == 0 ? 0 : errno;
    if (number != 0) {
        ::unlinkat(tables_.get(), name.c_str(), 0);
        errno = number;
        throw_errno(directory_ + "/tables/" + name, "cannot make room for the table");
    }
    return file;
}

Fd Roster::open(const Table &table) const {
    const std::string name = table_file(table);
    const int fd = ::openat(tables_.get(), name.c_str(), O_RDWR | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        throw_errno(directory_ + "/tables/" + name, "cannot open the table's file");
    return Fd(fd);
}

void Roster::remove(const Table &table) noexcept {
    ::unlinkat(tables_.get(), table_file(table).c_str(), 0);
}

namespace {

// A file's name; a pool's may hold what a file's may not.
std::string file_of(const std::string &pool) {
    std::string out;
    for (const char c : pool)
        out += format("%02x", static_cast<unsigned char>(c));
    return out;
}

}  // namespace

std::uint32_t Roster::losses(const std::string &pool) const noexcept {
    char text[16] = "";
    const int fd =
        ::openat(losses_.get(), file_of(pool).c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
    if (fd < 0)
        return 0;
    const ssize_t n = ::read(fd, text, sizeof text - 1);
    ::close(fd);
    return n > 0 ? static_cast<std::uint32_t>(std::strtoul(text, nullptr, 10)) : 0;
}

void Roster::count_loss(const std::string &pool) {
    const std::string text = format("%u", losses(pool) + 1);
    const std::string name = file_of(pool), temporary = name + ".new";
    const std::string path = directory_ + "/losses/" + name;
    const int fd = ::openat(losses_.get(), temporary.c_str(),
                            O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        throw_errno(path, "cannot make the count of losses");
    const ssize_t n = ::write(fd, text.data(), text.size());
    ::close(fd);
    if (n != static_cast<ssize_t>(text.size()) ||
        ::renameat(losses_.get(), temporary.c_str(), losses_.get(), name.c_str()) != 0)
        throw_errno(path, "cannot write the count of losses");
}

}  // namespace sac
