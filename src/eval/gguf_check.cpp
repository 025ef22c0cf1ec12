#include "eval/gguf_check.h"

#include <ggml.h>
#include <gguf.h>

#include <bit>
#include <cstring>
#include <set>

#include "base/checked_math.h"
#include "base/error.h"
#include "eval/byte_reader.h"

namespace oscar::eval {
namespace {

static_assert(std::endian::native == std::endian::little, "GGUF is read as it lies in memory");

constexpr std::uint64_t kMinKeyBytes = 8 + 1 + 4 + 1;  // length, name, type, smallest value
constexpr std::uint64_t kMinTensorBytes = 8 + 1 + 4 + 8 + 4 + 8;  // name, dims, type, offset

std::string number(std::uint64_t value) { return std::to_string(value); }

// File names come from anywhere; names go into one-line messages, so unprintable bytes do not.
std::string printable(const std::string& text) {
  std::string result;
  for (const char c : text) result += c >= 0x20 && c < 0x7f ? c : '?';
  return result;
}

// 0: no scalar, or unknown.
std::uint64_t scalar_bytes(std::uint32_t type) {
  switch (type) {
    case GGUF_TYPE_UINT8:
    case GGUF_TYPE_INT8:
    case GGUF_TYPE_BOOL: return 1;
    case GGUF_TYPE_UINT16:
    case GGUF_TYPE_INT16: return 2;
    case GGUF_TYPE_UINT32:
    case GGUF_TYPE_INT32:
    case GGUF_TYPE_FLOAT32: return 4;
    case GGUF_TYPE_UINT64:
    case GGUF_TYPE_INT64:
    case GGUF_TYPE_FLOAT64: return 8;
    default: return 0;
  }
}

class Parser {
 public:
  explicit Parser(const std::string& path) : path_(path), reader_(path) {}

  GgufHeader parse() {
    GgufHeader header;
    header.path = path_;
    check_magic();
    const std::uint64_t num_tensors = count("tensors", kMinTensorBytes, kMaxGgufTensors);
    const std::uint64_t num_keys = count("keys", kMinKeyBytes, kMaxGgufKeys);
    for (std::uint64_t key = 0; key < num_keys; ++key) parse_key(key, &header);
    alignment_ = alignment(header);
    header.num_tensors = num_tensors;
    for (std::uint64_t tensor = 0; tensor < num_tensors; ++tensor) parse_tensor(tensor);
    header.data_offset = (reader_.position() + alignment_ - 1) / alignment_ * alignment_;
    header.data_bytes = data_end_;
    check_data(header.data_offset);
    return header;
  }

 private:
  [[noreturn]] void fail(const std::string& what, ErrorCode code = ErrorCode::kCorrupt) const {
    throw Error(code, path_ + ": " + what);
  }

  [[noreturn]] void ends_in(const std::string& what) const {
    fail("truncated GGUF file: ends in " + what + " (" + number(reader_.size()) + " bytes)");
  }

  // Whether so many bytes more may be held in memory.
  bool keep(std::uint64_t num_bytes) {
    if (num_bytes > kMaxKeptBytes - kept_bytes_) return false;
    kept_bytes_ += num_bytes;
    return true;
  }

  void check_magic() {
    char magic[4] = {};
    if (!reader_.read(magic, sizeof magic))
      fail("no GGUF file: only " + number(reader_.size()) + " bytes");
    if (std::memcmp(magic, "GGUF", sizeof magic) != 0) {
      fail("no GGUF file: begins with '" + printable(std::string(magic, sizeof magic)) +
           "', not 'GGUF'");
    }
    std::uint32_t version = 0;
    if (!reader_.read_value(&version)) ends_in("the version");
    if (version == __builtin_bswap32(kGgufVersion)) {
      fail("GGUF file of a big-endian machine; this one is little-endian", ErrorCode::kUnsupported);
    }
    if (version != kGgufVersion) {
      fail("GGUF version " + number(version) + "; this reads version " + number(kGgufVersion),
           ErrorCode::kUnsupported);
    }
  }

  std::uint64_t count(const std::string& of_what, std::uint64_t min_bytes, std::uint64_t limit) {
    std::uint64_t value = 0;
    if (!reader_.read_value(&value)) ends_in("the number of " + of_what);
    if (value > limit) {
      fail("header says " + number(value) + " " + of_what + "; the limit is " + number(limit));
    }
    if (value > reader_.remaining() / min_bytes) {
      fail("header says " + number(value) + " " + of_what + ", too many for the " +
           number(reader_.remaining()) + " bytes that follow");
    }
    return value;
  }

  std::string name(const std::string& of_what, std::uint64_t max_bytes) {
    std::uint64_t length = 0;
    if (!reader_.read_value(&length)) ends_in("the name of " + of_what);
    if (length == 0) fail(of_what + " has an empty name");
    if (length > max_bytes) {
      fail("the name of " + of_what + " is " + number(length) + " bytes long; at most " +
           number(max_bytes));
    }
    std::string result(length, '\0');
    if (!reader_.read(result.data(), length)) ends_in("the name of " + of_what);
    return result;
  }

