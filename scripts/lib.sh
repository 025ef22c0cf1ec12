# Shared by the scripts in this folder: where things are kept, and how third-party parts are fetched.
# Sourced, not run. Every function can be called again and does only what is missing.
# shellcheck disable=SC2034  # what is set here is used by the scripts that source it

repo_dir=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache_dir=${OSCAR_CACHE_DIR:-${XDG_CACHE_HOME:-$HOME/.cache}/oscar-kv}

clang_format_version=14.0.6
ruff_version=0.6.9
matplotlib_version=3.11.2
weasyprint_version=70.0
openai_version=1.109.1
llama_package_version=0.3.36
llama_core_targets=(llama ggml ggml-cpu)  # what our CLI needs
llama_test_targets=("${llama_core_targets[@]}" llama-completion llama-perplexity llama-server)
llama_sdist_sha256=832db0699007f1be95a7e41ef12e88926b02ba836461e36a36372db2760c1a2e

say() { printf '\033[1m== %s\033[0m\n' "$*" >&2; }
die() { printf 'error: %s\n' "$*" >&2; exit 1; }

# install_debian_packages NAME...: installs those that are missing (needs root or sudo only then).
install_debian_packages() {
  local missing=() name
  for name in "$@"; do
    dpkg-query -W -f '${Status}' "$name" 2>/dev/null | grep -q 'ok installed' || missing+=("$name")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "installing Debian packages: ${missing[*]}"
  local as_root=()
  if [ "$(id -u)" -ne 0 ]; then
    command -v sudo >/dev/null || die "missing Debian packages (${missing[*]}); run as root: apt-get install ${missing[*]}"
    as_root=(sudo)
  fi
  "${as_root[@]}" apt-get update -qq || die "apt-get update failed"
  DEBIAN_FRONTEND=noninteractive "${as_root[@]}" apt-get install -y -qq --no-install-recommends "${missing[@]}" >/dev/null </dev/null ||
    die "could not install ${missing[*]}"
}

# with_cache_lock COMMAND...: one script at a time fills the cache.
with_cache_lock() {
  local lock
  mkdir -p "$cache_dir"
  exec {lock}>"$cache_dir/lock"
  flock --nonblock "$lock" || { say "waiting for another script that fills $cache_dir"; flock "$lock"; }
  "$@"
  exec {lock}>&-
}

# A private Python environment, used only to fetch models and sources, and for the pinned lint tools and the tests' client.
python_env() {
  if [ ! -x "$cache_dir/python/bin/pip" ]; then
    say "creating a private Python environment"
    mkdir -p "$cache_dir"
    /usr/bin/python3 -m venv "$cache_dir/python"
  fi
}

# What building takes, and what linting and fuzzing take on top (Debian 12 names).
build_packages=(ca-certificates cmake g++ libbenchmark-dev libcli11-dev libcurl4-openssl-dev libeigen3-dev libgomp1 libgtest-dev
  librapidcheck-dev libxxhash-dev ninja-build nlohmann-json3-dev python3-venv)
lint_packages=(git python3 shellcheck)
fuzz_packages=(clang-14 libclang-rt-14-dev libomp-14-dev)
arm64_packages=(g++-aarch64-linux-gnu googletest qemu-user)

# lint_tools: the pinned format and lint tools; sets clang_format and ruff.
lint_tools() {
  python_env
  clang_format=$cache_dir/python/bin/clang-format
  ruff=$cache_dir/python/bin/ruff
  [[ $("$clang_format" --version 2>/dev/null) == *" $clang_format_version"* ]] &&
    [[ $("$ruff" --version 2>/dev/null) == *" $ruff_version" ]] && return
  say "installing clang-format $clang_format_version and ruff $ruff_version"
  "$cache_dir/python/bin/pip" -q install --disable-pip-version-check \
    "clang-format==$clang_format_version" "ruff==$ruff_version" </dev/null || die "could not install the lint tools"
}

# server_client: the official client that tests of `oscar serve` use; sets test_python.
server_client() {
  python_env
  test_python=$cache_dir/python/bin/python
  [ "$("$test_python" -c 'import openai; print(openai.__version__)' 2>/dev/null)" = "$openai_version" ] && return
  say "installing the openai client $openai_version"
  "$cache_dir/python/bin/pip" -q install --disable-pip-version-check "openai==$openai_version" </dev/null ||
    die "could not install openai $openai_version"
}

# report_tools: what `oscar report` draws and prints with; the versions are also in report/oscar_report/__main__.py.
report_packages=(fonts-dejavu-core libpango-1.0-0 libpangoft2-1.0-0)
report_tools() {
  python_env
  "$cache_dir/python/bin/python" -c 'import sys, matplotlib, weasyprint
sys.exit([matplotlib.__version__, weasyprint.__version__] != sys.argv[1:])' $matplotlib_version $weasyprint_version 2>/dev/null && return
  say "installing matplotlib $matplotlib_version and WeasyPrint $weasyprint_version"
  "$cache_dir/python/bin/pip" -q install --disable-pip-version-check \
    "matplotlib==$matplotlib_version" "weasyprint==$weasyprint_version" </dev/null || die "could not install matplotlib and WeasyPrint"
}

