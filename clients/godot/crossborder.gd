# A client of crossborder's acting service, for Godot 3.2 and later releases of 3: copy this file. Where Godot 4 differs,
# the line or its section says so.
#
#   var session = preload("res://crossborder.gd").new()
#   session.open("ws://127.0.0.1:50061")
#   var action = session.act(observation)         # the first observation of an episode
#   action = session.act(observation, reward)     # each further one, and the reward of the step before it
#   session.act(observation, reward, true)        # the last one: terminated; what it returns has no meaning
#
# These calls wait. If no frame may wait for the network, call begin in one frame, poll in each further one until it
# returns true, and then take `actions`. If a call has failed, `error` has a name, and `reason` says why.
extends Reference  # Godot 4: RefCounted

const LOOPBACK = ["localhost", "127.0.0.1", "[::1]"]
const MOST_KILOBYTES = 8192  # Of a message to the service, whose own limit is max_message_bytes.

var lanes = 1  # How many characters or copies of a game act; they are counted from 0.
var description = {}  # What the service says of observations, actions and limits.
var first_seed = 0  # first_seed + i is for the random generator of lane i.
var version = 0  # The model that chose last, by its opt steps.
var losses = 0  # How often the service was started anew. Then the rest of an episode was an episode.
var actions = []  # Of the last call, in the order of its steps.
var error = ""  # Of the last call: empty, a name that the service gives, out_of_reach or bad_argument.
var reason = ""

var _address
var _options
var _patience
var _timeout
var _goal = ""  # What the present call is for: open, step or close. Empty: there is none.
var _steps = []
var _told = []  # Those of the steps of which the service is told.
var _secret = ""
var _seq = 0
var _last = {}  # The last action of each lane.
var _playing = {}  # Lanes within an episode.
var _broken = {}  # Those of them whose session was lost.
var _is_in_session = false  # Whether the present connection is.
var _end = 0.0  # When to give up, in seconds.
var _late_at = 0.0  # When an answer is late.
var _next_try = 0.0
var _delay = 0.0

# Open a session. Whether it is open; otherwise see `error`. `options` may have:
#   token: by which the service knows this client; lanes; policy: the name of one, if the service has several;
#   timeout: seconds after which a connection without an answer counts as broken (60);
#   patience: seconds after which a service that is out of reach is given up, or has no room (120);
#   ca: the file of the authority (.crt) that vouches for a service with wss://, if Godot does not know it.
func open(address, options = {}):
	_address = address
	_options = options
	lanes = options.get("lanes", 1)
	_patience = options.get("patience", 120.0)
	_timeout = min(options.get("timeout", 60.0), _patience)
	_start("open")
	var is_local = address.split("//")[-1].rsplit(":", true, 1)[0] in LOOPBACK
	if not (address.begins_with("ws://") or address.begins_with("wss://")):
		_fail("bad_argument", "address: expected ws://HOST:PORT or wss://HOST:PORT, found " + address)
	elif options.get("token") and address.begins_with("ws://") and not is_local:
		_fail("bad_argument", "address: expected wss://, since a token needs TLS, found " + address)
	return _wait()

# The action of lane 0: an int, a float or an array of them; of several leaves a dictionary by path. Null: see `error`.
# An observation is a number, an array, or bytes (of a picture); of several leaves a dictionary by path ("arm/joints").
func act(observation, reward = 0.0, terminated = false, truncated = false):
	var found = act_lanes([{"observation": observation, "reward": reward, "terminated": terminated, "truncated": truncated}])
	return found[0] if found else null

# The actions of one or more lanes by one message, or an empty array. A step is a dictionary with `observation` and,
# where it is needed, `lane`, `reward`, `terminated`, `truncated`, `restarted` (the episode before broke off without an
# end; this observation begins the next one) and `executed` (the action of the step before, if a person has chosen it).
func act_lanes(steps):
	begin(steps)
	return actions if _wait() else []

func begin(steps):
	_start("step")
	_steps = steps
	if _is_in_session: _ask_for_actions()

# End the session. The service frees its lanes.
func close():
	_start("close")
	if _is_in_session: _ask({"close": {}})
	else: _finish()
	_wait()