  void parse_key(std::uint64_t index, GgufHeader* header) {
    const std::string key = name("key " + number(index), kMaxGgufKeyBytes);
    const std::string quoted = "key '" + printable(key) + "'";
    if (!keep(key.size()))
      fail("the names of its keys take more than " + number(kMaxKeptBytes) + " bytes");
    std::uint32_t type = 0;
    if (!reader_.read_value(&type)) ends_in(quoted);
    GgufValue value;
    if (type == GGUF_TYPE_ARRAY) {
      value = parse_array(quoted);
    } else if (type == GGUF_TYPE_STRING) {
      value = parse_string(quoted);
    } else {
      value = parse_scalar(type, quoted);
    }
    if (!header->values.emplace(key, std::move(value)).second) fail(quoted + " appears twice");
    if (key == "general.alignment" && type != GGUF_TYPE_UINT32) {
      fail(quoted + " is of type " + number(type) + "; it must be a 32-bit unsigned integer");
    }
  }

  GgufValue parse_string(const std::string& quoted) {
    std::uint64_t length = 0;
    if (!reader_.read_value(&length)) ends_in(quoted);
    if (length > reader_.remaining()) {
      fail(quoted + " claims a text of " + number(length) + " bytes; " +
           number(reader_.remaining()) + " follow");
    }
    if (length > kMaxKeptStringBytes || !keep(length)) {
      if (!reader_.skip(length)) ends_in(quoted);
      return std::monostate{};
    }
    std::string text(length, '\0');
    if (!reader_.read(text.data(), length)) ends_in(quoted);
    return text;
  }

  template <typename T>
  T value_of(const std::string& quoted) {
    T value{};
    if (!reader_.read_value(&value)) ends_in(quoted);
    return value;
  }

  GgufValue parse_scalar(std::uint32_t type, const std::string& quoted) {
    switch (type) {
      case GGUF_TYPE_UINT8: return std::int64_t{value_of<std::uint8_t>(quoted)};
      case GGUF_TYPE_INT8: return std::int64_t{value_of<std::int8_t>(quoted)};
      case GGUF_TYPE_UINT16: return std::int64_t{value_of<std::uint16_t>(quoted)};
      case GGUF_TYPE_INT16: return std::int64_t{value_of<std::int16_t>(quoted)};
      case GGUF_TYPE_UINT32: return std::int64_t{value_of<std::uint32_t>(quoted)};
      case GGUF_TYPE_INT32: return std::int64_t{value_of<std::int32_t>(quoted)};
      case GGUF_TYPE_INT64: return value_of<std::int64_t>(quoted);
      case GGUF_TYPE_UINT64: {
        const auto value = value_of<std::uint64_t>(quoted);
        // No size in a model reaches 2^63; what does is kept out of every computation.
        return value <= INT64_MAX ? GgufValue(static_cast<std::int64_t>(value)) : GgufValue();
      }
      case GGUF_TYPE_FLOAT32: return double{value_of<float>(quoted)};
      case GGUF_TYPE_FLOAT64: return value_of<double>(quoted);
      case GGUF_TYPE_BOOL: return value_of<std::uint8_t>(quoted) != 0;
      default: fail(quoted + " has unknown type " + number(type));
    }
  }

  GgufValue parse_array(const std::string& quoted) {
    std::uint32_t type = 0;
    std::uint64_t length = 0;
    if (!reader_.read_value(&type) || !reader_.read_value(&length)) ends_in(quoted);
    const std::uint64_t element_bytes = type == GGUF_TYPE_STRING ? 8 : scalar_bytes(type);
    if (element_bytes == 0) fail(quoted + " is an array of unknown type " + number(type));
    if (length > reader_.remaining() / element_bytes) {
      fail(quoted + " claims " + number(length) + " elements, too many for the " +
           number(reader_.remaining()) + " bytes that follow");
    }
    const bool whole = type != GGUF_TYPE_STRING && type != GGUF_TYPE_FLOAT32 &&
                       type != GGUF_TYPE_FLOAT64 && length <= kMaxKeptElements &&
                       keep(length * sizeof(std::int64_t));
    std::vector<std::int64_t> kept;
    for (std::uint64_t i = 0; i < length; ++i) {
      if (type == GGUF_TYPE_STRING) {
        std::uint64_t bytes = 0;
        if (!reader_.read_value(&bytes) || !reader_.skip(bytes)) {
          fail(quoted + ", element " + number(i) + ": a text of " + number(bytes) +
               " bytes does not fit in the file");
        }
      } else if (whole) {
        const GgufValue value = parse_scalar(type, quoted);
        if (const auto* integer = std::get_if<std::int64_t>(&value)) kept.push_back(*integer);
        if (const auto* flag = std::get_if<bool>(&value)) kept.push_back(*flag);
      } else {
        if (!reader_.skip(length * element_bytes)) ends_in(quoted);
        break;
      }
    }
    return whole ? GgufValue(std::move(kept)) : GgufValue();
  }

