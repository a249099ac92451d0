// SPDX-License-Identifier: Apache-2.0
// A daemon (daemon_child) in a process of its own, over one pool in memory of the machine.
#pragma once

#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <string>

#include "kit.hpp"

namespace kit {

class DaemonProcess {
public:
    explicit DaemonProcess(std::uint64_t data_bytes) {
        std::string name = "/dev/shm/sac-test-XXXXXX";
        if (!mkdtemp(name.data())) {
            throw std::runtime_error("mkdtemp " + name);
        }
        root_ = name;
        mkdir((root_ + "/pools").c_str(), 0700);
        mkdir((root_ + "/pools/p").c_str(), 0700);
        format("meta", 48 * kMiB, "data.0", data_bytes + 2 * kMiB);
        start();
    }
    ~DaemonProcess() {
        kill();
        for (const char *folder :
             {"/pools/p", "/run/losses", "/run/roster", "/run/tables", "/run"}) {
            Directory::empty(root_ + folder);
            rmdir((root_ + folder).c_str());
        }
        rmdir((root_ + "/pools").c_str());
        Directory::empty(root_);
        rmdir(root_.c_str());
    }
    DaemonProcess(const DaemonProcess &) = delete;
    DaemonProcess &operator=(const DaemonProcess &) = delete;

    std::string socket() const { return root_ + "/sock"; }

    // stop: of SAC_STOP_AT.
    void start(const char *stop = nullptr) {
        int in[2], out[2];
        if (pipe2(in, O_CLOEXEC) != 0 || pipe2(out, O_CLOEXEC) != 0) {
            throw std::runtime_error("pipe");
        }
        // Made before the fork: the child of a process with threads may not allocate.
        const std::string root = root_;
        const std::string environment = std::string("SAC_STOP_AT=") + (stop ? stop : "none:1");
        pid_ = fork();
        if (pid_ == 0) {
            dup2(in[0], 0);
            dup2(out[1], 1);
            putenv(const_cast<char *>(environment.c_str()));
            execl(SAC_DAEMON_CHILD, "daemon_child", root.c_str(), static_cast<char *>(nullptr));
            _exit(127);
        }
        close(in[0]);
        close(out[1]);
        commands_ = in[1];
        char said[64] = "";
        const ssize_t n = read(out[0], said, sizeof said - 1);
        close(out[0]);
        if (n <= 0 || said[0] != 'o') {
            throw std::runtime_error(std::string("the daemon says ") + said);
        }
    }
    void kill() {
        if (pid_ > 0) {
            ::kill(pid_, SIGKILL);
            (void)wait();
        }
    }
    // What ended it.
    int wait() {
        int status = 0;
        waitpid(pid_, &status, 0);
        close(commands_);
        pid_ = -1;
        return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
    }

    PoolHandle connect(std::uint64_t reconnect_ms = 60000) const {
        sac_connect_options o{};
        o.struct_size = sizeof o;
        const std::string path = socket();
        o.socket = path.c_str();
        o.reconnect_ms = reconnect_ms;
        sac_pool *pool = nullptr;
        must(sac_pool_connect(&o, &pool), "sac_pool_connect");
        return PoolHandle(pool);
    }

private:
    void format(const char *meta, std::uint64_t meta_bytes, const char *data,
                std::uint64_t data_bytes) const {
        const auto file = [&](const char *name, std::uint64_t bytes) {
            const std::string path = root_ + "/pools/p/" + name;
            const int fd = open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600);
            if (fd < 0 || ftruncate(fd, static_cast<off_t>(bytes)) != 0) {
                throw std::runtime_error(path);
            }
            return fd;
        };
        sac_extent_fd extent{file(data, data_bytes), 0, 0, data};
        sac_open_options o{};
        o.struct_size = sizeof o;
        o.flags = SAC_POOL_FORMAT;
        o.meta = {file(meta, meta_bytes), 0, 0, meta};
        o.data = &extent, o.data_count = 1;
        sac_pool *pool = nullptr;
        const int status = sac_pool_open_fds(&o, &pool);
        close(extent.fd);
        close(o.meta.fd);
        must(status, "sac_pool_open_fds");
        sac_pool_close(pool);
    }

    std::string root_;
    pid_t pid_ = -1;
    int commands_ = -1;
};

}  // namespace kit
