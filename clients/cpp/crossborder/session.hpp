// A client of crossborder's acting service, for C++17 without any package: copy this folder.
//
//   crossborder::Session session("ws://127.0.0.1:50061");
//   auto action = session.act(observation);          // the first observation of an episode
//   action = session.act(observation, reward);       // each further one, and the reward of the step before it
//   session.act(observation, reward, true);          // the last one: terminated; what it returns has no meaning
#pragma once

#include <set>
#include <thread>

#include "value.hpp"
#include "websocket.hpp"

namespace crossborder {
/// The service has refused a message: `name` says why. After "bad_message", call `act` as it should be.
struct RefusedError : std::runtime_error {
  std::string name;
  RefusedError(const std::string& kind, const std::string& why) : runtime_error(kind + ": " + why), name(kind) {}
};

/// The service was out of reach for `patience` seconds.
struct OutOfReachError : std::runtime_error {
  using runtime_error::runtime_error;
};

/// One lane's observation, and how the step before it went.
struct Step {
  int lane = 0;
  Value observation{};
  double reward = 0;
  bool terminated = false, truncated = false;  // The episode has ended: by its own rules, or by a limit of time.
  bool restarted = false;  // The episode before broke off without an end; this observation begins the next one.
  Value executed{};  // The action of the step before, if a person or a safety layer has chosen it.
  bool ends() const { return terminated || truncated; }
};

struct Options {
  std::string token{};  // By which the service knows this client.
  int lanes = 1;  // How many characters, robots or copies of a game act; they are counted from 0.
  double timeout = 60;  // Seconds after which a connection without an answer counts as broken.
  double patience = 60;  // Seconds after which a service that is out of reach is given up, by OutOfReachError.
  std::string policy{};  // The name of one, if the service has several; empty: the first.
  std::string ca{};  // The file of the authority (PEM) that vouches for the service; empty: those that OpenSSL knows.
};

/// A session of an acting service, for one thread. If its connection breaks, it connects again, and its episodes go on. If
/// the service itself was started anew, another session begins, in which the rest of an episode is an episode, and
/// `losses` is one more.
class Session {
 public:
  Value description{};  // What the service says of observations, actions and limits.
  std::int64_t seed = 0, version = 0;  // seed + i is for the game of lane i; the model that chose last, by its opt steps.
  int losses = 0;

  /// @param address  what policy-server --websocket listens on: ws://HOST:PORT, or with TLS wss://HOST:PORT.
  /// @throws RefusedError  the token is not valid, or there is no such policy.
  explicit Session(const std::string& address, const Options& options = {}) : url(address), given(options) {
    const std::string loopback[] = {"localhost", "127.0.0.1", "::1"};
    if (url.host.empty()) throw std::invalid_argument("address: expected ws://HOST:PORT or wss://HOST:PORT, found " + address);
    if (!given.token.empty() && !url.is_secure && std::find(loopback, loopback + 3, url.host) == loopback + 3)
      throw std::invalid_argument("address: expected wss://, since a token needs TLS, found " + address);
    given.timeout = (std::min)(given.timeout, given.patience);
    persist([] {});
  }
  Session(const Session&) = delete;
  ~Session() {
    try { close(); } catch (const std::exception&) {}  // Nobody can be told here. The service ends the session later.
  }

  /// The action of lane 0.
  ///
  /// @throws RefusedError  the service has refused the message, which has changed nothing.
  /// @throws OutOfReachError  the service was out of reach for `patience` seconds.
  Value act(Value observation, double reward = 0, bool terminated = false, bool truncated = false) {
    return act_lanes({{0, std::move(observation), reward, terminated, truncated}})[0];
  }

  /// The actions of one or more lanes, in the order of their steps, by one message.
  std::vector<Value> act_lanes(const std::vector<Step>& steps) {
    std::vector<Value> actions;
    if (!steps.empty()) persist([&] { ask_for_actions(steps); });
    for (const Step& step : steps) actions.push_back(last[step.lane]);
    return actions;
  }

  /// End the session. The service frees its lanes.
  void close() {
    const auto used = std::move(wire);
    try { if (used) used->ask(detail::write(Value::Fields{{"close", Value::Fields{}}})); }
    catch (const detail::BrokenError&) {}  // The service ends the connection.
  }

 private:
  const detail::Url url;
  Options given;
  std::string secret;
  std::int64_t seq = 0;
  std::unique_ptr<detail::WebSocket> wire;
  std::map<int, Value> last;      // The last action of each lane.
  std::set<int> playing, broken;  // Lanes within an episode; those of them whose session was lost.
  std::mt19937 random{std::random_device{}()};

