// A connection by WebSocket (RFC 6455), for C++17 on Linux, macOS and Windows. An engine that has a WebSocket of its own may
// put it in the place of this file: BrokenError, and a class WebSocket with this constructor and `ask`.
//
// For wss://, which is TLS, define CROSSBORDER_TLS and link OpenSSL: -lssl -lcrypto.
#pragma once

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#ifdef _WIN32
#include <winsock2.h>
#include <ws2tcpip.h>
#else
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>
#include <cerrno>
#endif
#ifdef CROSSBORDER_TLS
#include <openssl/err.h>
#include <openssl/ssl.h>
#endif

#include "value.hpp"

namespace crossborder::detail {
#ifdef _WIN32
using Socket = SOCKET;
inline int poll(pollfd* one, int, int milliseconds) { return WSAPoll(one, 1, milliseconds); }
inline void close(Socket socket) { closesocket(socket); }
inline bool is_only_busy() { return WSAGetLastError() == WSAEWOULDBLOCK; }
inline void unblock(Socket socket) { u_long on = 1; ioctlsocket(socket, FIONBIO, &on); }
inline const int sockets_started = [] { WSADATA data; return WSAStartup(MAKEWORD(2, 2), &data); }();
#else
using Socket = int;
constexpr Socket INVALID_SOCKET = -1;
inline bool is_only_busy() { return errno == EAGAIN || errno == EINTR || errno == EINPROGRESS; }
inline void unblock(Socket socket) { fcntl(socket, F_SETFL, O_NONBLOCK); }
#endif
#ifndef MSG_NOSIGNAL
#define MSG_NOSIGNAL 0  // Windows has no SIGPIPE. On macOS, SO_NOSIGPIPE does the same.
#endif

/// The connection has broken, or, if it is late, its answer does not come.
struct BrokenError : std::runtime_error {
  bool is_late, is_too_big;
  explicit BrokenError(const std::string& why, bool late = false, bool too_big = false)
      : runtime_error(why), is_late(late), is_too_big(too_big) {}
};

using Clock = std::chrono::steady_clock;
inline Clock::time_point in_seconds(double seconds) {
  return Clock::now() + std::chrono::duration_cast<Clock::duration>(std::chrono::duration<double>(seconds));
}

/// The parts of ws://HOST:PORT or wss://HOST:PORT; a HOST of IPv6 is in brackets.
struct Url {
  const bool is_secure;
  std::string host, port;  // Empty if the address is of another kind.

  explicit Url(const std::string& address) : is_secure(address.rfind("wss://", 0) == 0) {
    const std::size_t begin = address.find("//") + 2, colon = address.rfind(':'), size = address.size();
    if ((!is_secure && address.rfind("ws://", 0)) || colon < begin || colon + 1 == size) return;
    const bool has_brackets = address[begin] == '[';
    host = address.substr(begin + has_brackets, colon - begin - 2 * has_brackets);
    port = address.substr(colon + 1, size - colon - 1 - (address[size - 1] == '/'));
  }
};

/// Carries binary messages, each of which is answered.
class WebSocket {
 public:
  /// @param ca  the file of the authority (PEM) that vouches for a secure host; empty: those that OpenSSL knows.
  /// @param timeout  seconds after which a connection without an answer counts as broken.
  WebSocket(const Url& url, const std::string& ca, double timeout) : seconds(timeout), end(in_seconds(timeout)) {
    addrinfo hints{}, *found = nullptr;
    hints.ai_socktype = SOCK_STREAM;
    if (getaddrinfo(url.host.c_str(), url.port.c_str(), &hints, &found)) throw BrokenError("nobody knows this host");
    const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> addresses(found, freeaddrinfo);
    bool is_open = false;
    for (auto* each = found; each && !is_open; each = each->ai_next) is_open = try_address(*each);
    if (!is_open) throw BrokenError("nobody listens there");
    if (url.is_secure) start_tls(url.host, ca);
    shake_hands(url.host + ":" + url.port);
  }

  /// Send a message and wait for the next one.
  ///
  /// @throws BrokenError  there is no answer.
  std::string ask(const std::string& message) {
    end = in_seconds(seconds);
    send_frame(2, message);
    return read_message();
  }

 private:
  struct Handle {
    Socket socket;
    ~Handle() { if (socket != INVALID_SOCKET) close(socket); }
  } handle{INVALID_SOCKET};
  const double seconds;
  Clock::time_point end;  // Of the present wait.
  std::string received;   // And not yet taken.
  std::mt19937 random{std::random_device{}()};

