// SPDX-License-Identifier: Apache-2.0
#include "nvrtc.hpp"

#include <cstdlib>
#include <memory>
#include <mutex>

#include "error.hpp"
#include "library.hpp"

namespace sac::gpu {
namespace {

using Program = struct ProgramOpaque *;

#define SAC_NVRTC_FUNCTIONS(X)                                                                 \
    X(version, nvrtcVersion, (int *major, int *minor))                                         \
    X(arch_count, nvrtcGetNumSupportedArchs, (int *))                                          \
    X(archs, nvrtcGetSupportedArchs, (int *))                                                  \
    X(create, nvrtcCreateProgram,                                                              \
      (Program *, const char *source, const char *name, int headers,                           \
       const char *const *header_texts, const char *const *header_names))                      \
    X(destroy, nvrtcDestroyProgram, (Program *))                                               \
    X(compile, nvrtcCompileProgram, (Program, int count, const char *const *options))          \
    X(cubin_size, nvrtcGetCUBINSize, (Program, std::size_t *))                                 \
    X(cubin, nvrtcGetCUBIN, (Program, char *))                                                 \
    X(log_size, nvrtcGetProgramLogSize, (Program, std::size_t *))                              \
    X(log, nvrtcGetProgramLog, (Program, char *))

std::mutex load_mutex;
std::string set_by_caller;
const Nvrtc *loaded = nullptr;  // never destroyed, as the driver

constexpr const char *kSetRight =
    "Set it right, or unset it: then the one that pip install nvidia-cuda-nvrtc or the CUDA "
    "toolkit brings is used.";
constexpr int kOldestArch = 80;  // of what the kernels use

int number_of(const std::string &arch) {
    int n = 0;
    for (std::size_t i = 3; i < arch.size() && arch[i] >= '0' && arch[i] <= '9' && n < 10000;
         ++i)
        n = n * 10 + (arch[i] - '0');
    return arch.rfind("sm_", 0) == 0 ? n : 0;
}

}  // namespace

struct Nvrtc::Functions {
    const char *(*error_text)(int) = nullptr;
#define SAC_NVRTC_MEMBER(name, symbol, parameters) int(*name) parameters = nullptr;
    SAC_NVRTC_FUNCTIONS(SAC_NVRTC_MEMBER)
#undef SAC_NVRTC_MEMBER
};

void Nvrtc::set_path(const std::string &path) {
    const std::lock_guard lock(load_mutex);
    set_by_caller = path;
}

const Nvrtc &Nvrtc::get() {
    const std::lock_guard lock(load_mutex);
    if (!loaded)
        loaded = new Nvrtc;
    return *loaded;
}

Nvrtc::Nvrtc() : f_(nullptr) {
    std::vector<std::string> names;
    const char *const setting = std::getenv("SAC_NVRTC");
    const bool given = setting && *setting;
    if (given) {
        names = {setting};  // what was asked for, or an error
    } else {
        if (!set_by_caller.empty())
            names.push_back(set_by_caller);
        names.insert(names.end(), {"libnvrtc.so.13", "libnvrtc.so.12"});
    }
    const Library library(names);
    path_ = library.name();
    if (path_.empty())
        throw Error(SAC_E_GPU, "NVRTC",
                    given ? format("SAC_NVRTC names an NVRTC, CUDA's run-time compiler, that "
                                   "cannot be loaded (%s). %s",
                                   library.failures().c_str(), kSetRight)
                          : format("NVRTC, CUDA's run-time compiler, is not there (%s). "
                                   "Install it (pip install nvidia-cuda-nvrtc, or the CUDA "
                                   "toolkit), or name its libnvrtc.so in SAC_NVRTC.",
                                   library.failures().c_str()));
    if (!library.symbol("nvrtcVersion"))
        throw Error(SAC_E_GPU, path_,
                    format("%s%s is no NVRTC: it has no nvrtcVersion. %s",
                           given ? "SAC_NVRTC: " : "", path_.c_str(),
                           given ? kSetRight : "Install one (pip install nvidia-cuda-nvrtc)."));
    auto functions = std::make_unique<Functions>();
    const auto find = [&](auto &function, const char *symbol) {
        void *const found = library.symbol(symbol);
        if (!found)
            throw Error(SAC_E_GPU, path_,
                        format("%s has no %s: this NVRTC is too old. Install one of CUDA 12 "
                               "or 13 (pip install nvidia-cuda-nvrtc).",
                               path_.c_str(), symbol));
        function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(found);
    };
    find(functions->error_text, "nvrtcGetErrorString");
#define SAC_NVRTC_FIND(name, symbol, parameters) find(functions->name, #symbol);
    SAC_NVRTC_FUNCTIONS(SAC_NVRTC_FIND)
#undef SAC_NVRTC_FIND
    f_ = functions.get();
    int major = 0, minor = 0, count = 0;
    check(f_->version(&major, &minor), path_, "cannot ask for its version");
    version_ = major * 1000 + minor * 10;
    // In a wheel nothing says where its other part lies.
    library.open_beside("nvrtcVersion", format("libnvrtc-builtins.so.%d.%d", major, minor));
    check(f_->arch_count(&count), path_, "cannot ask what it compiles for");
    archs_.resize(static_cast<std::size_t>(count));
    check(f_->archs(archs_.data()), path_, "cannot ask what it compiles for");
    (void)functions.release();
}

void Nvrtc::check(int result, const std::string &object, const char *what) const {
    if (result == 0)
        return;
    const char *const words = f_->error_text(result);
    throw Error(SAC_E_GPU, object,
                format("%s: %s: %s.", object.c_str(), what, words ? words : "NVRTC error"),
                result);
}

std::string Nvrtc::nearest(const std::string &arch) const {
    const int wanted = number_of(arch);
    if (wanted == 0)
        throw Error(SAC_E_ARG, arch,
                    format("'%s' is no architecture: they are written sm_90", arch.c_str()));
    if (wanted < kOldestArch)
        throw Error(SAC_E_GPU, arch,
                    format("libsac's kernels need a GPU of sm_%d or newer; %s is older. Take "
                           "a newer GPU; gathers by the CPU need none.",
                           kOldestArch, arch.c_str()));
    // Code for 10.0 runs on 10.3, not the other way, and not on 9.0 or 12.0.
    int best = 0;
    for (const int a : archs_)
        if (a <= wanted && a / 10 == wanted / 10)
            best = a;
    if (best == 0)
        throw Error(SAC_E_GPU, arch,
                    format("NVRTC %d.%d (%s) does not compile for %s. Install %s.",
                           version_ / 1000, version_ % 1000 / 10, path_.c_str(), arch.c_str(),
                           archs_.empty() || archs_.front() < wanted
                               ? "a newer one (pip install -U nvidia-cuda-nvrtc)"
                               : "one that still knows this GPU (nvidia-cuda-nvrtc-cu12)"));
    // The feature set of that architecture only (sm_90a) must be asked for by its exact name.
    return best == wanted ? arch : format("sm_%d", best);
}

Nvrtc::Result Nvrtc::compile(const Source &source,
                             const std::vector<std::string> &options) const {
    std::vector<const char *> header_texts, header_names, arguments;
    for (const Source &s : sources()) {
        if (s.name == source.name)
            continue;
        header_texts.push_back(s.text.data());
        header_names.push_back(s.name.data());
    }
    for (const std::string &o : options)
        arguments.push_back(o.c_str());
    const std::string name(source.name);
    Program made = nullptr;
    check(f_->create(&made, source.text.data(), name.c_str(),
                     static_cast<int>(header_names.size()), header_texts.data(),
                     header_names.data()),
          name, "NVRTC does not take the source");
    const auto destroy = [this](Program p) { (void)f_->destroy(&p); };
    const std::unique_ptr<std::remove_pointer_t<Program>, decltype(destroy)> program(made,
                                                                                     destroy);
    const int result = f_->compile(made, static_cast<int>(arguments.size()), arguments.data());
    Result out;
    std::size_t bytes = 0;
    if (f_->log_size(made, &bytes) == 0 && bytes > 1) {
        std::string log(bytes, '\0');
        if (f_->log(made, log.data()) == 0)
            out.log = log.c_str();
    }
    if (result != 0) {
        const char *const words = f_->error_text(result);
        throw Error(SAC_E_GPU, name,
                    format("%s does not compile: %s. %s", name.c_str(),
                           words ? words : "NVRTC error", out.log.c_str()),
                    result);
    }
    check(f_->cubin_size(made, &bytes), name, "NVRTC gives no code");
    out.cubin.resize(bytes);
    check(f_->cubin(made, reinterpret_cast<char *>(out.cubin.data())), name,
          "NVRTC gives no code");
    return out;
}

}  // namespace sac::gpu
