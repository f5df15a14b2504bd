// A game that learns, on the console: catch [ADDRESS]. README.md says how to start the learner and the service.
#include <cmath>
#include <crossborder.hpp>
#include <iostream>

/// A ball falls, and a paddle catches it. Lengths are in widths of the field.
class Catch {
 public:
  explicit Catch(std::int64_t seed) : random(std::uint64_t(seed)) {}

  std::vector<float> reset() {
    std::uniform_real_distribution<double> anywhere(0, 1), to_a_side(-0.02, 0.02);
    x = anywhere(random), y = 1, paddle = 0.5, drift = to_a_side(random);
    return look();
  }

  /// The reward: 1 for a ball that was caught, -1 for another one, 0 while it falls.
  double advance(int action) {
    paddle = std::clamp(paddle + SPEED * (action - 1), 0.0, 1.0);
    x += drift;
    y -= SPEED;
    if (x < 0 || x > 1) x = std::clamp(x, 0.0, 1.0), drift = -drift;
    return !is_over() ? 0 : std::abs(x - paddle) <= REACH ? 1 : -1;
  }

  bool is_over() const { return y < SPEED / 2; }
  std::vector<float> look() const {
    return {float(2 * x - 1), float(2 * y - 1), float(25 * drift), float(2 * paddle - 1)};
  }

 private:
  static constexpr double SPEED = 0.05, REACH = 0.1;
  std::mt19937_64 random;
  double x = 0, y = 0, drift = 0, paddle = 0;
};

int main(int n_words, char** words) try {
  crossborder::Session session(n_words > 1 ? words[1] : "ws://127.0.0.1:50061");
  Catch game(session.seed);
  for (int n = 1, caught = 0;; n++) {
    auto action = session.act(game.reset());
    double reward = 0;
    while (!game.is_over()) {
      reward = game.advance(action);
      action = session.act(game.look(), reward, game.is_over());
    }
    caught += reward > 0;
    if (n % 100) continue;
    std::cout << n << " balls: of the last 100, " << caught << " were caught; model " << session.version << std::endl;
    caught = 0;
  }
} catch (const crossborder::Error& error) {
  const bool is_over = error.name == "run_over";  // Otherwise the service is out of reach, or refuses a message.
  (is_over ? std::cout : std::cerr) << (is_over ? "The run has ended." : error.what()) << std::endl;
  return !is_over;
}
