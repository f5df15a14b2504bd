// A client of crossborder's acting service, for C++17: copy this file. It needs nlohmann-json (3.8 or later, headers only)
// and OpenSSL (1.1.1 or later): link -lssl -lcrypto, on Windows also -lws2_32.
//
//   crossborder::Session session("ws://127.0.0.1:50061");
//   auto action = session.act(observation);          // the first observation of an episode
//   action = session.act(observation, reward);       // each further one, and the reward of the step before it
//   session.act(observation, reward, true);          // the last one: terminated; what it returns has no meaning
#pragma once

#ifdef _WIN32
#include <winsock2.h>
inline int poll(pollfd* sockets, unsigned long n, int milliseconds) { return WSAPoll(sockets, n, milliseconds); }
#else
#include <poll.h>
#endif
#include <openssl/err.h>
#include <openssl/rand.h>
#include <openssl/sha.h>
#include <openssl/ssl.h>

#include <algorithm>
#include <chrono>
#include <csignal>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <thread>

namespace crossborder {
/// An observation or an action: a number, nested lists of numbers in the leaf's shape, or values by path ("arm/joints"). The
/// pixels of a picture, in the order of its shape, are `Value::binary(bytes)`. Of an action, `get<int>()` is the number.
using Value = nlohmann::json;

/// Why a call has failed: `name` is "bad_argument" for an address or an authority, "out_of_reach" after `patience` seconds
/// without a service, or else the service has refused the message, which has changed nothing. After "bad_message", call
/// again as it should be; after "run_over", end.
struct Error : std::runtime_error {
  std::string name;
  Error(const std::string& kind, const std::string& why) : runtime_error(kind + ": " + why), name(kind) {}
};

/// One lane's observation, and how the step before it went.
struct Step {
  int lane = 0;
  Value observation{};
  double reward = 0;
  bool terminated = false, truncated = false;  // The episode has ended: by its own rules, or by a limit of time.
  bool restarted = false;  // The episode before broke off without an end; this observation begins the next one.
  Value executed{};  // The action of the step before, if a person or a safety layer has chosen it.
};

struct Options {
  std::string token{};  // By which the service knows this client.
  int lanes = 1;  // How many characters, robots or copies of a game act; they are counted from 0.
  double timeout = 60;  // Seconds after which a connection without an answer counts as broken.
  double patience = 120;  // Seconds after which a service that is out of reach is given up, or has no room.
  std::string policy{};  // The name of one, if the service has several; empty: the first.
  std::string ca{};  // The file of the authority (PEM) that vouches for the service; empty: those that OpenSSL knows.
};

namespace detail {
inline double now() { return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count(); }
inline unsigned char* raw(std::string& bytes) { return reinterpret_cast<unsigned char*>(bytes.data()); }
inline std::string base64(std::string bytes) {
  std::string text((bytes.size() + 2) / 3 * 4, '\0');
  EVP_EncodeBlock(raw(text), raw(bytes), int(bytes.size()));
  return text;
}

/// A connection by WebSocket (RFC 6455) that carries MessagePack. If it breaks, or no answer comes in time, the name of its
/// Error is "broken" or "late", which no user of a Session sees.
struct Wire {
  const int most_silent;  // Milliseconds.
  std::shared_ptr<BIO> bio;

  Wire(const std::string& address, const Options& given)
      : most_silent(int(1000 * (std::min)(given.timeout, given.patience))) {
    const std::size_t begin = address.find("//") + 2;
    const std::string place = address.substr(begin, address.find('/', begin) - begin);  // HOST:PORT, or of IPv6 [HOST]:PORT.
    const auto tls = address[2] == 's' ? make_tls(place.substr(0, place.rfind(':')), given.ca) : nullptr;
    bio.reset(tls ? tls : BIO_new(BIO_s_connect()), BIO_free_all);
    BIO_set_conn_hostname(bio.get(), place.c_str());
#ifdef SIGPIPE  // Writing to a broken connection would end the program.
    if (const auto former = std::signal(SIGPIPE, SIG_IGN); former != SIG_DFL) std::signal(SIGPIPE, former);
#endif
    BIO_set_conn_mode(bio.get(), BIO_SOCK_NONBLOCK | BIO_SOCK_NODELAY);
    complete([this] { return BIO_do_connect(bio.get()); });
    shake_hands(place);
  }