# The instruction sets of this processor that llama.cpp's CPU backend is built for. One name per level, part of the cache key.
cpu_level() {
  local flags
  flags=" $(grep -m1 -E '^flags' /proc/cpuinfo 2>/dev/null | cut -d: -f2) "
  case "$(uname -m)" in
    x86_64)
      local level=avx2 flag
      for flag in avx2 fma f16c bmi2; do
        [[ $flags == *" $flag "* ]] || { echo sse42; return; }
      done
      [[ $flags == *" avx512f "* && $flags == *" avx512bw "* && $flags == *" avx512vl "* && $flags == *" avx512dq "* && $flags == *" avx512cd "* ]] || { echo $level; return; }
      level=avx512
      [[ $flags == *" avx512_vbmi "* || $flags == *" avx512vbmi "* ]] && level+=-vbmi
      [[ $flags == *" avx512_vnni "* ]] && level+=-vnni
      [[ $flags == *" avx512_bf16 "* ]] && level+=-bf16
      echo $level ;;
    *) uname -m ;;
  esac
}

llama_cmake_flags() {
  local level=$1
  printf '%s\n' -DCMAKE_BUILD_TYPE=Release -DBUILD_SHARED_LIBS=ON -DGGML_BACKEND_DL=ON -DGGML_NATIVE=OFF \
    -DGGML_CPU_ALL_VARIANTS=OFF -DLLAMA_BUILD_TESTS=OFF -DLLAMA_BUILD_EXAMPLES=OFF -DLLAMA_OPENSSL=OFF \
    -DLLAMA_BUILD_UI=OFF -DLLAMA_USE_PREBUILT_UI=OFF -DLLAMA_BUILD_APP=OFF
  case "$level" in
    sse42) printf '%s\n' -DGGML_AVX=OFF -DGGML_AVX2=OFF -DGGML_FMA=OFF -DGGML_F16C=OFF -DGGML_BMI2=OFF ;;
    avx512*) printf '%s\n' -DGGML_AVX512=ON ;;
  esac
  [[ $level == *vbmi* ]] && printf '%s\n' -DGGML_AVX512_VBMI=ON
  [[ $level == *vnni* ]] && printf '%s\n' -DGGML_AVX512_VNNI=ON
  [[ $level == *bf16* ]] && printf '%s\n' -DGGML_AVX512_BF16=ON
  return 0
}

# llama_source: unpacks the pinned llama.cpp source into the cache; sets llama_source_dir.
llama_source() {
  llama_source_dir=$cache_dir/llama.cpp-$llama_package_version/vendor/llama.cpp
  [ -f "$llama_source_dir/CMakeLists.txt" ] && return
  python_env
  local archive=$cache_dir/llama_cpp_python-$llama_package_version.tar.gz
  if [ ! -f "$archive" ]; then
    say "downloading the llama.cpp source (llama-cpp-python $llama_package_version, 77 MB)"
    "$cache_dir/python/bin/pip" -q install --disable-pip-version-check scikit-build-core
    local part
    part=$(mktemp -d "$cache_dir/download.XXXXXX")
    "$cache_dir/python/bin/pip" -q download --disable-pip-version-check --no-deps --no-binary llama-cpp-python \
      --no-build-isolation "llama-cpp-python==$llama_package_version" -d "$part" || die "could not download llama-cpp-python $llama_package_version"
    mv "$part"/llama_cpp_python-$llama_package_version.tar.gz "$archive"
    rmdir "$part"
  fi
  echo "$llama_sdist_sha256  $archive" | sha256sum -c --quiet - ||
    { rm -f "$archive"; die "llama.cpp source archive has an unexpected SHA-256; deleted it, run again"; }
  local part
  part=$(mktemp -d "$cache_dir/unpack.XXXXXX")
  tar xf "$archive" -C "$part" --strip-components=1
  # The archive carries a pointer to git metadata that it does not contain; left in place it makes ninja configure forever.
  rm -rf "$part/vendor/llama.cpp/.git"
  rm -rf "$cache_dir/llama.cpp-$llama_package_version"
  mv "$part" "$cache_dir/llama.cpp-$llama_package_version"
}

# build_llama TARGET...: builds targets of the pinned llama.cpp; sets llama_build_dir (libraries and programs in its bin/).
# Source and flags are fixed, so a target is built once: oscar-built names those that are there, oscar-flags what they were built with.
build_llama() {
  llama_source
  local level flags target missing=()
  level=$(cpu_level)
  mapfile -t flags < <(llama_cmake_flags "$level")
  llama_build_dir=$cache_dir/llama.cpp-$llama_package_version-$level
  if [ "$(cat "$llama_build_dir/oscar-flags" 2>/dev/null)" != "${flags[*]}" ]; then
    say "configuring llama.cpp for $level"
    rm -rf "$llama_build_dir"
    /usr/bin/cmake -S "$llama_source_dir" -B "$llama_build_dir" -G Ninja -DCMAKE_MAKE_PROGRAM=/usr/bin/ninja "${flags[@]}" >"$cache_dir/llama-configure.log" 2>&1 ||
      { tail -20 "$cache_dir/llama-configure.log" >&2; die "llama.cpp did not configure"; }
    echo "${flags[*]}" >"$llama_build_dir/oscar-flags"
  fi
  for target in "$@"; do
    grep -qx "$target" "$llama_build_dir/oscar-built" 2>/dev/null || missing+=("$target")
  done
  [ ${#missing[@]} -eq 0 ] && return
  say "building llama.cpp (${missing[*]}): 3 to 8 minutes on 2 cores, once"
  /usr/bin/ninja -C "$llama_build_dir" "${missing[@]}" >"$cache_dir/llama-build.log" 2>&1 ||
    { tail -20 "$cache_dir/llama-build.log" >&2; die "llama.cpp did not build"; }
  printf '%s\n' "${missing[@]}" >>"$llama_build_dir/oscar-built"
}