  /// Do work with a connection. If it breaks, connect again and do the work again.
  template <class Work>
  void persist(Work work) {
    auto end = detail::in_seconds(given.patience);
    for (double delay = 0.1;; delay = (std::min)(2 * delay, 5.0)) {
      std::string why;
      bool is_connected = false;
      try {
        if (!wire) connect();
        is_connected = true;
        return work();
      } catch (const RefusedError& error) {
        why = error.what();
        wire.reset();  // The service has ended the connection.
        if (error.name == "session_lost" || error.name == "stopping") {
          losses += !secret.empty();
          secret.clear();
          seq = 0;
          broken = playing;
        } else if (error.name != "over_limit") throw;
      } catch (const detail::BrokenError& error) {
        why = error.what();
        wire.reset();
        if (error.is_too_big) throw RefusedError("message_too_big", "expected at most max_message_bytes in a message");
        if (is_connected && error.is_late) end = detail::in_seconds(given.patience);  // A learner may hold its actors back.
      }
      if (detail::Clock::now() > end) throw OutOfReachError(url.host + ":" + url.port + ": " + why);
      std::this_thread::sleep_for(std::chrono::duration<double>(delay * double(random()) / double(random.max())));
    }
  }

  /// Open a connection, and with it a session, or the one that this client had.
  void connect() {
    wire = std::make_unique<detail::WebSocket>(url, given.ca, given.timeout);
    Value::Fields first{{"describe", Value::Fields{{"policy", given.policy}}}};
    if (!given.token.empty()) first["token"] = given.token;
    description = ask(first, "description");
    const Value opened = secret.empty()
        ? ask({{"open", Value::Fields{{"lanes", given.lanes}, {"policy", given.policy}}}}, "opened")
        : ask({{"resume", Value::Fields{{"secret", secret}}}}, "opened");
    secret = opened["secret"].text();
    seed = opened["seed"].integer();
  }

  Value ask(const Value::Fields& message, const std::string& kind) {
    const std::string found = wire->ask(detail::write(message));
    const Value answer = detail::Reader{found}.read();
    if (!answer.fields().count("error")) return answer[kind];
    throw RefusedError(answer["error"]["name"].text(), answer["error"]["message"].text());
  }

  void ask_for_actions(const std::vector<Step>& steps) {
    std::vector<Step> told;  // After a loss, the service knows no step before, and no episode that could end.
    for (const Step& step : steps) {
      if (!broken.count(step.lane)) told.push_back(step);
      else if (!step.ends()) told.push_back({step.lane, step.observation});
    }
    if (!told.empty()) {
      const Value answer = ask({{"step", pack(told)}}, "action");
      seq = answer["seq"].integer();
      version = answer["version"].integer();
      for (std::size_t i = 0; i < told.size(); i++) last[told[i].lane] = pick(answer["action"], i);
    }
    for (const Step& step : steps) {
      broken.erase(step.lane);
      playing.erase(step.lane);
      if (!step.ends()) playing.insert(step.lane);
    }
  }

  static Value pick(const Value& actions, std::size_t i) {
    if (!actions.find<Value::Fields>()) return actions.list().at(i);
    Value::Fields leaves;
    for (const auto& [path, leaf] : actions.fields()) leaves[path] = leaf.list().at(i);
    return leaves;
  }

  Value::Fields pack(const std::vector<Step>& steps) {
    std::map<std::string, Value::List> columns;
    for (const Step& step : steps) {
      columns["lanes"].push_back(step.lane);
      columns["observation"].push_back(step.observation);
      columns["reward"].push_back(step.reward);
      columns["terminated"].push_back(step.terminated);
      columns["truncated"].push_back(step.truncated);
      columns["restarted"].push_back(step.restarted);
    }
    const auto is_given = [](const Step& step) { return !step.executed.find<std::nullptr_t>(); };
    const auto first = std::find_if(steps.begin(), steps.end(), is_given);
    if (first != steps.end()) for (const Step& step : steps) {  // An action of the policy stands where nobody else acted.
      const Value& own = last.count(step.lane) ? last[step.lane] : first->executed;
      columns["executed"].push_back(is_given(step) ? step.executed : own);
      columns["intervened"].push_back(is_given(step));
    }
    Value::Fields fields{{"seq", seq + 1}};
    for (auto& [name, values] : columns) fields[name] = pack_leaves(values);
    return fields;
  }

  /// The values of k lanes as the service takes them, by path if there are several leaves.
  static Value pack_leaves(const Value::List& values) {
    if (!values[0].find<Value::Fields>()) return pack_leaf(values);
    Value::Fields packed;
    for (const auto& leaf : values[0].fields()) {
      Value::List column;
      for (const Value& value : values) column.push_back(value[leaf.first]);
      packed[leaf.first] = pack_leaf(column);
    }
    return packed;
  }

  static Value pack_leaf(const Value::List& values) {
    Value::Bytes all;  // One lane after another.
    for (const Value& value : values) {
      const auto* bytes = value.find<Value::Bytes>();
      if (!bytes || bytes->size() != values[0].find<Value::Bytes>()->size()) return values;
      all.insert(all.end(), bytes->begin(), bytes->end());
    }
    return all;
  }
};
}  // namespace crossborder
