// SPDX-License-Identifier: Apache-2.0
// A daemon to be killed: serves the pools that lie in ROOT/pools, with ROOT/run and ROOT/sock,
// until stdin ends. tests/system/mini_daemon.py starts it in its own place.
//   daemon_child ROOT
#include <dirent.h>
#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <string>
#include <vector>

#include "kit.hpp"
#include "sac_server.h"

namespace {

std::vector<std::string> files_of(const std::string &path) {
    std::vector<std::string> out;
    DIR *const dir = opendir(path.c_str());
    while (const dirent *const entry = dir ? readdir(dir) : nullptr) {
        if (entry->d_name[0] != '.') {
            out.emplace_back(entry->d_name);
        }
    }
    if (dir) {
        closedir(dir);
    }
    std::sort(out.begin(), out.end());
    return out;
}

kit::PoolHandle open_pool(const std::string &path) {
    std::vector<std::string> names{path + "/meta"};
    for (const std::string &file : files_of(path)) {
        if (file.starts_with("data.")) {
            names.push_back(path + '/' + file);
        }
    }
    std::vector<sac_extent_fd> extents;
    for (const std::string &name : names) {
        extents.push_back({open(name.c_str(), O_RDWR | O_CLOEXEC), 0, 0, name.c_str()});
    }
    sac_open_options o{};
    o.struct_size = sizeof o;
    o.flags = SAC_POOL_SHARED;
    o.meta = extents[0];
    o.data = extents.data() + 1, o.data_count = static_cast<std::uint32_t>(names.size() - 1);
    sac_pool *pool = nullptr;
    const int status = sac_pool_open_fds(&o, &pool);
    for (const sac_extent_fd &e : extents) {
        close(e.fd);
    }
    kit::must(status, path.c_str());
    return kit::PoolHandle(pool);
}

void serve(const std::string &root) {
    const std::string run = root + "/run", socket = root + "/sock";
    mkdir(run.c_str(), 0700);
    sac_server_options o{};
    o.struct_size = sizeof o;
    o.socket_mode = 0666, o.socket_gid = UINT32_MAX, o.creators_gid = UINT32_MAX;
    o.socket_path = socket.c_str(), o.run_dir = run.c_str(), o.listen_fd = -1;
    sac_server *server = nullptr;
    MUST(sac_server_open(&o, &server));
    std::vector<kit::PoolHandle> pools;
    for (const std::string &name : files_of(root + "/pools")) {
        pools.push_back(open_pool(root + "/pools/" + name));
        MUST(sac_server_add_pool(server, name.c_str(), pools.back().get()));
    }
    MUST(sac_server_serve(server));
    std::printf("ok %d\n", static_cast<int>(getpid()));
    std::fflush(stdout);
    char line[256];
    while (std::fgets(line, sizeof line, stdin)) {
        std::printf("error: this one only serves\n");
        std::fflush(stdout);
    }
    MUST(sac_server_stop(server));
    MUST(sac_server_close(server));
}

}  // namespace

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: daemon_child ROOT\n");
        return 2;
    }
    try {
        serve(argv[1]);
    } catch (const std::exception &error) {
        std::printf("error %s\n", error.what());
        return 1;
    }
    return 0;
}
