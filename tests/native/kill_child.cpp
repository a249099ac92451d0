// SPDX-License-Identifier: Apache-2.0
// A process to be killed: it works on a pool and says on stdout what was acknowledged.
//   kill_child POOL_DIR SEED PAGES   until so many pages are committed; a stop point named in
//                                    SAC_STOP_AT=point:n ends it earlier
//   kill_child --connect SOCKET SEED PAGES   the same on a daemon's only pool
//   kill_child --check POOL_DIR      recovers the pool and says what is there
//   kill_child --points              the stop points there are
//   kill_child --count POOL_DIR      at least how often SEED 1 passes each point
// Lines: "page NS KEY PART GENERATION SEED" committed; "gone NS KEY PART GENERATION" evicted;
// "may BODIES TAILS" the next operation evicts at most so many; "dropping NS", "dropped NS".
#include <sys/wait.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdarg>
#include <cstdio>
#include <map>

#include "error.hpp"
#include "kill_layout.hpp"

namespace {

using kit::mix;

// One line, out at once: a killed process keeps no buffer.
[[gnu::format(printf, 1, 2)]] void say(const char *format, ...) {
    char line[512];
    va_list args;
    va_start(args, format);
    const int n = std::vsnprintf(line, sizeof line - 1, format, args);
    va_end(args);
    line[n] = '\n';
    if (write(STDOUT_FILENO, line, static_cast<std::size_t>(n) + 1) != n + 1) {
        _exit(4);
    }
}

std::string hex(const std::uint8_t *key) {
    std::string out;
    char two[3];
    for (int i = 0; i < SAC_KEY_BYTES; ++i) {
        std::snprintf(two, sizeof two, "%02x", key[i]);
        out += two;
    }
    return out;
}

[[noreturn]] void wrong(const char *what) {
    say("wrong %s", what);
    _exit(3);
}

class Worker {
public:
    Worker(kit::PoolHandle pool, std::uint64_t seed)
        : pool_(std::move(pool)), state_(mix(seed)) {
        const sac_pool_info i = kit::info(pool_);
        say("open %" PRIu64 " %u", i.incarnation, i.recovered);
        main_ = open("main", doomed::main_layout(), doomed::kQuota);
    }

    void run(std::uint64_t pages) {
        while (stored_ < pages) {
            const std::uint64_t what = random(100);
            if (what < 45) {
                put(true);
            } else if (what < 55) {
                read();
            } else if (what < 72) {
                sequence();
            } else if (what < 80) {
                const std::uint64_t n = 1 + random(3);
                say("may %" PRIu64 " %" PRIu64, n, 2 * n);
                kit::evict(main_, n);
            } else if (what < 88) {
                put(false);
            } else {
                other();
            }
            drain("main", main_);
        }
        say("end");
    }

private:
    std::uint64_t random(std::uint64_t below) { return mix(state_++) % below; }

    kit::NsHandle open(const char *name, const kit::Layout &layout, std::uint64_t quota) {
        kit::NsHandle ns = kit::space(pool_, name, layout, quota, SAC_NS_DATA_CHECKSUM);
        std::uint64_t none = 0;
        next_[name] = UINT64_MAX;
        MUST(sac_events(ns.get(), &next_[name], nullptr, &none, nullptr));
        return ns;
    }

    void drain(const char *name, const kit::NsHandle &ns) {
        for (std::uint64_t n = 1; n != 0;) {
            sac_event e[64];
            std::uint64_t lost = 0;
            n = 64;
            MUST(sac_events(ns.get(), &next_[name], e, &n, &lost));
            if (lost != 0) {
                wrong("events lost");
            }
            for (std::uint64_t i = 0; i < n; ++i) {
                if (e[i].kind == SAC_EVENT_STORED) {
                    ++stored_;
                    say("page %s %s %u %" PRIu64 " %" PRIu64, name, hex(e[i].key).c_str(),
                        e[i].part, e[i].handle.generation, kit::seed_of(e[i].key));
                } else {
                    say("gone %s %s %u %" PRIu64, name, hex(e[i].key).c_str(), e[i].part,
                        e[i].handle.generation);
                }
            }
        }
    }

    std::vector<std::uint8_t> keys(const kit::NsHandle &ns,
                                   const std::vector<std::uint32_t> &tokens) {
        std::vector<std::uint8_t> out(tokens.size() / doomed::kPageTokens * SAC_KEY_BYTES);
        MUST(sac_keys(ns.get(), tokens.data(), tokens.size(), "s", 1, nullptr, out.data()));
        return out;
    }

    void put(bool commit) {
        const auto k = keys(main_, doomed::chain(random(doomed::kChains), 1 + random(6)));
        const std::uint64_t n = k.size() / SAC_KEY_BYTES;
        say("may %" PRIu64 " %" PRIu64, n, n + 2);
        kit::PutHandle put;
        must_or_full(kit::begin(main_, k, put));
        if (put && commit) {
            MUST(kit::write_missing(put.get(), main_->it->geometry(), k.data()));
            MUST(sac_put_commit(put.get(), nullptr));
        }
    }

    void read() {
        const auto k = keys(main_, doomed::chain(random(doomed::kChains), 6));
        const kit::PrefixHandle prefix = kit::pin(main_, k);
        if (!kit::intact(main_, prefix, k)) {
            wrong("foreign bytes in a pinned page");
        }
    }