  void wait(short events) {
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(end - Clock::now()).count();
    pollfd one{handle.socket, events, 0};
    if (left <= 0 || !poll(&one, 1, int(left))) throw BrokenError("no answer in time", true);
  }

  bool try_address(const addrinfo& at) {
    if (handle.socket != INVALID_SOCKET) close(handle.socket);
    handle.socket = ::socket(at.ai_family, at.ai_socktype, at.ai_protocol);
    if (handle.socket == INVALID_SOCKET) return false;
    unblock(handle.socket);
    int on = 1, error = 0;
    setsockopt(handle.socket, IPPROTO_TCP, TCP_NODELAY, reinterpret_cast<const char*>(&on), sizeof on);
#ifdef SO_NOSIGPIPE
    setsockopt(handle.socket, SOL_SOCKET, SO_NOSIGPIPE, &on, sizeof on);
#endif
    if (!::connect(handle.socket, at.ai_addr, socklen_t(at.ai_addrlen))) return true;
    if (!is_only_busy()) return false;
    wait(POLLOUT);
    socklen_t size = sizeof error;
    return !getsockopt(handle.socket, SOL_SOCKET, SO_ERROR, reinterpret_cast<char*>(&error), &size) && !error;
  }

  void send_plain(const char* data, std::size_t size) {
    while (size) {
      const auto sent = ::send(handle.socket, data, size, MSG_NOSIGNAL);
      if (sent < 0 && !is_only_busy()) throw BrokenError("the connection has broken");
      if (sent < 0) wait(POLLOUT);
      else data += sent, size -= std::size_t(sent);
    }
  }

  std::size_t receive_plain(char* data, std::size_t size) {
    for (;; wait(POLLIN)) {
      const auto found = ::recv(handle.socket, data, size, 0);
      if (found > 0) return std::size_t(found);
      if (!found || !is_only_busy()) throw BrokenError("the connection has broken");
    }
  }

#ifdef CROSSBORDER_TLS
  std::unique_ptr<SSL_CTX, decltype(&SSL_CTX_free)> context{SSL_CTX_new(TLS_client_method()), SSL_CTX_free};
  std::unique_ptr<SSL, decltype(&SSL_free)> tls{nullptr, SSL_free};

  void start_tls(const std::string& host, const std::string& ca) {
    if (!(ca.empty() ? SSL_CTX_set_default_verify_paths(context.get())
                     : SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr)))
      throw std::invalid_argument("ca: expected a file of authorities (PEM), found '" + ca + "'");
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    tls.reset(SSL_new(context.get()));
    SSL_set_bio(tls.get(), BIO_new(BIO_s_mem()), BIO_new(BIO_s_mem()));
    SSL_set_tlsext_host_name(tls.get(), host.c_str());
    SSL_set1_host(tls.get(), host.c_str());
    with_tls([this] { return SSL_connect(tls.get()); });
  }

  /// Call OpenSSL, which reads and writes in memory, until it has what it needs from the other end.
  template <class Call>
  int with_tls(Call call) {
    for (char block[1 << 14];;) {
      ERR_clear_error();
      const int result = call(), kind = SSL_get_error(tls.get(), result);
      for (int n; (n = BIO_read(SSL_get_wbio(tls.get()), block, sizeof block)) > 0;) send_plain(block, std::size_t(n));
      if (result > 0) return result;
      if (const auto found = SSL_get_verify_result(tls.get()); found != X509_V_OK)
        throw BrokenError(std::string("certificate: ") + X509_verify_cert_error_string(found));
      if (kind != SSL_ERROR_WANT_READ) throw BrokenError("TLS has failed");
      BIO_write(SSL_get_rbio(tls.get()), block, int(receive_plain(block, sizeof block)));
    }
  }

  void send(const std::string& data) {
    if (!tls) return send_plain(data.data(), data.size());
    with_tls([&] { return SSL_write(tls.get(), data.data(), int(data.size())); });
  }
  std::size_t receive(char* data, std::size_t size) {
    if (!tls) return receive_plain(data, size);
    return std::size_t(with_tls([&] { return SSL_read(tls.get(), data, int(size)); }));
  }
#else
  void start_tls(const std::string&, const std::string&) {
    throw std::invalid_argument("address: wss:// needs OpenSSL: define CROSSBORDER_TLS, and link -lssl -lcrypto");
  }
  void send(const std::string& data) { send_plain(data.data(), data.size()); }
  std::size_t receive(char* data, std::size_t size) { return receive_plain(data, size); }
#endif

