# SPDX-License-Identifier: Apache-2.0
# sac_flags: warnings, hardening and sanitizers for the project's own code. No -march: the
# instruction set is picked at run time.
add_library(sac_flags INTERFACE)
target_compile_options(sac_flags INTERFACE
    -Wall -Wextra -Wpedantic -Wconversion -Wshadow
    $<$<BOOL:${SAC_WERROR}>:-Werror>)

set(compile "")
set(link "")
if(SAC_FUZZ)
    if(NOT CMAKE_CXX_COMPILER_ID MATCHES "Clang")
        message(FATAL_ERROR "SAC_FUZZ needs clang: set CC=clang CXX=clang++ "
                            "(apt-get install clang libclang-rt-dev)")
    endif()
    if(SAC_SANITIZE STREQUAL "")
        set(SAC_SANITIZE "address,undefined")
    endif()
    list(APPEND compile -fsanitize=fuzzer-no-link)
    list(APPEND link -fsanitize=fuzzer-no-link)
    target_compile_definitions(sac_flags INTERFACE FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION)
endif()
if(SAC_SANITIZE)
    list(APPEND compile -fsanitize=${SAC_SANITIZE} -fno-sanitize-recover=all
                        -fno-omit-frame-pointer)
    list(APPEND link -fsanitize=${SAC_SANITIZE})
else()
    # What costs nothing measurable. Fortify needs optimisation; sanitizers do it better.
    list(APPEND compile -fstack-protector-strong)
    list(APPEND link LINKER:-z,relro LINKER:-z,now LINKER:-z,noexecstack)
    list(APPEND compile
         $<$<NOT:$<CONFIG:Debug>>:-U_FORTIFY_SOURCE>
         $<$<NOT:$<CONFIG:Debug>>:-D_FORTIFY_SOURCE=2>)
endif()
target_compile_options(sac_flags INTERFACE ${compile})
target_link_options(sac_flags INTERFACE ${link})
