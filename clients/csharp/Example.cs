// A game that learns, on the console: example.exe [ADDRESS]. README.md says how to start the learner and the service.
using System;
using System.Threading.Tasks;
using Crossborder;

/// <summary>A ball falls, and a paddle catches it. Lengths are in widths of the field.</summary>
sealed class Catch {
    const double Speed = 0.05, Reach = 0.1;
    readonly Random random;
    double x, y, drift, paddle;

    public Catch(long seed) { random = new Random((int)seed); }

    public float[] Reset() {
        (x, y, paddle, drift) = (random.NextDouble(), 1, 0.5, 0.04 * random.NextDouble() - 0.02);
        return Look();
    }

    /// <summary>The reward: 1 for a ball that was caught, -1 for another one, 0 while it falls.</summary>
    public double Advance(long action) {
        paddle = Math.Min(Math.Max(paddle + Speed * (action - 1), 0), 1);
        x += drift;
        y -= Speed;
        if (x < 0 || x > 1) drift = -drift;
        x = Math.Min(Math.Max(x, 0), 1);
        return !Over ? 0 : Math.Abs(x - paddle) <= Reach ? 1 : -1;
    }

    public bool Over { get { return y < Speed / 2; } }

    public float[] Look() {
        return new[] { (float)(2 * x - 1), (float)(2 * y - 1), (float)(25 * drift), (float)(2 * paddle - 1) };
    }
}

static class Example {
    static void Main(string[] words) {
        try { Play(words.Length > 0 ? words[0] : "ws://127.0.0.1:50061").GetAwaiter().GetResult(); }
        catch (RefusedException error) when (error.Name == "run_over") { Console.WriteLine("The run has ended."); }
    }

    static async Task Play(string address) {
        var session = await Session.Open(address);
        var game = new Catch(session.Seed);
        var caught = 0;
        for (var n = 1; ; n++) {
            var action = await session.Act(game.Reset());
            double reward = 0;
            while (!game.Over) {
                reward = game.Advance((long)action);
                action = await session.Act(game.Look(), reward, game.Over);
            }
            if (reward > 0) caught++;
            if (n % 100 > 0) continue;
            Console.WriteLine(n + " balls: of the last 100, " + caught + " were caught; model " + session.Version);
            caught = 0;
        }
    }
}
