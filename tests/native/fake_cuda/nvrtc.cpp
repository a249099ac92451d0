// SPDX-License-Identifier: Apache-2.0
// NVRTC's names. A "cubin" is a text: the kernels that the source, with what it includes, has,
// and the macros. The macro FAKE_ERROR makes it fail.
#include <cstring>
#include <map>
#include <set>
#include <string>

#include "kernel.hpp"
#include "state.hpp"

namespace {

struct Program {
    std::string text;  // of the source with what it includes
    std::string cubin, log;
};

void include(const std::string &text, const std::map<std::string, std::string> &headers,
             std::set<std::string> &seen, std::string &out) {
    out += text;
    static const std::string word = "#include \"";
    for (std::size_t at = 0; (at = text.find(word, at)) != std::string::npos;) {
        at += word.size();
        const auto header = headers.find(text.substr(at, text.find('"', at) - at));
        if (header != headers.end() && seen.insert(header->first).second)
            include(header->second, headers, seen, out);
    }
}

// Names that begin with sac_ and are called or defined, where there is a kernel of the name.
std::set<std::string> entries_of(const std::string &text) {
    const auto in_name = [](char c) {
        return c == '_' || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') ||
               (c >= '0' && c <= '9');
    };
    std::set<std::string> found;
    for (std::size_t at = 0, end = 0; (at = text.find("sac_", at)) != std::string::npos;
         at = end) {
        for (end = at; end < text.size() && in_name(text[end]);)
            ++end;
        const bool begins = at == 0 || !in_name(text[at - 1]);
        const std::string name = text.substr(at, end - at);
        if (begins && end < text.size() && text[end] == '(' && fake::find_kernel(name))
            found.insert(name);
    }
    return found;
}

}  // namespace

FAKE_API int nvrtcVersion(int *major, int *minor) {
    *major = 13, *minor = 0;
    return 0;
}
FAKE_API const char *nvrtcGetErrorString(int result) {
    return result == 6 ? "NVRTC_ERROR_COMPILATION" : "NVRTC_ERROR";
}
FAKE_API int nvrtcGetNumSupportedArchs(int *count) {
    *count = 3;
    return 0;
}
FAKE_API int nvrtcGetSupportedArchs(int *archs) {
    archs[0] = 80, archs[1] = 90, archs[2] = 100;
    return 0;
}
FAKE_API int nvrtcCreateProgram(Program **program, const char *source, const char *, int count,
                                const char *const *texts, const char *const *names) {
    std::map<std::string, std::string> headers;
    for (int i = 0; i < count; ++i)
        headers[names[i]] = texts[i];
    *program = new Program;
    std::set<std::string> seen;
    include(source, headers, seen, (*program)->text);
    return 0;
}
FAKE_API int nvrtcDestroyProgram(Program **program) {
    delete *program;
    *program = nullptr;
    return 0;
}
FAKE_API int nvrtcCompileProgram(Program *program, int count, const char *const *options) {
    fake::add("compiles", 1);
    program->cubin = "FAKE-CUBIN\n";
    for (int i = 0; i < count; ++i) {
        const std::string option = options[i];
        const std::size_t equals = option.find('=');
        if (option.rfind("-DFAKE_ERROR", 0) == 0) {
            program->log = "FAKE_ERROR is defined";
            return 6;
        }
        if (option.rfind("-D", 0) == 0 && equals != std::string::npos)
            program->cubin += "macro " + option.substr(2, equals - 2) + ' ' +
                              option.substr(equals + 1) + '\n';
    }
    for (const std::string &e : entries_of(program->text))
        program->cubin += "entry " + e + '\n';
    program->log = "ptxas info    : Used 64 registers, used 1 barriers";
    return 0;
}
FAKE_API int nvrtcGetCUBINSize(Program *program, std::size_t *bytes) {
    *bytes = program->cubin.size() + 1;
    return 0;
}
FAKE_API int nvrtcGetCUBIN(Program *program, char *cubin) {
    std::memcpy(cubin, program->cubin.c_str(), program->cubin.size() + 1);
    return 0;
}
FAKE_API int nvrtcGetProgramLogSize(Program *program, std::size_t *bytes) {
    *bytes = program->log.size() + 1;
    return 0;
}
FAKE_API int nvrtcGetProgramLog(Program *program, char *log) {
    std::memcpy(log, program->log.c_str(), program->log.size() + 1);
    return 0;
}
