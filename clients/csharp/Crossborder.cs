// A client of crossborder's acting service, for .NET Standard 2.0 and later, without any package: copy this file.
//
//   var session = await Session.Open("ws://127.0.0.1:50061");
//   var action = await session.Act(observation);                // the first observation of an episode
//   action = await session.Act(observation, reward);            // each further one, and the reward of the step before
//   await session.Act(observation, reward, terminated: true);   // the last one; what it returns has no meaning
using System;
using System.Collections;
using System.Collections.Generic;
using System.Globalization;
using System.Linq;
using System.Net.WebSockets;
using System.Text;
using System.Threading;
using System.Threading.Tasks;
using Fields = System.Collections.Generic.Dictionary<string, object>;

namespace Crossborder {
    /// <summary>The service has refused a message: Name says why. After "bad_message", call Act as it should be; after "run_over", end.</summary>
    public sealed class RefusedException : Exception {
        public readonly string Name;
        public RefusedException(string name, string message) : base(name + ": " + message) { Name = name; }
    }

    /// <summary>One lane's observation, and how the step before it went.</summary>
    public sealed class Step {
        public int Lane;
        public object Observation; // A number, an array or a list; of several leaves a Dictionary by path: "arm/joints".
        public double Reward;
        public bool Terminated, Truncated; // The episode has ended: by its own rules, or from outside, as by a limit of time.
        public bool Restarted; // The episode before broke off without an end; this observation begins the next one.
        public object Executed; // The action of the step before, if a person or a safety layer has chosen it.
        internal bool Ends => Terminated || Truncated;
    }

    /// <summary>A session of an acting service. If its connection breaks, it connects again, and its episodes go on. If the
    /// service itself was started anew, another session begins, in which the rest of an episode is an episode, and Losses
    /// is one more. Seed + i is for the random generator of lane i, and Version is the model that chose last, by its opt
    /// steps. An action is a long, a double or a List of them; of several leaves it is a Dictionary by path.</summary>
    public sealed class Session {
        static readonly Dictionary<string, Type> Types = new Dictionary<string, Type> {
            { "|u1", typeof(byte[]) }, { "|i1", typeof(sbyte[]) }, { "<u2", typeof(ushort[]) }, { "<i2", typeof(short[]) },
            { "<u4", typeof(uint[]) }, { "<i4", typeof(int[]) }, { "<f4", typeof(float[]) }, { "<f8", typeof(double[]) },
        };
        Uri address;
        double timeout, patience;
        string token, policy, secret = "";
        long seq;
        Wire wire;
        readonly SemaphoreSlim turn = new SemaphoreSlim(1);
        readonly Random random = new Random();
        readonly Dictionary<int, object> last = new Dictionary<int, object>(); // The last action of each lane.
        readonly HashSet<int> playing = new HashSet<int>(); // Lanes within an episode.
        HashSet<int> broken = new HashSet<int>(); // Those of them whose session was lost.
        public int Lanes { get; private set; }
        public int Losses { get; private set; }
        public Fields Description { get; private set; } // What the service says of observations, actions and limits.
        public long Seed { get; private set; }
        public long Version { get; private set; }

        /// <param name="address">what policy-server --websocket listens on: ws://HOST:PORT, or with TLS wss://HOST:PORT.</param>
        /// <param name="token">by which the service knows this client.</param>
        /// <param name="lanes">how many characters or copies of a game act; they are counted from 0.</param>
        /// <param name="timeout">seconds after which a connection without an answer counts as broken.</param>
        /// <param name="patience">seconds after which a service out of reach is given up (TimeoutException), or has no room.</param>
        /// <param name="policy">the name of one, if the service has several; empty: the first.</param>
        public static async Task<Session> Open(
            string address, string token = "", int lanes = 1, double timeout = 60, double patience = 120, string policy = "") {
            var uri = new Uri(address);
            if (uri.Scheme != "ws" && uri.Scheme != "wss")
                throw new ArgumentException("address: expected ws://HOST:PORT or wss://HOST:PORT, found " + address);
            if (token != "" && uri.Scheme == "ws" && !uri.IsLoopback)
                throw new ArgumentException("address: expected wss://, since a token needs TLS, found " + address);
            var session = new Session { address = uri, token = token, policy = policy, Lanes = lanes, timeout = timeout, patience = patience };
            await session.InTurn(() => session.Persist(made => Task.FromResult(0))).ConfigureAwait(false);
            return session;
        }

