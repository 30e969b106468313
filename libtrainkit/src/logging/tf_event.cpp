#include "logging/tf_event.h"

#include <array>
#include <bit>
#include <charconv>
#include <cstring>

namespace trainkit::detail {
namespace {

static_assert(std::endian::native == std::endian::little, "fixed-width fields are written as they lie in memory");

constexpr std::array<uint32_t, 256> make_crc_table() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (crc & 1 ? 0x82f63b78u : 0u);
    table[i] = crc;
  }
  return table;
}

uint32_t masked_crc(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8u; }

template <class T>
void put(std::string& out, T value) {
  out.append(reinterpret_cast<const char*>(&value), sizeof value);
}

template <class T>
T get(std::string_view bytes, size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

// In protobuf, a field is (number << 3 | wire type) followed by its value.
enum WireType : uint32_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void put_varint(std::string& out, uint64_t value) {
  for (; value >= 0x80; value >>= 7) out += static_cast<char>(value | 0x80);
  out += static_cast<char>(value);
}

void put_int(std::string& out, uint32_t field, int64_t value) {
  put_varint(out, field << 3 | kVarint);
  put_varint(out, static_cast<uint64_t>(value));
}

void put_bytes(std::string& out, uint32_t field, std::string_view value) {
  put_varint(out, field << 3 | kBytes);
  put_varint(out, value.size());
  out += value;
}

void put_double(std::string& out, uint32_t field, double value) {
  put_varint(out, field << 3 | kFixed64);
  put(out, value);
}

/// Serialises SummaryMetadata with PluginData of a name and a content. data_class: 2 is DATA_CLASS_TENSOR.
std::string plugin_metadata(std::string_view name, std::string_view content, int data_class) {
  std::string plugin, metadata;
  put_bytes(plugin, 1, name);                             // PluginData.plugin_name
  if (!content.empty()) put_bytes(plugin, 2, content);    // PluginData.content
  put_bytes(metadata, 1, plugin);                         // SummaryMetadata.plugin_data
  if (data_class != 0) put_int(metadata, 4, data_class);  // SummaryMetadata.data_class
  return metadata;
}

/// Serialises a google.protobuf.Value: a number, a boolean or a text.
std::string value_of(const std::string& text) {
  std::string value;
  double number = 0;
  const char* const end = text.data() + text.size();
  const auto read = std::from_chars(text.data(), end, number);
  if (read.ec == std::errc() && read.ptr == end) {
    put_double(value, 2, number);  // Value.number_value
  } else if (text == "true" || text == "false") {
    put_int(value, 4, text == "true" ? 1 : 0);  // Value.bool_value
  } else {
    put_bytes(value, 3, text);  // Value.string_value
  }
  return value;
}

/// Serialises a Category of one multi-line chart over the tags that match a regular expression.
std::string category_of(std::string_view title, std::string_view tags) {
  std::string lines, chart, category;
  put_bytes(lines, 1, tags);      // MultilineChartContent.tag
  put_bytes(chart, 1, title);     // Chart.title
  put_bytes(chart, 2, lines);     // Chart.multiline
  put_bytes(category, 1, title);  // Category.title
  put_bytes(category, 2, chart);  // Category.chart
  return category;
}

constexpr std::string_view kHparamsPrefix = "_hparams_", kLayoutTag = "custom_scalars__config__";

bool get_varint(std::string_view bytes, size_t& offset, uint64_t& value) {
  value = 0;
  for (int shift = 0; shift < 64 && offset < bytes.size(); shift += 7) {
    const auto byte = static_cast<unsigned char>(bytes[offset++]);
    value |= static_cast<uint64_t>(byte & 0x7f) << shift;
    if (byte < 0x80) return true;
  }
  return false;
}

/// Calls visit(number, value of a varint, bytes of a length-delimited field) for each field of `message`. Returns
/// whether the whole message is in protobuf's wire format.
template <typename Visit>
bool for_each_field(std::string_view message, const Visit& visit) {
  for (size_t offset = 0; offset < message.size();) {
    uint64_t key = 0, value = 0;
    std::string_view bytes;
    if (!get_varint(message, offset, key)) return false;
    switch (key & 7) {
      case kVarint:
        if (!get_varint(message, offset, value)) return false;
        break;
      case kFixed64:
        offset += 8;
        break;
      case kFixed32:
        offset += 4;
        break;
      case kBytes:
        if (!get_varint(message, offset, value) || value > message.size() - offset) return false;
        bytes = message.substr(offset, value);
        offset += value;
        break;
      default:
        return false;
    }
    if (offset > message.size()) return false;
    visit(key >> 3, value, bytes);
  }
  return true;
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  static constexpr std::array<uint32_t, 256> kTable = make_crc_table();
  uint32_t crc = ~0u;
  for (unsigned char byte : bytes) crc = (crc >> 8) ^ kTable[(crc ^ byte) & 0xff];
  return ~crc;
}

std::string frame_record(std::string_view data) {
  std::string record;
  record.reserve(data.size() + 16);
  put<uint64_t>(record, data.size());
  put<uint32_t>(record, masked_crc(record));
  record += data;
  put<uint32_t>(record, masked_crc(data));
  return record;
}

std::optional<std::string_view> next_record(std::string_view bytes, size_t& offset) {
  const std::string_view rest = bytes.substr(offset);
  if (rest.size() < 16 || get<uint32_t>(rest, 8) != masked_crc(rest.substr(0, 8))) return std::nullopt;
  const uint64_t length = get<uint64_t>(rest, 0);
  if (length > rest.size() - 16) return std::nullopt;
  const std::string_view data = rest.substr(12, length);
  if (get<uint32_t>(rest, 12 + length) != masked_crc(data)) return std::nullopt;
  offset += 16 + length;
  return data;
}

EventBuilder::EventBuilder(double wall_time, int64_t step) {
  put_varint(event_, 1 << 3 | kFixed64);  // Event.wall_time
  put(event_, wall_time);
  if (step != 0) put_int(event_, 2, step);  // Event.step
}

void EventBuilder::file_version() { put_bytes(event_, 3, "brain.Event:2"); }  // Event.file_version

void EventBuilder::session_start() {
  std::string session;
  put_int(session, 1, 1);  // SessionLog.status = START
  put_bytes(event_, 7, session);
}

void EventBuilder::scalar(std::string_view tag, float value) {
  std::string entry;
  put_bytes(entry, 1, tag);              // Value.tag
  put_varint(entry, 2 << 3 | kFixed32);  // Value.simple_value
  put(entry, value);
  put_bytes(summary_, 1, entry);  // Summary.value
}

void EventBuilder::text(std::string_view tag, std::string_view text) {
  std::string dimension, shape, tensor, entry;
  put_int(dimension, 1, 1);                                            // Dim.size
  put_bytes(shape, 2, dimension);                                      // TensorShapeProto.dim
  put_int(tensor, 1, 7);                                               // TensorProto.dtype = DT_STRING
  put_bytes(tensor, 2, shape);                                         // TensorProto.tensor_shape
  put_bytes(tensor, 8, text);                                          // TensorProto.string_val
  put_bytes(entry, 1, tag);                                            // Value.tag
  put_bytes(entry, 8, tensor);                                         // Value.tensor
  put_bytes(entry, 9, plugin_metadata("text", "", /*data_class=*/2));  // Value.metadata
  put_bytes(summary_, 1, entry);
}

void EventBuilder::image(std::string_view tag, int64_t height, int64_t width, std::string_view png) {
  std::string image, entry;
  put_int(image, 1, height);   // Image.height
  put_int(image, 2, width);    // Image.width
  put_int(image, 3, 3);        // Image.colorspace: RGB
  put_bytes(image, 4, png);    // Image.encoded_image_string
  put_bytes(entry, 1, tag);    // Value.tag
  put_bytes(entry, 4, image);  // Value.image
  put_bytes(summary_, 1, entry);
}

void EventBuilder::histogram(std::string_view tag, const LogHistogram& h) {
  std::string limits, counts, histogram, entry;
  int64_t all = 0;
  const auto ranges = static_cast<double>(h.counts.size());
  for (size_t i = 0; i < h.counts.size(); ++i) {
    // The last limit is max itself, whatever the division rounds to.
    const bool is_last = i + 1 == h.counts.size();
    put(limits, is_last ? h.max : h.min + (h.max - h.min) * static_cast<double>(i + 1) / ranges);
    put(counts, static_cast<double>(h.counts[i]));
    all += h.counts[i];
  }
  put_double(histogram, 1, h.min);                     // HistogramProto.min
  put_double(histogram, 2, h.max);                     // .max
  put_double(histogram, 3, static_cast<double>(all));  // .num
  put_double(histogram, 4, h.sum);                     // .sum
  put_double(histogram, 5, h.sum_of_squares);          // .sum_squares
  put_bytes(histogram, 6, limits);                     // .bucket_limit, packed
  put_bytes(histogram, 7, counts);                     // .bucket, packed
  put_bytes(entry, 1, tag);                            // Value.tag
  put_bytes(entry, 5, histogram);                      // Value.histo
  put_bytes(summary_, 1, entry);
}

void EventBuilder::hparams(std::string_view tag, std::string_view content) {
  std::string dimension, shape, tensor, entry;
  put_int(dimension, 1, 1);                               // Dim.size
  put_bytes(shape, 2, dimension);                         // TensorShapeProto.dim
  put_int(tensor, 1, 1);                                  // TensorProto.dtype = DT_FLOAT
  put_bytes(tensor, 2, shape);                            // TensorProto.tensor_shape
  put_bytes(tensor, 5, std::string_view("\0\0\0\0", 4));  // TensorProto.float_val = [0]
  put_bytes(entry, 1, std::string(kHparamsPrefix) + "/" + std::string(tag));
  put_bytes(entry, 8, tensor);
  put_bytes(entry, 9, plugin_metadata("hparams", content, /*data_class=*/0));
  put_bytes(summary_, 1, entry);
}

void EventBuilder::hparams_start(const std::map<std::string, std::string>& settings, double wall_time) {
  std::string session, content;
  for (const auto& [name, text] : settings) {
    if (text == "null") continue;
    std::string entry;
    put_bytes(entry, 1, name);
    put_bytes(entry, 2, value_of(text));
    put_bytes(session, 1, entry);  // SessionStartInfo.hparams
  }
  put_double(session, 5, wall_time);  // SessionStartInfo.start_time_secs
  put_bytes(content, 3, session);     // HParamsPluginData.session_start_info; its version is 0
  hparams("session_start_info", content);
}

void EventBuilder::hparams_end(double wall_time) {
  std::string session, content;
  put_int(session, 1, 1);             // SessionEndInfo.status = STATUS_SUCCESS
  put_double(session, 2, wall_time);  // SessionEndInfo.end_time_secs
  put_bytes(content, 4, session);     // HParamsPluginData.session_end_info
  hparams("session_end_info", content);
}

void EventBuilder::chart_layout() {
  std::string layout, tensor, entry;
  // Names with a dot are details, such as the recall of each class.
  put_bytes(layout, 2, category_of("loss", "[^/]+/loss$"));  // Layout.category
  put_bytes(layout, 2, category_of("scores", "(val|test)/(?!loss$|epoch$)[^./]+$"));
  put_bytes(layout, 2, category_of("throughput", "train/.*_per_second$"));
  put_int(tensor, 1, 7);         // TensorProto.dtype = DT_STRING
  put_bytes(tensor, 2, "");      // TensorProto.tensor_shape: a scalar
  put_bytes(tensor, 8, layout);  // TensorProto.string_val
  put_bytes(entry, 1, kLayoutTag);
  put_bytes(entry, 8, tensor);
  put_bytes(entry, 9, plugin_metadata("custom_scalars", "", /*data_class=*/2));
  put_bytes(summary_, 1, entry);
}

std::string EventBuilder::finish() const {
  std::string event = event_;
  if (!summary_.empty()) put_bytes(event, 5, summary_);  // Event.summary
  return event;
}

std::optional<int64_t> event_step(std::string_view event) {
  int64_t step = 0;
  const bool whole = for_each_field(event, [&](uint64_t field, uint64_t value, std::string_view) {
    if (field == 2) step = static_cast<int64_t>(value);
  });
  return whole ? std::optional(step) : std::nullopt;
}

bool event_is_session(std::string_view event) {
  bool found = false;
  return for_each_field(event, [&](uint64_t field, uint64_t, std::string_view) { found = found || field == 7; }) &&
         found;
}

bool event_is_description(std::string_view event) {
  return event_is_of(event, kHparamsPrefix) || event_is_of(event, kLayoutTag);
}

bool event_is_of(std::string_view event, std::string_view split) {
  bool found = false;
  for_each_field(event, [&](uint64_t field, uint64_t, std::string_view summary) {
    if (field != 5) return;                                                    // Event.summary
    for_each_field(summary, [&](uint64_t, uint64_t, std::string_view entry) {  // Summary.value
      for_each_field(entry, [&](uint64_t name, uint64_t, std::string_view tag) {
        if (name != 1) return;  // Value.tag
        found = found || (tag.starts_with(split) && (tag.size() == split.size() || tag[split.size()] == '/'));
      });
    });
  });
  return found;
}

}  // namespace trainkit::detail
