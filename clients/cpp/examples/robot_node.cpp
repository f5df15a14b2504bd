// A robot's node that is shaped as in ROS 2, and needs no ROS: robot_node [ADDRESS]. The sensor's messages come in one
// callback. A thread asks for actions, and a timer sends the newest one to the robot, or a stop if it is too old.
//
// In ROS 2, Node derives from rclcpp::Node, and rclcpp::spin takes the place of main. on_sensor is the callback of
// create_subscription, on_timer the one of create_wall_timer, and publish calls a publisher.
#include <atomic>
#include <condition_variable>
#include <crossborder.hpp>
#include <iostream>
#include <mutex>

using namespace std::chrono_literals;
using Clock = std::chrono::steady_clock;

class Node {
 public:
  static constexpr auto PERIOD = 100ms;

  explicit Node(const std::string& address) : session(address, options()), thread([this] { think(); }) {}
  ~Node() {
    is_on = false;
    thread.join();
  }

  void on_sensor(const std::vector<float>& reading) {
    const std::lock_guard<std::mutex> lock(mutex);
    newest = reading;
    has_come.notify_one();
  }

  void on_timer() {
    const std::lock_guard<std::mutex> lock(mutex);
    publish(Clock::now() - chosen_at < 2 * PERIOD ? "move " + std::to_string(action) : "stop");
  }

 private:
  crossborder::Session session;
  std::mutex mutex;
  std::condition_variable has_come;
  std::vector<float> newest;  // A reading that nobody has acted upon yet, or empty.
  int action = 0;
  Clock::time_point chosen_at{};
  std::atomic<bool> is_on = true;
  std::thread thread;  // Last, since it uses the others.

  static crossborder::Options options() {
    crossborder::Options given;
    given.patience = 2;  // A longer one would hold up the end of this program.
    return given;
  }

  void think() {
    while (is_on) {
      std::unique_lock<std::mutex> lock(mutex);
      if (!has_come.wait_for(lock, 1s, [this] { return !newest.empty(); })) continue;
      const auto reading = std::move(newest);
      newest.clear();
      lock.unlock();
      try {
        const auto chosen = session.act(reading);  // May take long; the timer goes on meanwhile.
        lock.lock();
        action = chosen;
        chosen_at = Clock::now();
      } catch (const crossborder::Error& error) {
        std::cerr << error.what() << std::endl;
        if (error.name != "out_of_reach" && error.name != "over_limit") return;  // The run has ended, for example: the timer stops the robot.
      }
    }
  }

  void publish(const std::string& command) { std::cout << command << std::endl; }
};

int main(int n_words, char** words) try {
  Node node(n_words > 1 ? words[1] : "ws://127.0.0.1:50061");
  auto next = Clock::now();
  for (int i = 0; i < 6000; i++, std::this_thread::sleep_until(next += 10ms)) {  // A minute.
    node.on_sensor({0.5F, 0.5F, 0.0F, 0.0F});
    if (i % 10 == 0) node.on_timer();
  }
} catch (const crossborder::Error& error) {  // There is no service yet, or it has refused a message.
  std::cerr << error.what() << std::endl;
  return 1;
}
