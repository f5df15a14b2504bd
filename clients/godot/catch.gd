# A ball falls, and a paddle learns to catch it. Lengths are in widths of the field. README.md says how to start the game.
extends Node2D

const SPEED = 0.05
const REACH = 0.1
const N = 100
const STEPS = 20  # In a frame. With 1, one sees each of them.

var session = preload("res://crossborder.gd").new()
var ball = Vector2()
var drift = 0.0
var paddle = 0.0
var action = null
var balls = 0
var caught = 0  # Of the last N.

func _ready():
	var words = OS.get_cmdline_args()
	if session.open(words[-1] if words and words[-1].begins_with("ws") else "ws://127.0.0.1:50061"):
		seed(session.first_seed)
		begin()

func begin():
	ball = Vector2(randf(), 1.0)
	drift = rand_range(-0.02, 0.02)  # Godot 4: randf_range
	paddle = 0.5
	action = session.act(look())

func _process(_delta):
	for _i in range(STEPS):
		if action == null:
			print("The run has ended." if session.error == "run_over" else session.reason)
			return get_tree().quit(int(session.error != "run_over"))
		step()
	update()  # Godot 4: queue_redraw

func step():
	paddle = clamp(paddle + SPEED * (action - 1), 0.0, 1.0)
	ball += Vector2(drift, -SPEED)
	if ball.x < 0.0 or ball.x > 1.0: drift = -drift
	ball.x = clamp(ball.x, 0.0, 1.0)
	if ball.y >= SPEED / 2:
		action = session.act(look())
	else:
		var is_caught = abs(ball.x - paddle) <= REACH
		balls += 1
		caught += int(is_caught)
		if balls % N == 0:
			print("%s balls: of the last %s, %s were caught; model %s" % [balls, N, caught, session.version])
			caught = 0
		action = session.act(look(), 1.0 if is_caught else -1.0, true)
		if action != null: begin()

func look():
	return [2 * ball.x - 1, 2 * ball.y - 1, 25 * drift, 2 * paddle - 1]

func _draw():
	var side = get_viewport_rect().size.y
	draw_circle(Vector2(ball.x, 1 - ball.y) * side, 8, Color.white)
	draw_line(Vector2(paddle - REACH, 1) * side, Vector2(paddle + REACH, 1) * side, Color.white, 8)
