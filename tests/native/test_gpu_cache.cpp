// SPDX-License-Identifier: Apache-2.0
// Compiling, and compiled kernels on disk: what is taken from there, and what is not.
#include <sys/stat.h>

#include <fstream>
#include <set>
#include <thread>

#include "check.hpp"
#include "gpu/kernel_cache.hpp"
#include "gpu/kernels.hpp"
#include "gpu/nvrtc.hpp"
#include "gpu_kit.hpp"
#include "sac_gpu.h"

using namespace sac::gpu;
namespace fs = std::filesystem;

namespace {

int as_int(sac_status s) { return static_cast<int>(s); }

struct Cache {
    Cache() {
        gpu_kit::use_fake();
        setenv("XDG_CACHE_HOME", folder.path.c_str(), 1);
    }
    fs::path kernels() const { return folder.path / "libsac" / "kernels"; }
    fs::path only() const {
        const fs::directory_iterator it(kernels());
        CHECK(it != fs::directory_iterator{});
        return it->path();
    }
    std::size_t files() const {
        std::size_t n = 0;
        for ([[maybe_unused]] const auto &entry : fs::directory_iterator(kernels()))
            ++n;
        return n;
    }
    gpu_kit::Folder folder;
};

KernelSpec spec(std::int64_t value) {
    KernelSpec s{"args.h", {}, "sm_90"};
    return s.define("VALUE", value);
}

// Whether a compilation took place.
bool compiles(const KernelSpec &s) {
    const long before = gpu_kit::get("compiles");
    const Compiled made = compile(s);
    CHECK(!made.cubin.empty());
    CHECK_EQ(made.cached, gpu_kit::get("compiles") == before);
    CHECK(gpu_kit::says(made.log, "ptxas info"));  // also from the cache
    CHECK(gpu_kit::says(reinterpret_cast<const char *>(made.cubin.data()),
                        s.macros.at(0).second.c_str()));
    return !made.cached;
}

mode_t mode_of(const fs::path &path) {
    struct stat s;
    CHECK_EQ(stat(path.c_str(), &s), 0);
    return s.st_mode & 0777;
}

std::string read(const fs::path &path) {
    std::ifstream in(path, std::ios::binary);
    return {std::istreambuf_iterator<char>(in), {}};
}
void write(const fs::path &path, const std::string &content) {
    std::ofstream(path, std::ios::binary | std::ios::trunc) << content;
}

}  // namespace

TEST(the_second_time_it_comes_from_the_cache) {
    const Cache cache;
    CHECK(compiles(spec(1)));
    CHECK(!compiles(spec(1)));
    CHECK(compiles(spec(2)));
    CHECK_EQ(cache.files(), 2u);
    CHECK_EQ(mode_of(cache.kernels()), 0700u);
    CHECK_EQ(mode_of(cache.folder.path / "libsac"), 0700u);
    CHECK_EQ(mode_of(cache.only()), 0600u);
    KernelSpec other = spec(1);
    other.arch = "sm_80";
    CHECK(compiles(other));
    other = spec(1);
    other.source = "common.cuh";  // the same headers, the same macros
    CHECK(compiles(other));
}

TEST(every_byte_of_an_entry_counts) {
    const Cache cache;
    CHECK(compiles(spec(1)));
    const fs::path file = cache.only();
    const std::string good = read(file);
    for (std::size_t i = 0; i < good.size(); i += i < 64 ? 1 : 37) {
        std::string bad = good;
        bad[i] = static_cast<char>(bad[i] ^ 0x10);
        write(file, bad);
        CHECK(compiles(spec(1)));
        CHECK_EQ(read(file), good);  // mended
    }
    for (const std::size_t length : {std::size_t{0}, std::size_t{55}, good.size() - 1}) {
        write(file, good.substr(0, length));
        CHECK(compiles(spec(1)));
    }
    write(file, good + 'x');
    CHECK(compiles(spec(1)));
    CHECK(!compiles(spec(1)));
    CHECK_EQ(cache.files(), 1u);
}