    void sequence() {
        const auto tokens = doomed::chain(random(doomed::kChains), 6);
        const auto k = keys(main_, tokens);
        sac_seq *raw = nullptr;
        MUST(sac_seq_open(main_.get(), tokens.data(), tokens.size(), "s", 1, &raw));
        const kit::SeqHandle seq(raw);
        std::uint64_t have = 0;
        MUST(sac_prefix_tokens(sac_seq_view(raw), &have));
        for (std::uint64_t pages = 1 + random(3); have < tokens.size() && pages > 0; --pages) {
            say("may 1 2");
            if (!must_or_full(
                    sac_seq_extend(raw, tokens.data() + have, doomed::kPageTokens, 0))) {
                break;
            }
            const std::uint64_t page = have / doomed::kPageTokens;
            const sac::Geometry &g = main_->it->geometry();
            kit::each_pair(g, [&](std::uint32_t p, std::uint32_t l) {
                const auto rows =
                    kit::page_rows(g, kit::seed_of(k.data() + page * SAC_KEY_BYTES), p, l);
                const sac_scatter_req req{p,
                                          l,
                                          page * g.at[p].rows,
                                          g.at[p].rows,
                                          rows.data(),
                                          0,
                                          std::uint64_t{g.at[p].rows} * g.planes[p].row_bytes,
                                          0};
                MUST(sac_seq_write(raw, &req, 1, 1));
            });
            have += doomed::kPageTokens;
            MUST(sac_seq_flush(raw, nullptr));
            drain("main", main_);
        }
    }

    // A second namespace comes, is filled and goes: its slabs are scrubbed for the next.
    void other() {
        kit::NsHandle ns = open("other", doomed::other_layout(), 0);
        const auto k = kit::keys(random(1000), 1 + random(2));
        say("may 0 0");
        kit::PutHandle put;
        if (must_or_full(kit::begin(ns, k, put))) {
            MUST(kit::write_missing(put.get(), ns->it->geometry(), k.data()));
            MUST(sac_put_commit(put.get(), nullptr));
        }
        drain("other", ns);
        put.reset();
        ns.reset();
        say("dropping other");
        MUST(sac_pool_drop(pool_.get(), "other"));
        say("dropped other");
    }

    bool must_or_full(int status) {
        if (status != SAC_E_NO_SPACE) {
            kit::must(status, "an operation");
        }
        return status == SAC_OK;
    }

    kit::PoolHandle pool_;
    kit::NsHandle main_;
    std::map<std::string, std::uint64_t> next_;
    std::uint64_t state_, stored_ = 0;
};

kit::PoolHandle connect(const char *socket) {
    sac_connect_options o{};
    o.struct_size = sizeof o;
    o.socket = socket;
    o.timeout_ms = 10000, o.reconnect_ms = 60000;
    sac_pool *pool = nullptr;
    MUST(sac_pool_connect(&o, &pool));
    return kit::PoolHandle(pool);
}

int count(const char *self, const std::string &base) {
    for (const char *point : doomed::kPoints) {
        int passes = 0;
        for (int n = 1; n <= 4096; n *= 2) {
            kit::Directory::empty(base);
            const pid_t child = fork();
            if (child == 0) {
                setenv("SAC_STOP_AT", (std::string(point) + ':' + std::to_string(n)).c_str(),
                       1);
                if (!freopen("/dev/null", "w", stdout)) {
                    _exit(4);
                }
                execl(self, self, base.c_str(), "1", "400", static_cast<char *>(nullptr));
                _exit(127);
            }
            int status = 0;
            if (waitpid(child, &status, 0) != child || !WIFSIGNALED(status)) {
                break;
            }
            passes = n;
        }
        say("%s %d", point, passes);
    }
    return 0;
}

int check(const char *dir) {
    kit::PoolHandle pool;
    MUST(kit::open_pool(pool, 0, dir, 0, SAC_POOL_OPEN));
    const sac_pool_info i = kit::info(pool);
    say("open %" PRIu64 " %u", i.incarnation, i.recovered);
    std::uint64_t assigned = 0;
    for (const std::string &name : pool->it->names()) {
        const doomed::State s = doomed::look(pool, name.c_str());
        for (const doomed::Page &p : s.pages) {
            say("page %s %s %u %" PRIu64 " %s", name.c_str(), hex(p.key.data()).c_str(), p.part,
                p.generation, p.intact ? "intact" : "damaged");
        }
        say("slots %s %" PRIu64 " %" PRIu64 " %" PRIu64, name.c_str(), s.slots,
            static_cast<std::uint64_t>(s.pages.size()), s.reservable);
        assigned += s.assigned_bytes;
    }
    say("slabs %" PRIu64 " %" PRIu64 " %" PRIu64, i.data_bytes / i.slab_bytes,
        i.free_bytes / i.slab_bytes, assigned / i.slab_bytes);
    return 0;
}

}  // namespace

int main(int argc, char **argv) {
    try {
        const std::string first = argc > 1 ? argv[1] : "";
        if (first == "--points") {
            for (const char *point : doomed::kPoints) {
                say("%s", point);
            }
            return 0;
        }
        if (argc == 3 && first == "--check") {
            return check(argv[2]);
        }
        if (argc == 3 && first == "--count") {
            return count(argv[0], argv[2]);
        }
        if (argc == 5 && first == "--connect") {
            Worker(connect(argv[2]), std::strtoull(argv[3], nullptr, 0))
                .run(std::strtoull(argv[4], nullptr, 0));
            return 0;
        }
        if (argc != 4) {
            std::fprintf(stderr,
                         "usage: kill_child POOL_DIR SEED PAGES | --connect SOCKET SEED "
                         "PAGES | --check POOL_DIR | --points | --count POOL_DIR\n");
            return 2;
        }
        Worker(kit::pool(doomed::kPoolBytes, argv[1]), std::strtoull(argv[2], nullptr, 0))
            .run(std::strtoull(argv[3], nullptr, 0));
        return 0;
    } catch (const std::exception &error) {
        std::fprintf(stderr, "kill_child: %s\n", error.what());
        return 1;
    }
}