        /// <summary>The action of lane 0.</summary>
        public async Task<object> Act(object observation, double reward = 0, bool terminated = false, bool truncated = false) {
            var step = new Step { Observation = observation, Reward = reward, Terminated = terminated, Truncated = truncated };
            return (await Act(new[] { step }).ConfigureAwait(false))[0];
        }

        /// <summary>The actions of one or more lanes, in the order of their steps, by one message.</summary>
        public async Task<object[]> Act(Step[] steps) {
            if (steps.Length == 0) return new object[0];
            await InTurn(() => Persist(made => Ask(made, steps))).ConfigureAwait(false);
            return steps.Select(step => last[step.Lane]).ToArray();
        }

        /// <summary>End the session. The service frees its lanes.</summary>
        public Task Close() => InTurn(async () => {
            if (wire == null) return;
            try { await wire.Ask(new Fields { { "close", new Fields() } }, "closed"); }
            catch (WebSocketException) { wire = null; } // The service ends the connection.
        });

        /// <summary>Work after all that was begun before, and outside of the game's own thread.</summary>
        Task InTurn(Func<Task> work) => Task.Run(async () => {
            await turn.WaitAsync();
            try { await work(); } finally { turn.Release(); }
        });

        /// <summary>Do work with a connection. If it breaks, connect again and do the work again.</summary>
        async Task Persist(Func<Wire, Task> work) {
            var away = System.Diagnostics.Stopwatch.StartNew(); // No wall clock, which may jump.
            for (var delay = 0.1; ; delay = Math.Min(2 * delay, 5)) {
                var used = wire;
                try {
                    if (used == null) used = await Connect();
                    await work(used);
                    return;
                } catch (Exception error) {
                    wire?.Dispose(); // A message may be cut short: the next one needs another connection.
                    wire = null;
                    var name = error is RefusedException ? ((RefusedException)error).Name : "";
                    if (name == "session_lost" || name == "stopping") {
                        Losses += secret == "" ? 0 : 1;
                        broken = new HashSet<int>(playing);
                        secret = ""; seq = 0;
                    } else if (name != "over_limit" && !(error is WebSocketException || error is TimeoutException)) throw;
                    if (used != null && error is TimeoutException) away.Restart(); // Held back.
                    else if (away.Elapsed.TotalSeconds > patience && name == "over_limit") throw; // It has no room.
                    else if (away.Elapsed.TotalSeconds > patience)
                        throw new TimeoutException(address + ": " + error.Message + " (for " + patience + " s)", error);
                }
                await Task.Delay(TimeSpan.FromSeconds(random.NextDouble() * delay));
            }
        }

        /// <summary>Open a connection, and with it a session, or the one that this client had.</summary>
        async Task<Wire> Connect() {
            wire = new Wire { Timeout = TimeSpan.FromSeconds(Math.Min(timeout, patience)) };
            await wire.Open(address);
            var first = new Fields { { "describe", new Fields { { "policy", policy } } } };
            if (token != "") first["token"] = token;
            Description = await wire.Ask(first, "description");
            var fields = secret == "" ? new Fields { { "lanes", Lanes }, { "policy", policy } } : new Fields { { "secret", secret } };
            var opened = await wire.Ask(new Fields { { secret == "" ? "open" : "resume", fields } }, "opened");
            secret = (string)opened["secret"];
            Seed = (long)opened["seed"];
            return wire;
        }

