# Shared by the scripts that test the Python package and the engine plugins. Sourced after lib.sh.
# shellcheck shell=bash
# shellcheck disable=SC2034,SC2154  # set for, and by, those who source it

# environment NAME REQUIREMENT...: a private environment with exactly these; sets python.
environment() {
  local home=$cache_dir/$1
  shift
  python=$home/bin/python
  [ "$(cat "$home/oscar-requirements" 2>/dev/null)" = "$*" ] && return
  install_debian_packages python3-venv
  mkdir -p "$cache_dir"
  [ -x "$python" ] || /usr/bin/python3 -m venv "$home"
  say "installing into $home: $*"
  "$home/bin/pip" -q install --disable-pip-version-check "$@" || die "could not install $*"
  echo "$*" >"$home/oscar-requirements"
}

# build_library: the shared library in $OSCAR_BUILD_DIR where it is missing or older than its sources.
build_library() {
  local build=${OSCAR_BUILD_DIR:-build/release}
  if [ ! -f "$build/build.ninja" ]; then
    install_debian_packages "${build_packages[@]}"
    cmake -S . -B "$build" -G Ninja -DCMAKE_BUILD_TYPE=Release -DOSCAR_WITH_LLAMA=OFF >/dev/null
  fi
  cmake --build "$build" --target liboscar -- --quiet
  export OSCAR_LIBRARY=$PWD/$build/src/capi/liboscar.so
}

# engine_wheel NAME VERSION: downloads an engine's wheel for Python 3.12 without what it needs; sets engine_wheel.
engine_wheel() {
  local folder=$cache_dir/wheels pattern="${1//-/_}-$2-*.whl" platforms=() tag
  engine_wheel=$(find "$folder" -name "$pattern" 2>/dev/null | head -1)
  [ -n "$engine_wheel" ] && return
  python_env
  say "downloading $1 $2"
  for tag in manylinux1 manylinux2014 manylinux_2_28 manylinux_2_31 manylinux_2_34 manylinux_2_35; do
    platforms+=(--platform "${tag}_x86_64")
  done
  "$cache_dir/python/bin/pip" -q download --disable-pip-version-check --no-deps --only-binary=:all: --python-version 3.12 \
    "${platforms[@]}" -d "$folder" "$1==$2" || die "could not download $1 $2"
  engine_wheel=$(find "$folder" -name "$pattern" | head -1)
}

# plugin_site FOLDER: a search path with the package of FOLDER and its entry points, as an installation has them; sets plugin_site.
plugin_site() {
  local site=$PWD/build/plugin-site
  mkdir -p "$site/oscar_kv-0.dist-info"
  printf 'Metadata-Version: 2.1\nName: oscar-kv\nVersion: 0\n' >"$site/oscar_kv-0.dist-info/METADATA"
  /usr/bin/python3 - "$1/pyproject.toml" >"$site/oscar_kv-0.dist-info/entry_points.txt" <<'PY'
import sys, tomllib
with open(sys.argv[1], "rb") as file:
    groups = tomllib.load(file)["project"]["entry-points"]
for group, entries in groups.items():
    print(f"[{group}]")
    for name, target in entries.items():
        print(f"{name} = {target}")
PY
  plugin_site=$PWD/$1:$site
}
