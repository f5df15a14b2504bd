# Plays the game's side of Godot RL Agents' protocol in Godot itself. Four agents walk on a line, and reach its end or
# have to begin again after some steps.
extends SceneTree

const N = 4
const LENGTH = 5
const MOST_STEPS = 20

var stream = StreamPeerTCP.new()
var places = []
var steps = []

func _init():
	var port = 11008
	for word in OS.get_cmdline_args():
		if word.begins_with("--port="):
			port = int(word.split("=")[1])
	stream.connect_to_host("127.0.0.1", port)
	stream.set_no_delay(true)
	for _i in range(N):
		places.append(0)
		steps.append(0)
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTING:
		OS.delay_usec(1000)
	while stream.get_status() == StreamPeerTCP.STATUS_CONNECTED:
		var message = parse_json(stream.get_string())
		if not message is Dictionary or message["type"] == "close":
			break
		var reply = answer(message)
		if reply:
			stream.put_string(to_json(reply))
	quit()

func answer(message):
	match message["type"]:
		"env_info":
			var obs = {"obs": {"size": [2], "space": "box"}}
			var action = {"walk": {"size": 2, "action_type": "discrete"}}
			return {"type": "env_info", "observation_space": obs, "action_space": action, "n_agents": N}
		"reset":
			for i in range(N):
				places[i] = 0
				steps[i] = 0
			return {"type": "reset", "obs": look()}
		"action":
			return step(message["action"])

func step(actions):
	var reward = []
	var done = []
	for i in range(N):
		places[i] += 1 if actions[i]["walk"] == 1 else 0
		steps[i] += 1
		done.append(places[i] == LENGTH or steps[i] == MOST_STEPS)
		reward.append(1 if places[i] == LENGTH else -0.1)
		if done[i]:
			places[i] = 0
			steps[i] = 0
	return {"type": "step", "obs": look(), "reward": reward, "done": done}

func look():
	var found = []
	for i in range(N):
		found.append({"obs": [places[i] / float(LENGTH), i]})
	return found