        /// <summary>Ask for actions. Of a lost episode the end is not told: it needs no action.</summary>
        async Task Ask(Wire used, Step[] steps) {
            var asked = steps.Where(step => !(broken.Contains(step.Lane) && step.Ends)).ToArray();
            if (asked.Length > 0) {
                var answer = await used.Ask(new Fields { { "step", Pack(asked) } }, "action");
                seq = (long)answer["seq"];
                Version = (long)answer["version"];
                for (var i = 0; i < asked.Length; i++) last[asked[i].Lane] = Pick(answer["action"], i);
            }
            broken.ExceptWith(steps.Select(step => step.Lane));
            playing.UnionWith(steps.Select(step => step.Lane));
            playing.ExceptWith(steps.Where(step => step.Ends).Select(step => step.Lane));
        }

        static object Pick(object actions, int i) {
            var leaves = actions as Fields;
            return leaves == null ? ((List<object>)actions)[i] : leaves.ToDictionary(leaf => leaf.Key, leaf => Pick(leaf.Value, i));
        }

        /// <summary>The fields of a message. Nothing is told of the step before, if that was in a lost session.</summary>
        Fields Pack(Step[] steps) {
            Func<Step, Step> strip = step => new Step { Lane = step.Lane, Observation = step.Observation };
            var told = steps.Select(step => broken.Contains(step.Lane) ? strip(step) : step).ToArray();
            var fields = new Fields {
                { "seq", seq + 1 }, { "lanes", told.Select(step => step.Lane) },
                { "observation", Pack("observation", told.Select(step => step.Observation).ToArray()) },
                { "reward", told.Select(step => step.Reward) }, { "restarted", told.Select(step => step.Restarted) },
                { "terminated", told.Select(step => step.Terminated) }, { "truncated", told.Select(step => step.Truncated) },
            };
            var given = told.Select(step => step.Executed).FirstOrDefault(action => action != null);
            if (given == null) return fields;
            var acted = told.Select(step => step.Executed ?? (last.ContainsKey(step.Lane) ? last[step.Lane] : given));
            fields["executed"] = Pack("action", acted.ToArray());
            fields["intervened"] = told.Select(step => step.Executed != null);
            return fields;
        }

        /// <summary>The values of k lanes as the service takes them: of several leaves by path.</summary>
        object Pack(string kind, object[] values) {
            var dtypes = ((List<object>)Description[kind]).Cast<Fields>().ToLookup(leaf => leaf["path"], leaf => leaf["dtype"]);
            if (!(values[0] is Fields)) return PackLeaf(values, (string)dtypes[""].FirstOrDefault());
            return ((Fields)values[0]).Keys.ToDictionary(path => path, path => PackLeaf(
                values.Select(value => ((Fields)value)[path]).ToArray(), (string)dtypes[path].FirstOrDefault()));
        }

        /// <summary>Bytes, in base64, if all values are arrays of the leaf's type; else lists.</summary>
        static object PackLeaf(object[] values, string dtype) {
            var type = dtype != null && Types.ContainsKey(dtype) ? Types[dtype] : null;
            if (values.Any(value => value == null || value.GetType() != type)) return values;
            var size = Buffer.ByteLength((Array)values[0]);
            if (values.Any(value => Buffer.ByteLength((Array)value) != size)) return values;
            var bytes = new byte[values.Length * size];
            for (var i = 0; i < values.Length; i++) Buffer.BlockCopy((Array)values[i], 0, bytes, i * size, size);
            return Convert.ToBase64String(bytes);
        }
    }

    /// <summary>One connection. Its messages are JSON, and each is answered.</summary>
    sealed class Wire : IDisposable {
        readonly ClientWebSocket socket = new ClientWebSocket();
        public TimeSpan Timeout;
        public void Dispose() => socket.Dispose();
        public Task Open(Uri address) => InTime(socket.ConnectAsync(address, CancellationToken.None));

        public async Task<Fields> Ask(Fields message, string kind) {
            var exchange = Exchange(Json.Write(message));
            await InTime(exchange);
            if (!exchange.Result.ContainsKey("error")) return (Fields)exchange.Result[kind];
            var error = (Fields)exchange.Result["error"];
            throw new RefusedException((string)error["name"], (string)error["message"]);
        }

