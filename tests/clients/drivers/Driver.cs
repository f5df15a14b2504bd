// Calls the client in C# as the lines of its input say; see driver.py.
using System;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Threading.Tasks;
using Crossborder;
using Fields = System.Collections.Generic.Dictionary<string, object>;

static class Driver
{
    static Session session;

    static void Main()
    {
        string line;
        while ((line = Console.ReadLine()) != null)
        {
            Fields answer;
            try { answer = new Fields { ["result"] = Call((Fields)Restore(new Json(line).Read())).GetAwaiter().GetResult() }; }
            catch (RefusedException error) { answer = Tell(error.Name, error); }
            catch (ArgumentException error) { answer = Tell("bad_argument", error); }
            catch (TimeoutException error) { answer = Tell("out_of_reach", error); }
            Console.WriteLine(Json.Write(answer));
        }
    }

    static Fields Tell(string name, Exception error) =>
        new Fields { ["error"] = name, ["message"] = error.Message.Replace("\n", " ").Replace("\r", " ") };

    // The value in which {"bytes": TEXT} stands for bytes, and {"float": TEXT} for NaN or infinity.
    static object Restore(object value)
    {
        if (value is List<object>) return ((List<object>)value).Select(Restore).ToList();
        var fields = value as Fields;
        if (fields == null) return value;
        if (fields.ContainsKey("float")) return double.Parse((string)fields["float"], CultureInfo.InvariantCulture);
        if (fields.Count == 1 && fields.ContainsKey("bytes")) return Convert.FromBase64String((string)fields["bytes"]);
        return fields.ToDictionary(field => field.Key, field => Restore(field.Value));
    }

    static async Task<object> Call(Fields given)
    {
        switch ((string)given["call"])
        {
            case "open":
                session = await Session.Open(
                    (string)given["address"], (string)Get(given, "token", ""), Convert.ToInt32(Get(given, "lanes", 1L)),
                    Convert.ToDouble(given["timeout"]), Convert.ToDouble(given["patience"]), (string)Get(given, "policy", ""));
                return null;
            case "get":
                var name = (string)given["attribute"];
                return name == "losses" ? session.Losses : name == "seed" ? session.Seed : session.Version;
            case "act":
                var step = Read(given, Convert.ToInt32(Get(given, "lane", 0L)), "", value => value);
                return (await session.Act(new[] { step }))[0];
            case "act_lanes":
                var observations = (List<object>)given["observations"];
                var all = Enumerable.Range(0, session.Lanes).Select(lane => (object)(long)lane).ToList();
                var lanes = ((List<object>)Get(given, "lanes", all)).Select(Convert.ToInt32).ToArray();
                if (lanes.Length != observations.Count) throw new ArgumentException($"expected {lanes.Length} observations");
                return await session.Act(lanes.Select((lane, i) =>
                    Read(given, lane, "s", value => ((List<object>)value)[i])).ToArray());
            default:
                await session.Close();
                return null;
        }
    }

    static Step Read(Fields given, int lane, string plural, Func<object, object> pick)
    {
        Func<string, object, object> of = (name, other) => given.ContainsKey(name) ? pick(given[name]) : other;
        return new Step
        {
            Lane = lane,
            Observation = of("observation" + plural, null),
            Reward = Convert.ToDouble(of("reward" + plural, 0.0)),
            Terminated = (bool)of("terminated", false),
            Truncated = (bool)of("truncated", false),
            Restarted = (bool)of("restarted", false),
            Executed = of("executed", null),
        };
    }

    static object Get(Fields given, string name, object other) => given.ContainsKey(name) ? given[name] : other;
}
