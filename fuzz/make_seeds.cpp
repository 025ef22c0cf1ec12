// Writes the seeds that the fuzzers start from: make_seeds FOLDER fills FOLDER/<fuzzer>/.
#include <filesystem>
#include <fstream>
#include <iostream>
#include <string>
#include <vector>

#include "base/error.h"
#include "format/artefact.h"
#include "format/safetensors.h"
#include "seed_artefact.h"

namespace {

namespace fs = std::filesystem;

void write(const fs::path& path, const std::string& bytes) {
  fs::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out << bytes;
  if (!out.flush()) throw oscar::Error(oscar::ErrorCode::kIo, "cannot write " + path.string());
}

void write_artefact(const fs::path& folder, const std::string& name, bool with_options) {
  const std::string bytes = oscar::serialize_artefact(seed_artefact(with_options), name);
  write(folder / "fuzz_safetensors" / name, bytes);
  write(folder / "fuzz_artefact" / name, '\1' + bytes);  // see fuzz_artefact.cpp
}

void make(const fs::path& folder) {
  write_artefact(folder, "plain", false);
  write_artefact(folder, "options", true);
  const std::uint8_t data[8] = {1, 2, 3, 4, 5, 6, 7, 8};
  oscar::Safetensors mixed;
  mixed.metadata = {{"k", "v"}};
  mixed.tensors["a"] = {oscar::DType::kU8, {2, 2}, {data, 4}};
  mixed.tensors["b"] = {oscar::DType::kBF16, {1, 2}, {data + 4, 4}};
  mixed.tensors["c"] = {oscar::DType::kF64, {0}, {}};
  write(folder / "fuzz_safetensors" / "mixed", oscar::serialize_safetensors(mixed));
  write(folder / "fuzz_safetensors" / "lfs", "version https://git-lfs.github.com/spec/v1\n");
  // Edits as in fuzz_artefact_edits.cpp: of a tensor's value, a shape, a metadata byte; a tensor
  // gone.
  write(folder / "fuzz_artefact_edits" / "values", std::string("\0\3\0\1\0\0\x80\x3f", 8));
  write(folder / "fuzz_artefact_edits" / "shape", std::string("\1\2\0\0\x20\0\0\0", 8));
  write(folder / "fuzz_artefact_edits" / "metadata", std::string("\2\4\5\0\x39\0\0\0", 8));
  write(folder / "fuzz_artefact_edits" / "gone", std::string("\3\6\0\0\0\0\0\0", 8));
  write(folder / "fuzz_kv_spec" / "method",
        "oscar-plus:k3v2,sink=0,recent=512,group=64,no-u,no-p,no-hadamard,no-clip,no-mean,unbiased,"
        "float");
  write(folder / "fuzz_kv_spec" / "file", "c:/a.safetensors:k16v16");
  write(folder / "fuzz_kv_spec" / "host", "q8_0");
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: make_seeds FOLDER\n";
    return 1;
  }
  try {
    make(argv[1]);
  } catch (const std::exception& error) {
    std::cerr << "make_seeds: " << error.what() << "\n";
    return 1;
  }
  return 0;
}
