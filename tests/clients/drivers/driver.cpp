// Calls the client in C++ as the lines of its input say; see driver.py.
#include <crossborder.hpp>
#include <iostream>

using crossborder::Session;
using crossborder::Step;
using crossborder::Value;

// The value in which {"bytes": TEXT} stands for bytes, and {"float": TEXT} for NaN or infinity.
Value restore(Value found) {
  if (found.is_object() && found.contains("float")) return std::stod(found["float"].get<std::string>());
  if (!found.is_object() || found.size() != 1 || !found.contains("bytes")) {
    if (found.is_structured()) for (Value& part : found) part = restore(part);
    return found;
  }
  const std::string text = found["bytes"], digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  std::vector<std::uint8_t> bytes;
  std::uint32_t bits = 0;
  for (std::size_t i = 0; i < text.size() && text[i] != '='; i++) {
    bits = bits << 6 | std::uint32_t(digits.find(text[i]));
    if (i % 4) bytes.push_back(std::uint8_t(bits >> (6 - 2 * (i % 4))));
  }
  return Value::binary(bytes);
}

// The step of a lane, where each of `given` has the values of all lanes if `plural` is "s".
Step read(const Value& given, int lane, const std::string& plural, std::size_t i) {
  const auto of = [&](const std::string& name, const Value& otherwise) {
    return !given.contains(name) ? otherwise : plural.empty() ? given[name] : given[name].at(i);
  };
  return {lane, restore(of("observation" + plural, nullptr)), restore(of("reward" + plural, 0.0)), of("terminated", false),
          of("truncated", false), of("restarted", false), restore(of("executed", nullptr))};
}

Value call(std::unique_ptr<Session>& session, const Value& given, int& lanes) {
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
  if (name == "act") return session->act_lanes({read(given, given.value("lane", 0), "", 0)})[0];
  if (name != "act_lanes") return session.reset(), nullptr;
  std::vector<int> chosen;
  for (int lane = 0; lane < lanes; lane++) chosen.push_back(lane);
  chosen = given.value("lanes", chosen);
  if (given["observations"].size() != chosen.size())
    throw crossborder::Error("bad_argument", "expected " + std::to_string(chosen.size()) + " observations");
  std::vector<Step> steps;
  for (std::size_t i = 0; i < chosen.size(); i++) steps.push_back(read(given, chosen[i], "s", i));
  return session->act_lanes(steps);
}

int main() {
  std::unique_ptr<Session> session;
  int lanes = 1;
  for (std::string line; std::getline(std::cin, line);) {
    Value answer;
    try {
      answer["result"] = call(session, Value::parse(line), lanes);
    } catch (const crossborder::Error& error) {
      answer = {{"error", error.name}, {"message", error.what()}};
    }
    std::cout << answer.dump() << std::endl;
  }
}
