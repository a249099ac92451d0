// SPDX-License-Identifier: Apache-2.0
#include "kernels.hpp"

#include <algorithm>
#include <cctype>

#include "error.hpp"
#include "kernel_cache.hpp"
#include "nvrtc.hpp"
#include "sha256.hpp"
#include "sources.hpp"

namespace sac::gpu {
namespace {

const Source &find(const std::string &name) {
    for (const Source &s : sources())
        if (s.name == name)
            return s;
    throw Error(SAC_E_NOT_FOUND, name,
                format("the library has no kernel source '%s'", name.c_str()));
}

void check_macro(const std::string &name, const std::string &value) {
    const auto plain = [](unsigned char c) { return std::isalnum(c) || c == '_'; };
    if (name.empty() || std::isdigit(static_cast<unsigned char>(name.front())) ||
        !std::all_of(name.begin(), name.end(), plain))
        throw Error(SAC_E_ARG, name, format("'%s' is no name of a macro", name.c_str()));
    if (value.find_first_of(std::string_view("\n\r\0", 3)) != std::string::npos)
        throw Error(SAC_E_ARG, name,
                    format("the value of the macro %s has a line break", name.c_str()));
}

// Each text with its length, so that no two lists of texts give the same digest.
void add(Sha256 &hash, std::string_view text) {
    const std::uint64_t bytes = text.size();
    hash.update(&bytes, sizeof bytes);
    hash.update(text.data(), text.size());
}

Sha256::Digest key_of(const Source &source, const std::vector<std::string> &options,
                      int version) {
    Sha256 hash;
    add(hash, "libsac kernel 1");
    add(hash, format("%d", version));
    for (const std::string &o : options)
        add(hash, o);
    add(hash, source.name);
    for (const Source &s : sources()) {  // any of them may be included
        add(hash, s.name);
        add(hash, s.text);
    }
    return hash.finish();
}

}  // namespace

KernelSpec &KernelSpec::define(const std::string &name, std::int64_t value) {
    macros.emplace_back(name, std::to_string(value));
    return *this;
}

std::string KernelSpec::text() const {
    std::string t = source + ' ' + arch;
    for (const auto &[name, value] : macros)
        t += " -D" + name + '=' + value;
    return t;
}

Compiled compile(const KernelSpec &spec) {
    const Source &source = find(spec.source);
    const Nvrtc &nvrtc = Nvrtc::get();
    const std::string arch = nvrtc.nearest(spec.arch);
    std::vector<std::string> options = {"--gpu-architecture=" + arch, "--std=c++17",
                                        "--device-as-default-execution-space",
                                        "--ptxas-options=-v"};
    for (const auto &[name, value] : spec.macros) {
        check_macro(name, value);
        options.push_back("-D" + name + '=' + value);
    }
    const Sha256::Digest key = key_of(source, options, nvrtc.version());
    const KernelCache cache(KernelCache::default_folder());
    if (std::optional<KernelCache::Entry> entry = cache.load(key))
        return {
            std::move(entry->cubin), std::move(entry->log), arch, nvrtc.version(), true, ""};
    Nvrtc::Result made = nvrtc.compile(source, options);
    KernelCache::Entry entry{std::move(made.cubin), std::move(made.log)};
    std::string not_kept = cache.store(key, entry);
    return {std::move(entry.cubin), std::move(entry.log), arch, nvrtc.version(), false,
            std::move(not_kept)};
}

}  // namespace sac::gpu