  /// Send a message and wait for the answer of a kind.
  Value ask(const Value& message, const char* kind) {
    std::string bytes;
    Value::to_msgpack(message, bytes);
    send_frame(2, bytes);
    const Value answer = Value::from_msgpack(read_message());
    if (answer.contains("error")) throw Error(answer["error"].at("name"), answer["error"].at("message"));
    return answer.at(kind);
  }

  /// Call OpenSSL again and again until it has read or written something.
  template <class Call>
  std::size_t complete(Call call) {
    for (ERR_clear_error();;) {
      if (const auto n = call(); n > 0) return std::size_t(n);
      const auto error = ERR_peek_last_error();  // Of the certificate, for example.
      const char* const why = ERR_GET_LIB(error) == ERR_LIB_SSL ? ERR_reason_error_string(error) : nullptr;
      if (!BIO_should_retry(bio.get())) throw Error("broken", why ? why : "nobody listens there, or the connection has broken");
      const short events = BIO_should_read(bio.get()) ? POLLIN : POLLOUT;
      pollfd socket{decltype(pollfd::fd)(BIO_get_fd(bio.get(), nullptr)), events, 0};
      if (poll(&socket, 1, most_silent) == 0) throw Error("late", "no answer in time");
    }
  }

  /// A connection with TLS, which is not open yet.
  static BIO* make_tls(const std::string& host, const std::string& ca) {
    const std::shared_ptr<SSL_CTX> context(SSL_CTX_new(TLS_client_method()), SSL_CTX_free);
    if (!(ca.empty() ? SSL_CTX_set_default_verify_paths(context.get())
                     : SSL_CTX_load_verify_locations(context.get(), ca.c_str(), nullptr)))
      throw Error("bad_argument", "ca: expected a file of authorities (PEM), found '" + ca + "'");
    SSL_CTX_set_verify(context.get(), SSL_VERIFY_PEER, nullptr);
    BIO* const made = BIO_new_ssl_connect(context.get());
    SSL* tls = nullptr;
    BIO_get_ssl(made, &tls);
    SSL_set_tlsext_host_name(tls, host.c_str());
    SSL_set1_host(tls, host.c_str());
    return made;
  }

  void send(const std::string& bytes) {
    for (std::size_t at = 0; at < bytes.size();)
      at += complete([&] { return BIO_write(bio.get(), &bytes[at], int(bytes.size() - at)); });
  }

  std::string read(std::size_t size) {
    std::string bytes(size, '\0');
    for (std::size_t at = 0; at < size;) at += complete([&] { return BIO_read(bio.get(), &bytes[at], int(size - at)); });
    return bytes;
  }

  std::size_t read_number(std::size_t n_bytes) {
    std::size_t number = 0;
    for (const char each : read(n_bytes)) number = number << 8 | std::uint8_t(each);
    return number;
  }

  void shake_hands(const std::string& place) {
    std::string nonce(16, '\0');
    RAND_bytes(raw(nonce), int(nonce.size()));
    const std::string key = base64(nonce);
    std::string keyed = key + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11", digest(SHA_DIGEST_LENGTH, '\0'), head;
    SHA1(raw(keyed), keyed.size(), raw(digest));
    send("GET / HTTP/1.1\r\nHost: " + place + "\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n"
         "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: " + key + "\r\n\r\n");
    while (head.size() < 1 << 14 && head.find("\r\n\r\n") == head.npos) head += read(1);
    if (head.find(" 101 ") == head.npos || head.find(base64(digest)) == head.npos)
      throw Error("broken", "expected WebSocket, found '" + head.substr(0, 40) + "'; is this the address of --websocket?");
  }