# Go on with the call that was begun. Whether it is done.
func poll():
	if _goal and not _socket and _now() >= _next_try:
		_late_at = _now() + _timeout
		_connect()
	if _goal: _hear()
	if _goal and _socket and _now() > _late_at:
		_break("no answer for %s s" % _timeout, true)
	return not _goal

func _hear():
	var socket = _socket  # Lives until its poll is over, in which functions of the section below are called.
	if socket: socket.poll()

func _wait():
	while not poll(): OS.delay_usec(50)
	return error == ""

func _now():
	return OS.get_ticks_usec() / 1e6  # Godot 4: Time.get_ticks_usec()

func _start(goal):
	_goal = goal
	error = ""
	reason = ""
	_delay = 0.1
	_end = _now() + _patience
	_hear()  # What came since the last call, such as the end of the run: after a failed write, it could not be read.

func _finish():
	actions = []
	for step in _steps: actions.append(_last.get(step.get("lane", 0)))
	_goal = ""

func _fail(name, why):
	error = name
	reason = "%s: %s" % [name, why]
	_goal = ""

# The connection has broken: connect again later, and do the same again.
func _break(why, is_late = false, name = "out_of_reach"):
	if is_late and _is_in_session:
		_end = _now() + _patience  # Not out of reach: a learner may hold its actors back.
	_disconnect()
	if _goal == "close":
		_finish()  # The service ends the connection.
	elif _now() > _end:
		_fail(name, "%s: %s (for %s s)" % [_address, why, _patience])
	_next_try = _now() + randf() * _delay
	_delay = min(2 * _delay, 5.0)

func _on_message(message):
	if message.has("error"):
		_on_error(message["error"]["name"], message["error"]["message"])
	elif message.has("description"):
		description = message["description"]
		var fresh = {"open": {"lanes": lanes, "policy": _options.get("policy", "")}}
		_ask({"resume": {"secret": _secret}} if _secret else fresh)
	elif message.has("opened"):
		_secret = message["opened"]["secret"]
		first_seed = int(message["opened"]["seed"])
		_is_in_session = true
		if _goal == "step": _ask_for_actions()
		else: _finish()
	elif message.has("action"):
		_seq = int(message["action"]["seq"])
		version = int(message["action"]["version"])
		for i in range(len(_told)):
			_last[_told[i].get("lane", 0)] = _pick(message["action"]["action"], i)
		_end_step()

func _on_error(name, why):
	if name == "session_lost" or name == "stopping":
		losses += 1 if _secret else 0
		_secret = ""
		_seq = 0
		_broken = _playing.duplicate()
	elif name != "over_limit":
		_disconnect()
		return _fail(name, why)
	_break("%s: %s" % [name, why], false, "over_limit" if name == "over_limit" else "out_of_reach")

func _ask_for_actions():
	_told = []  # After a loss, the service knows no step before, and no episode that could end.
	for step in _steps:
		if not _broken.has(step.get("lane", 0)):
			_told.append(step)
		elif not _ends(step):
			_told.append({"lane": step.get("lane", 0), "observation": step["observation"]})
	if _told: _ask({"step": _fields()})
	else: _end_step()

func _end_step():
	for step in _steps:
		var lane = step.get("lane", 0)
		_broken.erase(lane)
		_playing.erase(lane)
		if not _ends(step): _playing[lane] = true
	_finish()

func _ends(step):
	return true if step.get("terminated") or step.get("truncated") else false

# The action of one lane. JSON makes all numbers floats, so those of whole numbers become whole again.
func _pick(values, i):
	var found = {}
	for leaf in description["action"]:
		var value = values[leaf["path"]][i] if leaf["path"] else values[i]
		found[leaf["path"]] = value if "f" in leaf["dtype"] else _whole(value)
	return found.get("", found)

func _whole(value):
	if not value is Array: return int(value)
	for i in range(len(value)):
		value[i] = _whole(value[i])
	return value