  std::string take(std::uint64_t size) {
    for (char block[1 << 14]; received.size() < size;) received.append(block, receive(block, sizeof block));
    std::string taken = received.substr(0, std::size_t(size));
    received.erase(0, std::size_t(size));
    return taken;
  }

  void shake_hands(const std::string& host) {
    std::string nonce;
    for (int i = 0; i < 16; i++) nonce += char(random());
    const std::string key = base64(nonce);
    send("GET / HTTP/1.1\r\nHost: " + host + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + "\r\n\r\n");
    std::string head;
    while (head.size() < 1 << 14 && head.find("\r\n\r\n") == head.npos) head += take(1);
    const std::string accepted = base64(sha1(key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"));
    if (head.find(" 101 ") == head.npos || head.find(accepted) == head.npos)
      throw BrokenError("expected WebSocket, found '" + head.substr(0, 40) + "'; is this the address of --websocket?");
  }

  void send_frame(int opcode, const std::string& payload) {
    const auto n = payload.size();
    const std::string mask = big_endian(random(), 4);
    std::string frame(1, char(128 | opcode));
    frame += n < 126 ? char(128 | n) : n < 1 << 16 ? char(128 | 126) : char(128 | 127);
    frame += big_endian(n, n < 126 ? 0 : n < 1 << 16 ? 2 : 8) + mask;
    for (std::size_t i = 0; i < n; i++) frame += char(payload[i] ^ mask[i % 4]);
    send(frame);
  }

  std::string read_message() {
    for (std::string message;;) {
      const std::string head = take(2);
      const int opcode = head[0] & 15, size = std::uint8_t(head[1]);
      const std::string payload = take(size < 126 ? std::uint64_t(size) : from_big_endian(take(size == 126 ? 2 : 8)));
      if (opcode == 8) {
        const bool is_too_big = payload.compare(0, 2, "\x03\xf1") == 0;  // 1009.
        throw BrokenError("the other end has closed the connection", false, is_too_big);
      }
      if (opcode == 9) send_frame(10, payload);  // A ping wants its pong.
      if (opcode > 2) continue;
      message += payload;
      if (head[0] & 128) return message;
    }
  }

  static std::string base64(const std::string& bytes) {
    static const char* const digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    std::string text;
    for (std::size_t at = 0; at < bytes.size(); at += 3) {
      std::string three = bytes.substr(at, 3);
      three.resize(3);
      const auto number = from_big_endian(three);
      for (std::size_t i = 0; i < 4; i++) text += at + i > bytes.size() ? '=' : digits[number >> (18 - 6 * i) & 63];
    }
    return text;
  }

  /// RFC 3174.
  static std::string sha1(std::string data) {
    std::uint32_t h[5] = {0x67452301, 0xefcdab89, 0x98badcfe, 0x10325476, 0xc3d2e1f0};
    static constexpr std::uint32_t k[4] = {0x5a827999, 0x6ed9eba1, 0x8f1bbcdc, 0xca62c1d6};
    const auto turn = [](std::uint32_t word, int by) { return word << by | word >> (32 - by); };
    const auto bits = big_endian(8 * data.size(), 8);
    data += '\x80';
    data.append((120 - data.size() % 64) % 64, '\0');
    data += bits;
    for (std::size_t at = 0; at < data.size(); at += 64) {
      std::uint32_t w[80], a = h[0], b = h[1], c = h[2], d = h[3], e = h[4];
      for (int i = 0; i < 80; i++) {
        w[i] = i < 16 ? std::uint32_t(from_big_endian(data.substr(at + 4 * std::size_t(i), 4)))
                      : turn(w[i - 3] ^ w[i - 8] ^ w[i - 14] ^ w[i - 16], 1);
        const std::uint32_t f = i < 20 ? (b & c) | (~b & d) : i / 20 == 2 ? (b & c) | (b & d) | (c & d) : b ^ c ^ d;
        const std::uint32_t next = turn(a, 5) + f + e + k[i / 20] + w[i];
        e = d, d = c, c = turn(b, 30), b = a, a = next;
      }
      h[0] += a, h[1] += b, h[2] += c, h[3] += d, h[4] += e;
    }
    std::string digest;
    for (const std::uint32_t word : h) digest += big_endian(word, 4);
    return digest;
  }
};
}  // namespace crossborder::detail
