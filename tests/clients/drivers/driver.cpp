// Calls the client in C++ as the lines of its input say; see driver.py.
#include <crossborder/session.hpp>
#include <iostream>
#include <nlohmann/json.hpp>

using crossborder::Session;
using crossborder::Step;
using crossborder::Value;
using nlohmann::json;

// The value in which {"bytes": TEXT} stands for bytes.
Value restore(const json& found) {
  if (found.is_boolean()) return found.get<bool>();
  if (found.is_number_integer()) return found.get<std::int64_t>();
  if (found.is_number()) return found.get<double>();
  if (found.is_string()) return found.get<std::string>();
  if (found.is_array()) {
    Value::List list;
    for (const json& part : found) list.push_back(restore(part));
    return list;
  }
  if (!found.is_object()) return {};
  if (found.size() == 1 && found.contains("bytes")) {
    const std::string text = found["bytes"], digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    Value::Bytes bytes;
    std::uint32_t bits = 0;
    for (std::size_t i = 0; i < text.size() && text[i] != '='; i++) {
      bits = bits << 6 | std::uint32_t(digits.find(text[i]));
      if (i % 4) bytes.push_back(std::uint8_t(bits >> (6 - 2 * (i % 4))));
    }
    return bytes;
  }
  Value::Fields fields;
  for (const auto& [path, part] : found.items()) fields[path] = restore(part);
  return fields;
}

json tell(const Value& value) {
  if (const auto* whole = value.find<std::int64_t>()) return *whole;
  if (const auto* real = value.find<double>()) return *real;
  if (const auto* list = value.find<Value::List>()) {
    json found = json::array();
    for (const Value& part : *list) found.push_back(tell(part));
    return found;
  }
  if (!value.find<Value::Fields>()) return nullptr;
  json found = json::object();
  for (const auto& [path, part] : value.fields()) found[path] = tell(part);
  return found;
}

// The step of a lane, where each of `given` has the values of all lanes if `plural` is "s".
Step read(const json& given, int lane, const std::string& plural, std::size_t i) {
  const auto of = [&](const std::string& name, const json& otherwise) {
    return !given.contains(name) ? otherwise : plural.empty() ? given[name] : given[name].at(i);
  };
  return {lane, restore(of("observation" + plural, nullptr)), of("reward" + plural, 0.0), of("terminated", false),
          of("truncated", false), of("restarted", false), restore(of("executed", nullptr))};
}

json call(std::unique_ptr<Session>& session, const json& given, int& lanes) {
  const std::string name = given["call"];
  if (name == "open") {
    session.reset();
    lanes = given.value("lanes", 1);
    const crossborder::Options options{given.value("token", ""), lanes, given["timeout"], given["patience"],
                                       given.value("policy", ""), given.value("ca", "")};
    session = std::make_unique<Session>(given["address"], options);
    return nullptr;
  }
  if (name == "get") {
    const std::string attribute = given["attribute"];
    return attribute == "losses" ? session->losses : attribute == "seed" ? session->seed : session->version;
  }
  if (name == "act") return tell(session->act_lanes({read(given, given.value("lane", 0), "", 0)})[0]);
  if (name != "act_lanes") return session->close(), nullptr;
  std::vector<int> chosen;
  for (int lane = 0; lane < lanes; lane++) chosen.push_back(lane);
  chosen = given.value("lanes", chosen);
  if (given["observations"].size() != chosen.size())
    throw std::invalid_argument("expected " + std::to_string(chosen.size()) + " observations");
  std::vector<Step> steps;
  for (std::size_t i = 0; i < chosen.size(); i++) steps.push_back(read(given, chosen[i], "s", i));
  json actions = json::array();
  for (const Value& action : session->act_lanes(steps)) actions.push_back(tell(action));
  return actions;
}

int main() {
  std::unique_ptr<Session> session;
  int lanes = 1;
  for (std::string line; std::getline(std::cin, line);) {
    json answer;
    try {
      answer["result"] = call(session, json::parse(line), lanes);
    } catch (const crossborder::RefusedError& error) {
      answer = {{"error", error.name}, {"message", error.what()}};
    } catch (const crossborder::OutOfReachError& error) {
      answer = {{"error", "out_of_reach"}, {"message", error.what()}};
    } catch (const std::invalid_argument& error) {
      answer = {{"error", "bad_argument"}, {"message", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