  void send_frame(int opcode, const std::string& payload) {
    const std::size_t n = payload.size(), n_more = n < 126 ? 0 : n < 1 << 16 ? 2 : 8;  // Bytes that tell the size.
    std::string frame{char(128 | opcode), char(128 | (n < 126 ? n : n < 1 << 16 ? 126 : 127))};
    for (std::size_t i = n_more; i > 0; i--) frame += char(n >> 8 * (i - 1));
    const std::uint32_t mask = std::random_device{}();
    for (std::size_t i = 0; i < 4; i++) frame += char(mask >> 8 * i);
    for (std::size_t i = 0; i < n; i++) frame += char(payload[i] ^ char(mask >> 8 * (i % 4)));
    send(frame);
  }

  std::string read_message() {
    const double end = now() + most_silent / 1000.0;
    for (std::string message; now() < end;) {  // A service that is late may still ping.
      const std::size_t head = read_number(2), opcode = head >> 8 & 15, size = head & 127;
      const std::string payload = read(size < 126 ? size : read_number(size == 126 ? 2 : 8));
      if (opcode == 8 && payload.compare(0, 2, "\x03\xf1") == 0)  // 1009.
        throw Error("message_too_big", "expected at most max_message_bytes in a message");
      if (opcode == 8) throw Error("broken", "the service has closed the connection");
      if (opcode == 9) send_frame(10, payload);  // A ping wants its pong.
      if (opcode < 3) message += payload;
      if (opcode < 3 && head & 0x8000) return message;
    }
    throw Error("late", "no answer in time");
  }
};
}  // namespace detail

/// A session of an acting service, for one thread. If its connection breaks, it connects again, and its episodes go on. If
/// the service itself was started anew, another session begins, in which the rest of an episode is an episode, and
/// `losses` is one more.
class Session {
 public:
  std::int64_t seed = 0, version = 0;  // seed + i is for the game of lane i; the model that chose last, by its opt steps.
  int losses = 0;

  /// @param where  what policy-server --websocket listens on: ws://HOST:PORT, or with TLS wss://HOST:PORT.
  explicit Session(const std::string& where, const Options& options = {}) : address(where), given(options) {
    const std::string scheme = address.substr(0, address.find("//"));
    if (scheme != "ws:" && scheme != "wss:")
      throw Error("bad_argument", "address: expected ws://HOST:PORT or wss://HOST:PORT, found " + address);
    const std::string host = address.substr(5, address.rfind(':') - 5);
    if (!given.token.empty() && scheme == "ws:" && host != "localhost" && host != "127.0.0.1" && host != "[::1]")
      throw Error("bad_argument", "address: expected wss://, since a token needs TLS, found " + address);
    persist([] {});
  }
  /// Ends the session. The service frees its lanes.
  ~Session() {
    try {
      if (wire) wire->ask({{"close", Value::object()}}, "closed");
    } catch (const std::exception&) {}  // The service ends the connection; or it is out of reach, and ends the session later.
  }

  /// The action of lane 0.
  Value act(const Value& observation, double reward = 0, bool terminated = false, bool truncated = false) {
    return act_lanes({Step{0, observation, reward, terminated, truncated}})[0];
  }

  /// The actions of one or more lanes, in the order of their steps, by one message.
  std::vector<Value> act_lanes(const std::vector<Step>& steps) {
    if (!steps.empty()) persist([&] { ask_for_actions(steps); });
    std::vector<Value> actions;
    for (const Step& step : steps) actions.push_back(lanes[step.lane].action);
    return actions;
  }

 private:
  struct Lane {
    Value action;  // The last one.
    bool plays = false, was_lost = false;  // Whether it is within an episode, and whether with a lost session.
  };
  const std::string address;
  const Options given;
  std::string secret;  // Of the session; empty: there is none.
  std::int64_t seq = 0;
  std::unique_ptr<detail::Wire> wire;
  std::map<int, Lane> lanes;