func _fields():
	var columns = {"lane": [], "observation": [], "reward": [], "terminated": [], "truncated": [], "restarted": []}
	var given = null
	for step in _told:
		for name in columns:
			columns[name].append(step.get(name, 0 if name in ["lane", "reward"] else false))
		given = step.get("executed") if given == null else given
	var fields = {"seq": _seq + 1, "lanes": columns["lane"], "observation": _pack(columns["observation"])}
	for name in ["reward", "terminated", "truncated", "restarted"]:
		fields[name] = columns[name]
	if given != null:  # An action of the policy stands where nobody else acted.
		var executed = []
		fields["intervened"] = []
		for step in _told:
			var own = step.get("executed")
			executed.append(_last.get(step.get("lane", 0), given) if own == null else own)
			fields["intervened"].append(own != null)
		fields["executed"] = _pack(executed)
	return fields

# The values of k lanes as the service takes them, by path if there are several leaves; those of bytes in base64.
func _pack(values):
	if values[0] is Dictionary:
		var leaves = {}
		for path in values[0]:
			var column = []
			for value in values: column.append(value[path])
			leaves[path] = _pack(column)
		return leaves
	var bytes = PoolByteArray()  # Godot 4: PackedByteArray, here and below
	for value in values:
		if not value is PoolByteArray or len(value) != len(values[0]): return values
		bytes.append_array(value)
	return Marshalls.raw_to_base64(bytes)

func _ask(message):
	_late_at = _now() + _timeout
	var text = _to_json(message)
	if len(text) >= 1024 * MOST_KILOBYTES:
		_fail("message_too_big", "expected less than %s kB in a message" % MOST_KILOBYTES)
	elif not _send(text):
		_break("the connection has broken")

# JSON whose numbers have twelve decimals; to_json gives them six.
func _to_json(value):
	var parts = PoolStringArray()  # Godot 4: PackedStringArray
	if value is Dictionary:
		for key in value:
			parts.append("%s:%s" % [to_json(key), _to_json(value[key])])
		return "{%s}" % parts.join(",")  # Godot 4: ",".join(parts)
	if typeof(value) == TYPE_REAL: return "%.12f" % value  # Godot 4: TYPE_FLOAT
	if typeof(value) < TYPE_ARRAY: return to_json(value)  # Godot 4: JSON.stringify(value)
	for part in value: parts.append(_to_json(part))  # Of an array, of whatever type its parts are.
	return "[%s]" % parts.join(",")

# ---- The connection. Godot 4 has WebSocketPeer in the place of WebSocketClient: without signals, so that after its poll,
# `poll` above asks for get_ready_state, get_close_code and packets; connect_to_url takes TLSOptions.client(certificate).

var _socket = null

func _connect():
	_socket = WebSocketClient.new()
	_socket.set_buffers(1024, 64, MOST_KILOBYTES, 64)
	_socket.connect("connection_established", self, "_on_connected")
	_socket.connect("connection_error", self, "_break", ["no connection"])
	_socket.connect("connection_closed", self, "_on_closed")
	_socket.connect("server_close_request", self, "_on_close_request")
	_socket.connect("data_received", self, "_on_data")
	if _options.get("ca"):
		_socket.trusted_ssl_certificate = X509Certificate.new()
		_socket.trusted_ssl_certificate.load(_options["ca"])
	if _socket.connect_to_url(_address) != OK: _break("no connection")

func _disconnect():
	_is_in_session = false
	_socket = null

func _send(text):
	return _socket.get_peer(1).put_packet(text.to_utf8()) == OK  # Godot 4: _socket.send_text(text)

func _on_connected(_protocol):
	_socket.get_peer(1).set_write_mode(WebSocketPeer.WRITE_MODE_TEXT)
	var first = {"describe": {"policy": _options.get("policy", "")}}
	if _options.get("token"): first["token"] = _options["token"]
	_ask(first)

func _on_data():
	_on_message(parse_json(_socket.get_peer(1).get_packet().get_string_from_utf8()))

func _on_close_request(code, _why):
	if code == 1009:
		_disconnect()
		_fail("message_too_big", "expected at most max_message_bytes in a message")

func _on_closed(_was_clean):
	_break("the connection has broken")
