// State as bytes and back, little endian. A class says once what belongs to it, for both directions:
//   template <class A> void fields(A& archive) { archive(total_, names_, queue_); }
// Numbers, strings, pairs, containers of these, and classes with `fields`. Plain structs, without padding, say so by `static constexpr bool kFlat =
// true`. What is read is never believed: a Reader stops at the first part that is not there, gives zeros from then on, and says so. Not thread-safe.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace memsvc {

static_assert(std::endian::native == std::endian::little);

template <class T>
concept Flat = (std::is_arithmetic_v<T> && !std::is_same_v<T, bool>) || requires { requires T::kFlat && std::is_trivially_copyable_v<T>; };

template <class T>
concept Listed = requires(T list) {
  list.clear();
  list.begin();
  typename T::value_type;
};

template <class T>
concept Mapped = Listed<T> && requires { typename T::mapped_type; };

// Appends to `out`.
class Writer {
 public:
  static constexpr bool kReads = false;
  explicit Writer(std::vector<uint8_t>* out) : out_(out) {}

  template <class... T>
  void operator()(const T&... values) {
    (put(values), ...);
  }
  void bytes(const void* from, size_t n) { out_->insert(out_->end(), static_cast<const uint8_t*>(from), static_cast<const uint8_t*>(from) + n); }

  // Bytes that say how many they are: Reader::part.
  void sized(const std::vector<uint8_t>& part) { put(part); }

 private:
  template <class T>
  void put(const T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      put(static_cast<uint8_t>(value));
    } else if constexpr (std::is_enum_v<T>) {
      put(static_cast<std::underlying_type_t<T>>(value));
    } else if constexpr (Flat<T>) {
      bytes(&value, sizeof(value));
    } else if constexpr (Listed<T>) {
      put(static_cast<uint64_t>(value.size()));
      if constexpr (requires { value.data(); } && Flat<typename T::value_type>) {
        bytes(value.data(), value.size() * sizeof(typename T::value_type));
      } else {
        for (const auto& one : value) put(one);
      }
    } else if constexpr (requires { value.first; }) {
      put(value.first);
      put(value.second);
    } else {
      const_cast<T&>(value).fields(*this);  // one function for both directions
    }
  }

  std::vector<uint8_t>* out_;
};

class Reader {
 public:
  static constexpr bool kReads = true;
  Reader(const uint8_t* data, size_t size) : data_(data), left_(size) {}

  template <class... T>
  void operator()(T&... values) {
    (get(values), ...);
  }
  // A part was not there, or fail() was called.
  bool broken() const { return broken_; }
  void fail() { broken_ = true; }
  size_t left() const { return broken_ ? 0 : left_; }
  // The next part (Writer::sized), to be read by itself.
  Reader part() {
    uint64_t n = 0;
    get(n);
    const uint8_t* const begin = data_;
    if (!skip(n)) n = 0;
    Reader part(begin, n);
    part.broken_ = broken_;
    return part;
  }

 private:
  bool skip(uint64_t n) {
    broken_ = broken_ || n > left_;
    if (broken_) return false;
    data_ += n;
    left_ -= n;
    return true;
  }
  void bytes(void* to, uint64_t n) {
    if (n == 0) return;  // an empty array may have no address
    const uint8_t* const from = data_;
    if (skip(n)) {
      std::memcpy(to, from, n);
    } else {
      std::memset(to, 0, n);
    }
  }

  template <class T>
  void get(T& value) {
    if constexpr (std::is_same_v<T, bool>) {
      uint8_t byte = 0;
      get(byte);
      if (byte > 1) fail();
      value = byte == 1;
    } else if constexpr (std::is_enum_v<T>) {
      std::underlying_type_t<T> number;
      get(number);
      value = static_cast<T>(number);
    } else if constexpr (Flat<T>) {
      bytes(&value, sizeof(value));
    } else if constexpr (Listed<T>) {
      list(value);
    } else if constexpr (requires { value.first; }) {
      get(value.first);
      get(value.second);
    } else {
      value.fields(*this);
    }
  }

  template <class T>
  void list(T& value) {
    uint64_t many = 0;
    get(many);
    value.clear();
    if constexpr (requires { value.data(); } && Flat<typename T::value_type>) {
      if (many > left() / sizeof(typename T::value_type)) return fail();
      value.resize(many);
      return bytes(value.data(), many * sizeof(typename T::value_type));
    } else {
      // One by one: a length takes no more memory than the bytes that stand behind it.
      for (uint64_t i = 0; i < many && !broken_; ++i) {
        if (left_ == 0) return fail();
        if constexpr (Mapped<T>) {
          std::pair<typename T::key_type, typename T::mapped_type> one;
          get(one);
          if (!value.emplace(std::move(one)).second) fail();
        } else {
          typename T::value_type one{};
          get(one);
          value.insert(value.end(), std::move(one));
        }
      }
    }
  }

  const uint8_t* data_;
  size_t left_;
  bool broken_ = false;
};

// Of all bytes: what was torn, or flipped, has another one.
uint64_t checksum(const uint8_t* data, size_t size);
// Puts the checksum behind them; false where the last eight bytes are not that of those before.
void seal(std::vector<uint8_t>* bytes);
bool sealed(const uint8_t* data, size_t size);

}  // namespace memsvc