  /// Do work with a connection. If it breaks, connect again and do the work again.
  template <class Work>
  void persist(Work work) {
    double end = detail::now() + given.patience;
    for (double delay = 0.1;; delay = (std::min)(2 * delay, 5.0)) {
      try {
        if (!wire) connect();
        return work();
      } catch (const Error& error) {
        const auto used = std::move(wire);  // The service has ended the connection, or a message may be cut short.
        if (error.name == "session_lost" || error.name == "stopping") {
          losses += !secret.empty();
          secret.clear();
          seq = 0;
          for (auto& [_, lane] : lanes) lane.was_lost = lane.plays;
        } else if (error.name != "over_limit" && error.name != "broken" && error.name != "late") throw;
        if (used && error.name == "late") end = detail::now() + given.patience;  // A learner may hold its actors back.
        else if (detail::now() > end && error.name == "over_limit") throw;  // It is not out of reach: it has no room.
        else if (detail::now() > end) throw Error("out_of_reach", address + ": " + error.what());
      }
      std::this_thread::sleep_for(std::chrono::duration<double>(delay * std::random_device{}() / 4294967296.0));
    }
  }

  /// Open a connection, and with it a session, or the one that this client had.
  void connect() {
    auto fresh = std::make_unique<detail::Wire>(address, given);
    Value first = {{"open", {{"lanes", given.lanes}, {"policy", given.policy}}}};
    if (!secret.empty()) first = {{"resume", {{"secret", secret}}}};
    if (!given.token.empty()) first["token"] = given.token;
    const Value opened = fresh->ask(first, "opened");
    secret = opened.at("secret");
    seed = opened.at("seed");
    wire = std::move(fresh);
  }

  /// Ask for actions. After a loss, the service knows no step before, and no episode that could end.
  void ask_for_actions(const std::vector<Step>& steps) {
    const auto ends = [](const Step& step) { return step.terminated || step.truncated; };
    std::vector<Step> told;
    for (const Step& step : steps) {
      if (!lanes[step.lane].was_lost) told.push_back(step);
      else if (!ends(step)) told.push_back({step.lane, step.observation});
    }
    if (!told.empty()) {
      Value fields = pack(told);
      fields["seq"] = seq + 1;
      const Value answer = wire->ask({{"step", fields}}, "action");
      seq = answer.at("seq");
      version = answer.at("version");
      for (std::size_t i = 0; i < told.size(); i++) lanes[told[i].lane].action = pick(answer.at("action"), i);
    }
    for (const Step& step : steps) lanes[step.lane].plays = !ends(step), lanes[step.lane].was_lost = false;
  }

  static Value pick(const Value& actions, std::size_t i) {
    if (!actions.is_object()) return actions.at(i);
    Value leaves;
    for (const auto& [path, leaf] : actions.items()) leaves[path] = leaf.at(i);
    return leaves;
  }

  /// The fields of a message. If somebody else has acted in one of the lanes, actions of the policy stand in the others.
  Value pack(const std::vector<Step>& steps) {
    const auto is_executed = [](const Step& step) { return !step.executed.is_null(); };
    const auto given_one = std::find_if(steps.begin(), steps.end(), is_executed);
    Value rows;
    for (const Step& step : steps) {
      rows.push_back({{"lanes", step.lane}, {"observation", step.observation}, {"reward", step.reward},
                      {"terminated", step.terminated}, {"truncated", step.truncated}, {"restarted", step.restarted}});
      if (given_one == steps.end()) continue;
      const Value& own = lanes[step.lane].action;
      rows.back()["intervened"] = is_executed(step);
      rows.back()["executed"] = is_executed(step) ? step.executed : own.is_null() ? given_one->executed : own;
    }
    return to_columns(rows);
  }

  /// The values of k lanes as the service takes them: objects as columns by name, and bytes of all lanes together.
  static Value to_columns(const Value& values) {
    if (values.front().is_object()) {
      Value columns;
      for (const auto& [name, _] : values.front().items())
        for (const Value& value : values) columns[name].push_back(value.at(name));
      for (Value& column : columns) column = to_columns(column);
      return columns;
    }
    Value::binary_t bytes;
    for (const Value& value : values) {
      if (!value.is_binary() || value.get_binary().size() != values.front().get_binary().size()) return values;
      bytes.insert(bytes.end(), value.get_binary().begin(), value.get_binary().end());
    }
    return Value::binary(bytes);
  }
};
}  // namespace crossborder