TEST(an_entry_under_another_key_is_not_taken) {
    const Cache cache;
    CHECK(compiles(spec(1)));
    const fs::path first = cache.only();
    const std::string content = read(first);
    fs::remove(first);
    CHECK(compiles(spec(2)));
    write(cache.only(), content);
    CHECK(compiles(spec(2)));
}

TEST(what_others_could_have_written_is_not_taken) {
    const Cache cache;
    CHECK(compiles(spec(1)));
    const fs::path file = cache.only();
    for (const mode_t mode : {0620u, 0602u, 0666u}) {
        CHECK_EQ(chmod(file.c_str(), mode), 0);
        CHECK(compiles(spec(1)));
        CHECK_EQ(mode_of(file), 0600u);  // a new file took its place
    }
    const fs::path elsewhere = cache.folder.path / "elsewhere";
    fs::rename(file, elsewhere);
    fs::create_symlink(elsewhere, file);
    CHECK(compiles(spec(1)));
    CHECK(!fs::is_symlink(file));
    fs::remove(file);
    CHECK_EQ(mkfifo(file.c_str(), 0600), 0);  // does not hang
    CHECK(compiles(spec(1)));
    if (geteuid() == 0) {
        CHECK_EQ(chown(file.c_str(), 12345, 12345), 0);
        CHECK(compiles(spec(1)));
        struct stat s;
        CHECK_EQ(stat(file.c_str(), &s), 0);
        CHECK_EQ(s.st_uid, geteuid());
    }
}

TEST(a_folder_of_others_is_not_used) {
    const Cache cache;
    CHECK(compiles(spec(1)));
    CHECK_EQ(chmod(cache.kernels().c_str(), 0770), 0);
    const Compiled made = compile(spec(1));
    CHECK(!made.cached);
    CHECK(gpu_kit::says(made.not_kept, "others can write to it"));
    CHECK_EQ(chmod(cache.kernels().c_str(), 0700), 0);
    if (geteuid() == 0) {
        CHECK_EQ(chown(cache.kernels().c_str(), 12345, 12345), 0);
        CHECK(compiles(spec(1)));
        CHECK(gpu_kit::says(compile(spec(1)).not_kept, "must be this user's"));
        CHECK_EQ(chown(cache.kernels().c_str(), 0, 0), 0);
    }
    fs::rename(cache.kernels(), cache.folder.path / "real");
    fs::create_directory_symlink(cache.folder.path / "real", cache.kernels());
    CHECK(!compile(spec(1)).cached);
}

TEST(no_folder_is_no_error) {
    const Cache cache;
    const gpu_kit::Folder other;
    write(other.path / "file", "");
    setenv("XDG_CACHE_HOME", (other.path / "file").c_str(), 1);
    const Compiled made = compile(spec(1));
    CHECK(!made.cached && !made.cubin.empty());
    CHECK(gpu_kit::says(made.not_kept, "Not a directory"));
    // A relative path is to be ignored.
    setenv("XDG_CACHE_HOME", "relative", 1);
    setenv("HOME", other.path.c_str(), 1);
    CHECK_EQ(KernelCache::default_folder(), other.path.string() + "/.cache/libsac/kernels");
    CHECK(compiles(spec(1)));
    CHECK(!compiles(spec(1)));
    unsetenv("XDG_CACHE_HOME"), unsetenv("HOME");
    CHECK_EQ(KernelCache::default_folder(), "");
    CHECK(gpu_kit::says(compile(spec(1)).not_kept, "neither XDG_CACHE_HOME nor HOME"));
}

// Each sees nothing or all of an entry, and none is left half written.
TEST(processes_at_once) {
    const Cache cache;
    constexpr int kProcesses = 4, kRounds = 40;
    pid_t children[kProcesses];
    for (pid_t &child : children)
        child = kit::start_child([&] {
            try {
                for (int i = 0; i < kRounds; ++i) {
                    const KernelCache mine(KernelCache::default_folder());
                    (void)compiles(spec(i % 4));
                    if (i % 7 == 0)
                        fs::remove_all(cache.kernels());
                }
            } catch (const fs::filesystem_error &) {
                // Another process removed what this one was removing.
            }
        });
    for (const pid_t child : children)
        CHECK_EQ(kit::exit_code(child), 0);
    for (int i = 0; i < 4; ++i)
        (void)compiles(spec(i));
    for (int i = 0; i < 4; ++i)
        CHECK(!compiles(spec(i)));
}

