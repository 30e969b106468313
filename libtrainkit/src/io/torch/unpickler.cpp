// Implements the unpickler's stack machine: opcodes, stack, memo and containers.
#include "io/torch/unpickler.h"

#include <fmt/format.h>

#include <array>
#include <bit>
#include <cstring>

#include "io/torch/unpickler_limits.h"
#include "trainkit/core/status.h"

namespace trainkit::detail {
namespace {

// Note [Restricted unpickler]
//
// In Python, unpickling runs code: GLOBAL imports any name and REDUCE calls it. Here, names are looked up in a fixed
// list (push_global) and REDUCE selects one of a few built-in functions (Unpickler::call), which only create values. An
// unknown name or opcode ends the load with an error.
//
// Values are 16-byte structs that refer to each other by index, not by pointer. So copying shared containers is cheap,
// and a container that contains itself cannot cause recursion here; pickle_names.cpp limits its depth.
//
// One byte of input can create a value, a list or a memo entry, so every container has a limit (unpickler_limits.h),
// together below 200 MiB. The stack below the last mark must not be touched: opcodes check against marks_.back() before
// they pop. Sizes, strides and offsets are checked with overflow-safe arithmetic against the storage (check_bounds),
// and storages against the file (torch_file_layout.cpp), before any tensor exists.

/// Opcodes that torch.save may write, in protocols 2 to 5. Source: CPython's Lib/pickle.py.
enum Opcode : uint8_t {
  kMark = '(',
  kStop = '.',
  kPop = '0',
  kPopMark = '1',
  kBinFloat = 'G',
  kBinInt = 'J',
  kBinInt1 = 'K',
  kBinInt2 = 'M',
  kNone = 'N',
  kBinPersistentId = 'Q',
  kReduce = 'R',
  kBinString = 'T',
  kShortBinString = 'U',
  kBinUnicode = 'X',
  kAppend = 'a',
  kBuild = 'b',
  kGlobal = 'c',
  kAppends = 'e',
  kBinGet = 'h',
  kLongBinGet = 'j',
  kBinPut = 'q',
  kLongBinPut = 'r',
  kSetItem = 's',
  kTuple = 't',
  kSetItems = 'u',
  kEmptyDict = '}',
  kEmptyList = ']',
  kEmptyTuple = ')',
  kBinBytes = 'B',
  kShortBinBytes = 'C',
  kProto = 0x80,
  kNewObj = 0x81,
  kTuple1 = 0x85,
  kTuple2 = 0x86,
  kTuple3 = 0x87,
  kNewTrue = 0x88,
  kNewFalse = 0x89,
  kLong1 = 0x8a,
  kLong4 = 0x8b,
  kShortBinUnicode = 0x8c,
  kBinUnicode8 = 0x8d,
  kBinBytes8 = 0x8e,
  kEmptySet = 0x8f,
  kAddItems = 0x90,
  kFrozenSet = 0x91,
  kStackGlobal = 0x93,
  kMemoize = 0x94,
  kFrame = 0x95,
  kByteArray8 = 0x96
};

}  // namespace

absl::Status Unpickler::refuse(std::string problem, std::string got, std::string expected, std::string hint) const {
  Error error = input_.error(opcode_at_, std::move(problem));
  error.got = std::move(got);
  error.expected = std::move(expected);
  error.hint = std::move(hint);
  return to_status(error);
}

std::string Unpickler::describe(const PickleValue& value) const {
  constexpr std::array kNames = {"None",           "a boolean", "an integer", "a float", "a large integer", "text",
                                 "bytes",          "a tuple",   "a list",     "a dict",  "a function",      "a dtype",
                                 "a storage type", "a storage", "a tensor",   "a class", "an object",       "nothing"};
  return kNames.at(static_cast<size_t>(value.kind));
}

absl::StatusOr<PickleValue> Unpickler::load() {
  stack_.clear();
  marks_.clear();
  memo_.clear();
  opcode_at_ = input_.position();
  TRAINKIT_ASSIGN_OR_RETURN(const std::string_view start, input_.take(2));
  if (static_cast<uint8_t>(start[0]) != kProto || start[1] < 2 || start[1] > 5) {
    return refuse("no pickle of protocol 2 to 5 begins here",
                  fmt::format("0x{:02x}{:02x}", static_cast<uint8_t>(start[0]), static_cast<uint8_t>(start[1])));
  }
  for (;;) {
    opcode_at_ = input_.position();
    TRAINKIT_ASSIGN_OR_RETURN(const uint64_t opcode, number(1));
    if (opcode == kStop) break;
    TRAINKIT_RETURN_IF_ERROR(run(static_cast<uint8_t>(opcode)));
  }
  if (stack_.size() != 1 || !marks_.empty())
    return refuse("the pickle does not end with exactly one value", fmt::format("{}", stack_.size()));
  return stack_.back();
}

absl::Status Unpickler::run(uint8_t opcode) {
  switch (opcode) {
    case kNone:
      return push({});
    case kNewTrue:
    case kNewFalse:
      return push(integer_value(Kind::kBool, opcode == kNewTrue));
    case kBinInt:
    case kBinInt1:
    case kBinInt2:
    case kLong1:
    case kLong4:
    case kBinFloat:
      return run_number(opcode);
    case kBinString:
    case kShortBinString:
    case kBinUnicode:
    case kShortBinUnicode:
    case kBinUnicode8:
    case kBinBytes:
    case kShortBinBytes:
    case kBinBytes8:
    case kByteArray8:
      return run_text(opcode);
    case kBinGet:
    case kLongBinGet:
    case kBinPut:
    case kLongBinPut:
    case kMemoize:
      return run_memo(opcode);
    case kReduce:
      return call();
    case kNewObj:
      return new_object();
    case kBuild:
      return build();
    case kBinPersistentId:
      return persistent_load();
    case kFrame:
      return number(8).status();  // the frame size only helps to read ahead
    case kGlobal: {
      TRAINKIT_ASSIGN_OR_RETURN(const std::string_view line, input_.line());
      const std::string module(line);
      TRAINKIT_ASSIGN_OR_RETURN(const std::string_view name, input_.line());
      return push_global(module, name);
    }
    case kStackGlobal: {
      TRAINKIT_ASSIGN_OR_RETURN(const PickleValue name, pop());
      TRAINKIT_ASSIGN_OR_RETURN(const PickleValue module, pop());
      if (name.kind != Kind::kText || module.kind != Kind::kText) return refuse("a global has no name");
      return push_global(text(module), text(name));
    }
    default:
      return run_container(opcode);
  }
}

absl::Status Unpickler::run_number(uint8_t opcode) {
  switch (opcode) {
    case kBinInt1:
    case kBinInt2: {
      TRAINKIT_ASSIGN_OR_RETURN(const uint64_t bits, number(opcode == kBinInt1 ? 1 : 2));
      return push(integer_value(Kind::kInt, static_cast<int64_t>(bits)));
    }
    case kBinInt: {
      TRAINKIT_ASSIGN_OR_RETURN(const uint64_t bits, number(4));
      return push(integer_value(Kind::kInt, static_cast<int32_t>(bits)));
    }
    case kBinFloat: {
      TRAINKIT_ASSIGN_OR_RETURN(const uint64_t bits, number(8));
      PickleValue value;
      value.kind = Kind::kFloat;
      value.number = std::bit_cast<double>(__builtin_bswap64(bits));
      return push(value);
    }
    default: {
      TRAINKIT_ASSIGN_OR_RETURN(const uint64_t length, number(opcode == kLong1 ? 1 : 4));
      TRAINKIT_ASSIGN_OR_RETURN(const std::string_view bytes, input_.take(length));
      return push_integer(bytes);
    }
  }
}

absl::Status Unpickler::push_integer(std::string_view little_endian) {
  const size_t count = little_endian.size();
  if (count > 8) return push(reference(Kind::kBigInt, input_.position() - count, count));
  uint64_t bits = 0;
  std::memcpy(&bits, little_endian.data(), count);
  if (count > 0 && count < 8 && (little_endian.back() & 0x80)) bits |= ~uint64_t{0} << (8 * count);
  return push(integer_value(Kind::kInt, static_cast<int64_t>(bits)));
}

absl::Status Unpickler::run_text(uint8_t opcode) {
  switch (opcode) {
    case kShortBinString:  // str of Python 2
    case kShortBinUnicode:
      return push_text(Kind::kText, 1);
    case kBinString:
    case kBinUnicode:
      return push_text(Kind::kText, 4);
    case kBinUnicode8:
      return push_text(Kind::kText, 8);
    case kShortBinBytes:
      return push_text(Kind::kBytes, 1);
    case kBinBytes:
      return push_text(Kind::kBytes, 4);
    default:
      return push_text(Kind::kBytes, 8);
  }
}

absl::Status Unpickler::push_text(Kind kind, int length_bytes) {
  TRAINKIT_ASSIGN_OR_RETURN(const uint64_t length, number(length_bytes));
  TRAINKIT_RETURN_IF_ERROR(input_.take(length).status());
  return push(reference(kind, input_.position() - length, length));
}

absl::Status Unpickler::run_container(uint8_t opcode) {
  switch (opcode) {
    case kMark:
      if (marks_.size() == kMaxValues) return refuse("too many marks", "", fmt::format("at most {}", kMaxValues));
      marks_.push_back(stack_.size());
      return absl::OkStatus();
    case kPop:
      return pop().status();
    case kPopMark: {
      TRAINKIT_ASSIGN_OR_RETURN(const size_t from, pop_mark());
      stack_.resize(from);
      return absl::OkStatus();
    }
    case kEmptyTuple:
      return push_tuple(0);
    case kTuple1:
      return push_tuple(1);
    case kTuple2:
      return push_tuple(2);
    case kTuple3:
      return push_tuple(3);
    case kTuple: {
      TRAINKIT_ASSIGN_OR_RETURN(const size_t from, pop_mark());
      return push_tuple(stack_.size() - from);
    }
    case kEmptyList:
    case kEmptySet:
      return push_list(Kind::kList, {});
    case kEmptyDict:
      return push_list(Kind::kDict, {});
    case kFrozenSet: {
      TRAINKIT_ASSIGN_OR_RETURN(const size_t from, pop_mark());
      std::vector<PickleValue> items(stack_.begin() + static_cast<int64_t>(from), stack_.end());
      stack_.resize(from);
      return push_list(Kind::kList, std::move(items));
    }
    case kAppend:
    case kSetItem: {
      const size_t count = opcode == kAppend ? 1 : 2;
      const size_t floor = marks_.empty() ? 0 : marks_.back();
      if (stack_.size() - floor < count) return refuse("a value is missing on the stack");
      return add_items(opcode == kAppend ? Kind::kList : Kind::kDict, stack_.size() - count);
    }
    case kAppends:
    case kAddItems:
    case kSetItems: {
      TRAINKIT_ASSIGN_OR_RETURN(const size_t from, pop_mark());
      return add_items(opcode == kSetItems ? Kind::kDict : Kind::kList, from);
    }
    default:
      return refuse("opcode not allowed", fmt::format("0x{:02x}", opcode), "one that torch.save writes", kSaveAgain);
  }
}

absl::Status Unpickler::add_items(Kind kind, size_t from) {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (from == 0 || from - 1 < floor) return refuse("a value is missing on the stack");
  const PickleValue target = stack_[from - 1];
  if (target.kind != kind)
    return refuse("items are added to a value that is not a container", describe(target),
                  kind == Kind::kDict ? "a dict" : "a list");
  if (kind == Kind::kDict && (stack_.size() - from) % 2 != 0) return refuse("a key has no value");
  auto& items = lists_[target.offset];
  items.insert(items.end(), stack_.begin() + static_cast<int64_t>(from), stack_.end());
  stack_.resize(from);
  return absl::OkStatus();
}

absl::Status Unpickler::push(PickleValue value) {
  if (++values_ > max_values(tensors_.size()))
    return refuse("the pickle has too many values", "", describe_max_values(), kSaveAgain);
  stack_.push_back(value);
  return absl::OkStatus();
}

absl::Status Unpickler::push_tuple(size_t count) {
  const size_t floor = marks_.empty() ? 0 : marks_.back();
  if (stack_.size() - floor < count) return refuse("a value is missing on the stack");
  const uint64_t offset = tuples_.size();
  tuples_.insert(tuples_.end(), stack_.end() - static_cast<int64_t>(count), stack_.end());
  stack_.resize(stack_.size() - count);
  return push(reference(Kind::kTuple, offset, count));
}

absl::Status Unpickler::push_list(Kind kind, std::vector<PickleValue> items) {
  if (lists_.size() == kMaxLists)
    return refuse("the pickle has too many lists and dicts", "", fmt::format("at most {}", kMaxLists), kSaveAgain);
  lists_.push_back(std::move(items));
  return push(reference(kind, lists_.size() - 1));
}

absl::StatusOr<PickleValue> Unpickler::pop() {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return refuse("a value is missing on the stack");
  const PickleValue value = stack_.back();
  stack_.pop_back();
  return value;
}

absl::StatusOr<size_t> Unpickler::pop_mark() {
  if (marks_.empty()) return refuse("a mark is missing on the stack");
  const size_t from = marks_.back();
  marks_.pop_back();
  return from;
}

absl::StatusOr<uint64_t> Unpickler::number(int bytes) {
  TRAINKIT_ASSIGN_OR_RETURN(const std::string_view text, input_.take(static_cast<uint64_t>(bytes)));
  uint64_t value = 0;
  std::memcpy(&value, text.data(), text.size());
  return value;
}

absl::Status Unpickler::run_memo(uint8_t opcode) {
  if (opcode == kMemoize) return remember(memo_.size());
  TRAINKIT_ASSIGN_OR_RETURN(const uint64_t index, number(opcode == kBinGet || opcode == kBinPut ? 1 : 4));
  return opcode == kBinGet || opcode == kLongBinGet ? recall(index) : remember(index);
}

absl::Status Unpickler::remember(uint64_t index) {
  if (stack_.size() <= (marks_.empty() ? 0 : marks_.back())) return refuse("a value is missing on the stack");
  // Python numbers memo entries upwards from 0 (or from 1). An index far ahead could only serve to request memory.
  if (index >= kMaxMemo || index > memo_.size() + 1) {
    return refuse("the memo has a hole", fmt::format("entry {}", index), fmt::format("at most {}", memo_.size() + 1));
  }
  if (index >= memo_.size()) memo_.resize(index + 1, integer_value(Kind::kUnset, 0));
  memo_[index] = stack_.back();
  return absl::OkStatus();
}

absl::Status Unpickler::recall(uint64_t index) {
  if (index >= memo_.size() || memo_[index].kind == Kind::kUnset)
    return refuse("the memo entry was never stored", fmt::format("entry {}", index));
  return push(memo_[index]);
}

}  // namespace trainkit::detail
