# A game that learns while one watches. README.md says how to start the learner, the service and this scene.
#
# A ball falls, and a paddle catches it. Lengths are in widths of the field, which is as high as it is wide.
extends Node2D

const SPEED = 0.05
const REACH = 0.1
const N = 100
const STEPS = 20  # In a frame. With 1, one sees each of them.

var session = preload("res://crossborder.gd").new()
var x = 0.0
var y = 0.0
var drift = 0.0
var paddle = 0.0
var action = null
var balls = 0
var last = []  # Of the last balls, 1 if it was caught, otherwise 0.

func _ready():
	var address = "ws://127.0.0.1:50061"
	for word in OS.get_cmdline_args():
		if word.begins_with("ws"): address = word
	if session.open(address):
		seed(session.first_seed)
		begin()

func begin():
	x = randf()
	y = 1.0
	drift = rand_range(-0.02, 0.02)  # Godot 4: randf_range
	paddle = 0.5
	action = session.act(look())

func _process(_delta):
	for _i in range(STEPS):
		if action == null:
			push_error(session.reason)
			return get_tree().quit(1)
		step()
	update()  # Godot 4: queue_redraw

func step():
	paddle = clamp(paddle + SPEED * (action - 1), 0.0, 1.0)
	x += drift
	y -= SPEED
	if x < 0.0 or x > 1.0:
		x = clamp(x, 0.0, 1.0)
		drift = -drift
	if y >= SPEED / 2:
		action = session.act(look())
		return
	var is_caught = abs(x - paddle) <= REACH
	session.act(look(), 1.0 if is_caught else -1.0, true)
	count(1 if is_caught else 0)
	begin()

func look():
	return [2 * x - 1, 2 * y - 1, 25 * drift, 2 * paddle - 1]

func count(caught):
	balls += 1
	last.append(caught)
	if len(last) > N: last.pop_front()
	if balls % N == 0:
		print("%s balls: of the last %s, %s were caught; model %s" % [balls, N, last.count(1), session.version])

func _draw():
	var side = get_viewport_rect().size.y
	draw_circle(Vector2(x, 1 - y) * side, 8, Color.white)
	draw_line(Vector2(paddle - REACH, 1) * side, Vector2(paddle + REACH, 1) * side, Color.white, 8)