        async Task<Fields> Exchange(string message) {
            var sent = new ArraySegment<byte>(Encoding.UTF8.GetBytes(message));
            await socket.SendAsync(sent, WebSocketMessageType.Text, true, CancellationToken.None);
            var found = new System.IO.MemoryStream();
            for (var buffer = new byte[1 << 16]; ;) {
                var part = await socket.ReceiveAsync(new ArraySegment<byte>(buffer), CancellationToken.None);
                if (part.CloseStatus == WebSocketCloseStatus.MessageTooBig)
                    throw new RefusedException("message_too_big", "expected at most max_message_bytes in a message");
                if (part.MessageType == WebSocketMessageType.Close)
                    throw new WebSocketException("the service has ended the connection: " + part.CloseStatusDescription);
                found.Write(buffer, 0, part.Count);
                if (part.EndOfMessage) return (Fields)new Json(Encoding.UTF8.GetString(found.ToArray())).Read();
            }
        }

        /// <summary>Wait for work, which may hang: Mono hears no cancellation while it connects.</summary>
        async Task InTime(Task work) {
            using (var end = new CancellationTokenSource()) {
                if (await Task.WhenAny(work, Task.Delay(Timeout, end.Token)) != work)
                    throw new TimeoutException("no answer for " + Timeout.TotalSeconds + " s");
                end.Cancel();
            }
            try { await work; }
            catch (Exception error) {
                if (error is RefusedException) throw;
                throw new WebSocketException(error.Message, error);
            }
        }
    }

    /// <summary>Reads JSON to dictionaries, lists, strings, longs, doubles and truth values; writes it of these.</summary>
    sealed class Json {
        readonly string text;
        int at;
        public Json(string text) { this.text = text; }
        char Next { get { while (char.IsWhiteSpace(text[at])) at++; return text[at]; } }
        public object Read() {
            if (Next == '"' || Next == '[' || Next == '{') return Next == '"' ? ReadText() : ReadItems(Next == '{');
            var start = at;
            while (at < text.Length && ",]} \n\r\t".IndexOf(text[at]) < 0) at++;
            long whole;
            var word = text.Substring(start, at - start);
            if (word == "null" || word == "true" || word == "false") return word == "null" ? null : (object)(word == "true");
            if (long.TryParse(word, NumberStyles.Integer, CultureInfo.InvariantCulture, out whole)) return whole;
            return double.Parse(word, NumberStyles.Float, CultureInfo.InvariantCulture);
        }

        object ReadItems(bool areFields) {
            var keys = new List<string>();
            var values = new List<object>();
            for (at++; Next != ']' && Next != '}'; at += Next == ',' ? 1 : 0) {
                if (areFields) keys.Add(ReadText());
                if (areFields && Next == ':') at++;
                values.Add(Read());
            }
            at++;
            return areFields ? Enumerable.Range(0, keys.Count).ToDictionary(i => keys[i], i => values[i]) : (object)values;
        }

        string ReadText() {
            var found = new StringBuilder();
            for (at++; text[at] != '"'; at++) {
                var next = text[at] == '\\' ? text[++at] : '\0';
                if (next == 'u') found.Append((char)Convert.ToInt32(text.Substring((at += 4) - 3, 4), 16));
                else found.Append(next == '\0' ? text[at] : "nrtbf".IndexOf(next) < 0 ? next : "\n\r\t\b\f"["nrtbf".IndexOf(next)]);
            }
            at++;
            return found.ToString();
        }

        public static string Write(object value) {
            var fields = value as IDictionary;
            if (value == null) return "null";
            if (value is bool) return (bool)value ? "true" : "false";
            if (value is string) return "\"" + ((string)value).Replace("\\", "\\\\").Replace("\"", "\\\"") + "\"";
            if (fields != null)
                return "{" + string.Join(",", fields.Keys.Cast<string>().Select(key => Write(key) + ":" + Write(fields[key]))) + "}";
            if (value is IEnumerable) return "[" + string.Join(",", ((IEnumerable)value).Cast<object>().Select(Write)) + "]";
            if (value is float || value is double) return Convert.ToDouble(value).ToString("R", CultureInfo.InvariantCulture);
            return Convert.ToString(value, CultureInfo.InvariantCulture);
        }
    }
}
