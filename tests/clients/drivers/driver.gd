# Calls the client in GDScript as lines say that come by TCP from the port of its last word; see driver.py, dialling.py.
extends SceneTree

var session = null

func _init():
	var lines = StreamPeerTCP.new()
	lines.connect_to_host("127.0.0.1", int(OS.get_cmdline_args()[-1]))
	var line = PoolByteArray()
	while lines.get_status() in [StreamPeerTCP.STATUS_CONNECTING, StreamPeerTCP.STATUS_CONNECTED]:
		line.append_array(lines.get_partial_data(1 << 16)[1])
		if line and line[-1] == 10:
			lines.put_data((to_json(answer(parse_json(line.get_string_from_utf8()))) + "\n").to_utf8())
			line = PoolByteArray()
		OS.delay_usec(200)
	quit()

func answer(given):
	var call = given["call"]
	given = restore(given)
	if call == "get":
		return {"result": session.get("first_seed" if given["attribute"] == "seed" else given["attribute"])}
	if call == "open":
		session = load("res://crossborder.gd").new()
		session.open(given["address"], given)
		return tell(null)
	if call == "act":
		return tell(session.act_lanes([given]))
	if call == "close":
		session.close()
		return tell(null)
	var chosen = given.get("lanes", range(session.lanes))
	if len(given["observations"]) != len(chosen):
		return {"error": "bad_argument", "message": "expected %s observations" % len(chosen)}
	var steps = []
	for i in range(len(chosen)):
		steps.append({"lane": chosen[i], "observation": given["observations"][i]})
		for name in ["rewards", "terminated", "truncated", "executed"]:
			if given.has(name):
				steps[i][name.trim_suffix("s")] = given[name][i]
	var actions = session.act_lanes(steps)
	return tell(null) if session.error else {"result": actions}

func tell(actions):
	if session.error:
		return {"error": session.error, "message": session.reason}
	return {"result": actions[0] if actions else null}

# The value in which {"bytes": TEXT} stands for bytes, {"float": TEXT} for NaN or minus infinity, and whole numbers are whole.
func restore(value):
	match typeof(value):
		TYPE_REAL:
			return int(value) if value == int(value) else value
		TYPE_ARRAY:
			var parts = []
			for part in value:
				parts.append(restore(part))
			return parts
		TYPE_DICTIONARY:
			if value.keys() == ["bytes"]:
				return Marshalls.base64_to_raw(value["bytes"])
			if value.keys() == ["float"]:
				return NAN if value["float"] == "NaN" else -INF
			var fields = {}
			for key in value:
				fields[key] = restore(value[key])
			return fields
	return value
