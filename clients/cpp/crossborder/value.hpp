// The values of a client's messages, and MessagePack, in which they travel.
#pragma once

#include <cstdint>
#include <cstring>
#include <map>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace crossborder {
/// An observation, an action, or a part of one: a number, nested lists of numbers in the leaf's shape, or Fields by path
/// ("arm/joints"). A std::vector of std::uint8_t is the leaf's bytes: the pixels of a picture, in the order of its shape.
struct Value {
  using Bytes = std::vector<std::uint8_t>;
  using List = std::vector<Value>;
  using Fields = std::map<std::string, Value>;
  std::variant<std::nullptr_t, bool, std::int64_t, double, std::string, Bytes, List, Fields> held = nullptr;

  Value() = default;
  Value(const char* text) : held(std::string(text)) {}
  Value(std::string text) : held(std::move(text)) {}
  Value(Bytes bytes) : held(std::move(bytes)) {}
  Value(List list) : held(std::move(list)) {}
  Value(Fields fields) : held(std::move(fields)) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(T number) {
    if constexpr (std::is_same_v<T, bool>) held = number;
    else held = std::conditional_t<std::is_integral_v<T>, std::int64_t, double>(number);
  }
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(const std::vector<T>& numbers) : held(List(numbers.begin(), numbers.end())) {}
  template <class T, class = std::enable_if_t<std::is_arithmetic_v<T>>>
  Value(std::initializer_list<T> numbers) : held(List(numbers.begin(), numbers.end())) {}

  template <class T>
  const T* find() const { return std::get_if<T>(&held); }
  std::int64_t integer() const { return get<std::int64_t>("a whole number"); }
  double number() const { return find<double>() ? *find<double>() : double(integer()); }
  const std::string& text() const { return get<std::string>("text"); }
  const List& list() const { return get<List>("a list"); }
  const Fields& fields() const { return get<Fields>("values by path"); }
  const Value& operator[](const std::string& path) const {
    if (const auto found = fields().find(path); found != fields().end()) return found->second;
    throw std::invalid_argument("expected a value of '" + path + "', found none");
  }
  std::vector<double> numbers() const {  // A single one, or those of nested lists in the order of their shape.
    if (!find<List>()) return {number()};
    std::vector<double> found;
    for (const Value& part : list()) for (const double each : part.numbers()) found.push_back(each);
    return found;
  }

 private:
  template <class T>
  const T& get(const std::string& kind) const {
    if (find<T>()) return *find<T>();
    throw std::invalid_argument("expected " + kind + ", found a value of another kind");
  }
};

namespace detail {
/// The n lowest bytes of a number, the highest of them first.
inline std::string big_endian(std::uint64_t number, int n) {
  std::string bytes;
  while (n--) bytes += char(number >> 8 * n);
  return bytes;
}

inline std::uint64_t from_big_endian(const std::string& bytes) {
  std::uint64_t number = 0;
  for (const char each : bytes) number = number << 8 | std::uint8_t(each);
  return number;
}

template <class To, class From>
To same_bits(From from) {
  To to;
  std::memcpy(&to, &from, sizeof to);
  return to;
}

/// A value as MessagePack, each part in its longest form.
inline std::string write(const Value& value) {
  return std::visit([](const auto& held) -> std::string {
    using T = std::decay_t<decltype(held)>;
    if constexpr (std::is_same_v<T, std::nullptr_t>) return "\xc0";
    else if constexpr (std::is_same_v<T, bool>) return held ? "\xc3" : "\xc2";
    else if constexpr (std::is_same_v<T, std::int64_t>) return '\xd3' + big_endian(std::uint64_t(held), 8);
    else if constexpr (std::is_same_v<T, double>) return '\xcb' + big_endian(same_bits<std::uint64_t>(held), 8);
    else {
      constexpr bool is_text = std::is_same_v<T, std::string>, is_list = std::is_same_v<T, Value::List>;
      constexpr bool is_bytes = std::is_same_v<T, Value::Bytes>;
      std::string out = (is_text ? '\xdb' : is_bytes ? '\xc6' : is_list ? '\xdd' : '\xdf') + big_endian(held.size(), 4);
      if constexpr (is_text || is_bytes) out.append(held.begin(), held.end());
      else if constexpr (is_list) for (const Value& part : held) out += write(part);
      else for (const auto& [path, part] : held) out += write(path) + write(part);
      return out;
    }
  }, value.held);
}

/// Reads MessagePack.
struct Reader {
  const std::string& in;
  std::size_t at = 0;

  Value read() {
    const int head = int(number(1)), n = 1 << (head & 3), more = 2 << (head & 1);  // How many bytes a number has.
    if (head < 0x80 || head >= 0xe0) return std::int8_t(head);
    if (head < 0xa0) return parts(std::uint64_t(head & 15), head < 0x90);
    if (head < 0xc0) return bytes(std::uint64_t(head & 31));
    if (head < 0xc4) return head == 0xc0 ? Value() : Value(head == 0xc3);
    if (head < 0xc7) return bytes(number(n));
    if (head == 0xca) return same_bits<float>(std::uint32_t(number(4)));
    if (head == 0xcb) return same_bits<double>(number(8));
    if (head < 0xd0) return std::int64_t(number(n));
    if (head < 0xd4) return std::int64_t(number(n) << (64 - 8 * n)) >> (64 - 8 * n);  // Its sign fills the upper bytes.
    return head < 0xdc ? Value(bytes(number(1 << (head - 0xd9)))) : parts(number(more), head >= 0xde);
  }

 private:
  std::string bytes(std::uint64_t n) {
    if (n > in.size() - at) throw std::out_of_range("a message was cut short");
    at += std::size_t(n);
    return in.substr(at - std::size_t(n), std::size_t(n));
  }
  std::uint64_t number(int n) { return from_big_endian(bytes(std::uint64_t(n))); }
  Value parts(std::uint64_t n, bool have_paths) {
    Value::List list;
    Value::Fields fields;
    while (n--) {
      Value part = read();
      if (have_paths) fields[part.text()] = read();
      else list.push_back(std::move(part));
    }
    return have_paths ? Value(std::move(fields)) : Value(std::move(list));
  }
};
}  // namespace detail
}  // namespace crossborder
