#pragma once
/// Defines the constants of the zip format. Source: PKWARE's APPNOTE.TXT 6.3.10.

#include <cstddef>
#include <cstdint>

namespace trainkit::detail::zip {

inline constexpr uint32_t kLocalSignature = 0x04034b50;
inline constexpr uint32_t kCentralSignature = 0x02014b50;
inline constexpr uint32_t kEndSignature = 0x06054b50;
inline constexpr uint32_t kEnd64Signature = 0x06064b50;
inline constexpr uint32_t kLocator64Signature = 0x07064b50;

inline constexpr size_t kLocalBytes = 30;
inline constexpr size_t kCentralBytes = 46;
inline constexpr size_t kEndBytes = 22;
inline constexpr size_t kEnd64Bytes = 56;
inline constexpr size_t kLocator64Bytes = 20;

/// Flag: sizes and CRC follow the data, in a descriptor.
inline constexpr uint16_t kDescriptorFlag = 0x0008;
inline constexpr uint16_t kUtf8Flag = 0x0800;
/// Id of the extra field with numbers that exceed 32 bits.
inline constexpr uint16_t kZip64Id = 0x0001;
/// Placeholder for a number that is in the 64-bit record.
inline constexpr uint16_t kSee64In16 = 0xffff;
inline constexpr uint32_t kSee64In32 = 0xffffffff;

}  // namespace trainkit::detail::zip