  std::uint64_t alignment(const GgufHeader& header) const {
    const auto value = header.integer("general.alignment");
    if (!value) return GGUF_DEFAULT_ALIGNMENT;
    if (*value <= 0 || !std::has_single_bit(static_cast<std::uint64_t>(*value))) {
      fail("key 'general.alignment' is " + std::to_string(*value) + "; it must be a power of two");
    }
    return static_cast<std::uint64_t>(*value);
  }

  void parse_tensor(std::uint64_t index) {
    const std::string tensor = name("tensor " + number(index), GGML_MAX_NAME - 1);
    const std::string quoted = "tensor '" + printable(tensor) + "'";
    if (!tensor_names_.insert(tensor).second) fail(quoted + " appears twice");
    std::uint32_t num_dims = 0;
    if (!reader_.read_value(&num_dims)) ends_in(quoted);
    if (num_dims < 1 || num_dims > GGML_MAX_DIMS) {
      fail(quoted + " has " + number(num_dims) + " dimensions; 1 to " + number(GGML_MAX_DIMS));
    }
    std::uint64_t num_elements = 1, row = 1;
    for (std::uint32_t dim = 0; dim < num_dims; ++dim) {
      std::uint64_t extent = 0;
      if (!reader_.read_value(&extent)) ends_in(quoted);
      const auto product = checked_mul(num_elements, extent);
      if (extent == 0 || !product || *product > INT64_MAX) {
        fail(quoted + ": dimension " + number(dim) + " is " + number(extent) +
             "; it must be at least 1 and the number of elements below 2^63");
      }
      if (dim == 0) row = extent;
      num_elements = *product;
    }
    std::uint32_t type = 0;
    std::uint64_t offset = 0;
    if (!reader_.read_value(&type) || !reader_.read_value(&offset)) ends_in(quoted);
    place(quoted, type, row, num_elements, offset);
  }

  // Tensors lie one after the other, each padded to the alignment.
  void place(const std::string& quoted, std::uint32_t type, std::uint64_t row,
             std::uint64_t num_elements, std::uint64_t offset) {
    const auto block =
        type < GGML_TYPE_COUNT ? ggml_blck_size(static_cast<ggml_type>(type)) : std::int64_t{0};
    if (block <= 0) fail(quoted + " has unknown data type " + number(type));
    const auto block_elements = static_cast<std::uint64_t>(block);
    if (row % block_elements != 0) {
      fail(quoted + " has rows of " + number(row) + " elements; its type " +
           ggml_type_name(static_cast<ggml_type>(type)) + " needs a multiple of " +
           number(block_elements));
    }
    const auto bytes =
        checked_mul(num_elements / block_elements, ggml_type_size(static_cast<ggml_type>(type)));
    const auto padded = bytes ? checked_add(*bytes, alignment_ - 1) : std::nullopt;
    const auto end =
        padded ? checked_add(data_end_, *padded / alignment_ * alignment_) : std::nullopt;
    if (!end) fail(quoted + " is larger than 2^64 bytes");
    if (offset != data_end_) {
      fail(quoted + " lies at data offset " + number(offset) + "; the tensors before it end at " +
           number(data_end_));
    }
    // The last tensor's padding need not be there.
    const auto needed = checked_add(data_end_, *bytes);

    ends_.emplace_back(needed ? *needed : UINT64_MAX, quoted);
    data_end_ = *end;
  }

  void check_data(std::uint64_t data_offset) const {
    for (const auto& [end, quoted] : ends_) {
      const auto file_end = checked_add(data_offset, end);
      if (!file_end || *file_end > reader_.size()) {
        fail("truncated GGUF file: " + quoted + " needs bytes up to " +
             (file_end ? number(*file_end) : std::string("2^64")) + "; the file has " +
             number(reader_.size()));
      }
    }
  }

  std::string path_;
  ByteReader reader_;
  std::uint64_t kept_bytes_ = 0;
  std::uint64_t alignment_ = GGUF_DEFAULT_ALIGNMENT;
  std::set<std::string> tensor_names_;
  std::vector<std::pair<std::uint64_t, std::string>> ends_;  // of each tensor's data, its name
  std::uint64_t data_end_ = 0;
};

}  // namespace

std::optional<std::int64_t> GgufHeader::integer(const std::string& key) const {
  const auto found = values.find(key);
  if (found == values.end()) return std::nullopt;
  if (const auto* value = std::get_if<std::int64_t>(&found->second)) return *value;
  throw Error(ErrorCode::kCorrupt, path + ": key '" + key + "' is no integer");
}

std::optional<std::string> GgufHeader::text(const std::string& key) const {
  const auto found = values.find(key);
  if (found == values.end()) return std::nullopt;
  if (const auto* value = std::get_if<std::string>(&found->second)) return *value;
  throw Error(ErrorCode::kCorrupt, path + ": key '" + key + "' is no text of at most " +
                                       number(kMaxKeptStringBytes) + " bytes");
}

std::vector<std::int64_t> GgufHeader::integers(const std::string& key) const {
  const auto found = values.find(key);
  if (found == values.end()) return {};
  if (const auto* list = std::get_if<std::vector<std::int64_t>>(&found->second)) return *list;
  return {*integer(key)};
}

GgufHeader check_gguf(const std::string& path) { return Parser(path).parse(); }

}  // namespace oscar::eval