TEST(threads_at_once) {
    const Cache cache;
    std::vector<std::thread> threads;
    std::atomic<int> wrong{0};
    for (int t = 0; t < 4; ++t)
        threads.emplace_back([&] {
            for (int i = 0; i < 20; ++i)
                wrong += compile(spec(i % 5)).cubin.empty();
        });
    for (std::thread &t : threads)
        t.join();
    CHECK_EQ(wrong.load(), 0);
    CHECK_EQ(cache.files(), 5u);
}

TEST(the_compilers_errors) {
    const Cache cache;
    KernelSpec s = spec(1);
    s.define("FAKE_ERROR", 1);
    try {
        (void)compile(s);
        CHECK(false);
    } catch (const sac::Error &e) {
        CHECK_EQ(e.status, SAC_E_GPU);
        CHECK_EQ(e.sys_errno, 6);
        CHECK(gpu_kit::says(e.message, "NVRTC_ERROR_COMPILATION. FAKE_ERROR is defined"));
    }
    s = spec(1), s.source = "no.cu";
    CHECK_THROWS(SAC_E_NOT_FOUND, compile(s));
    for (const char *name : {"", "1A", "A B", "A=1", "-I/tmp"}) {
        s = spec(1);
        s.macros.emplace_back(name, "1");
        CHECK_THROWS(SAC_E_ARG, compile(s));
    }
    s = spec(1), s.macros.emplace_back("A", "1\n#include \"/etc/passwd\"");
    CHECK_THROWS(SAC_E_ARG, compile(s));
}

TEST(the_architecture) {
    const Cache cache;
    const Nvrtc &nvrtc = Nvrtc::get();  // the fake one knows 80, 90, 100
    CHECK_EQ(nvrtc.nearest("sm_90"), "sm_90");
    CHECK_EQ(nvrtc.nearest("sm_89"), "sm_80");
    CHECK_EQ(nvrtc.nearest("sm_103"), "sm_100");
    CHECK_EQ(nvrtc.nearest("sm_90a"), "sm_90a");
    CHECK_THROWS(SAC_E_GPU, nvrtc.nearest("sm_75"));
    CHECK_THROWS(SAC_E_GPU, nvrtc.nearest("sm_120"));
    for (const char *bad : {"", "sm_", "90", "compute_90", "sm_x"})
        CHECK_THROWS(SAC_E_ARG, nvrtc.nearest(bad));
}

TEST(through_the_c_interface) {
    const Cache cache;
    const sac_gpu_macro macros[] = {{"VALUE", "7"}};
    sac_gpu_compiled out;
    char log[12];
    CHECK_EQ(sac_gpu_compile("args.h", "sm_103", macros, 1, &out, log, sizeof log),
             as_int(SAC_OK));
    CHECK_EQ(std::string(out.arch), "sm_100");
    CHECK_EQ(std::string(log), "ptxas info ");  // cut to the room there is
    CHECK(out.log_bytes > sizeof log);
    CHECK_EQ(out.cached, 0u);
    CHECK_EQ(out.nvrtc, 13000u);
    CHECK_EQ(sac_gpu_compile("args.h", "sm_103", macros, 1, &out, nullptr, 0), as_int(SAC_OK));
    CHECK_EQ(out.cached, 1u);
    std::set<std::string> names;
    sac_gpu_source s;
    for (std::uint32_t i = 0; sac_gpu_get_source(i, &s) == SAC_OK; ++i) {
        CHECK(names.empty() || *names.rbegin() < s.name);  // ordered
        names.insert(s.name);
        CHECK_EQ(std::string(s.text).size(), s.bytes);
        CHECK(gpu_kit::says(s.text, "SPDX-License-Identifier"));
    }
    CHECK(names.contains("hot.cu") && names.contains("args.h"));
    CHECK_EQ(sac_gpu_get_source(1000, &s), as_int(SAC_E_RANGE));
}
