# Finds all dependencies. They are packages of the distribution; nothing is vendored.
#   Debian 12: libfmt-dev nlohmann-json3-dev libxxhash-dev libopenblas-pthread-dev libsentencepiece-dev
#              libpcre2-dev libutf8proc-dev zlib1g-dev libzstd-dev libcli11-dev libgtest-dev libbenchmark-dev
#              libboost-context-dev libcurl4-openssl-dev libssl-dev
find_package(fmt REQUIRED)
find_package(nlohmann_json 3.11 REQUIRED)
find_package(Threads REQUIRED)
find_package(PkgConfig REQUIRED)
find_package(ZLIB REQUIRED)
pkg_check_modules(xxhash REQUIRED IMPORTED_TARGET libxxhash)
pkg_check_modules(zstd REQUIRED IMPORTED_TARGET libzstd)
pkg_check_modules(pcre2 REQUIRED IMPORTED_TARGET libpcre2-8)
pkg_check_modules(sentencepiece REQUIRED IMPORTED_TARGET sentencepiece)
pkg_check_modules(utf8proc REQUIRED IMPORTED_TARGET libutf8proc)

# OpenBLAS, which contains LAPACK. The pthread variant is preferred: its threads let other programs have the core while they
# wait for each other, and those of the OpenMP variant do not (docs/dev/cpu.md). Otherwise it is the variant that the system has
# selected; the results are the same.
find_library(SHIFTRT_OPENBLAS NAMES openblasp openblas PATH_SUFFIXES openblas-pthread REQUIRED)
find_path(SHIFTRT_OPENBLAS_INCLUDE NAMES cblas.h PATH_SUFFIXES openblas-pthread openblas REQUIRED)

# Their headers only: the libraries are loaded when something is downloaded (hub/).
find_path(SHIFTRT_CURL_INCLUDE curl/curl.h REQUIRED)
find_path(SHIFTRT_OPENSSL_INCLUDE openssl/evp.h REQUIRED)
