"""A simulated robot: an arm with two cameras that has to find a button on a table and press it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

import gymnasium
import mujoco
import numpy as np

from crossborder import Array, ConfigError
from examples.robot.drawing import Drawer

SCENE: Final = Path(__file__).with_name("scene.xml")
CONTROL_HZ: Final = 10
SPEED: Final = 0.15
"""Metres a second by which an action of 1 moves the hand along an axis."""
CAMERAS: Final = ("fixed", "wrist")
SHOULDER_HEIGHT, LINK, HAND = 0.25, 0.25, 0.1
"""Lengths of the arm in metres, as in the scene."""
LOW, HIGH = np.array([0.2, -0.2, 0.005]), np.array([0.42, 0.2, 0.2])
"""The box in which the hand moves, in metres: x away from the arm, y to its left, z upwards."""
BUTTON_LOW, BUTTON_HIGH = np.array([0.24, -0.14]), np.array([0.39, 0.14])
"""The rectangle in which buttons are placed."""
START_LOW, START_HIGH = np.array([0.28, -0.05, 0.14]), np.array([0.36, 0.05, 0.18])
"""The box in which the fingertip is at the beginning of an episode."""
PRESSED: Final = -0.008
"""The position of the button's cap, in metres, at which it counts as pressed."""


class PressButton(gymnasium.Env[Any, Any]):
    """An arm of four joints presses a button, whose place only the cameras show.

    Observations are a Dict: ``fixed`` and ``wrist`` are pictures uint8 ``[3, pixels, pixels]``, ``state`` float32
    ``[7]`` holds the angles of the four joints in radians and the place of the fingertip in metres, as the encoders
    measure them. Actions, float32 ``[3]`` in [-1, 1], are velocities of the hand in units of ``SPEED``, 10 a second.
    The step that presses the button pays 1 and ends the episode, every other step pays 0. ``info`` has ``is_success``.

    The parameters from ``light`` on make one robot differ from another.

    Args:
        pixels: height and width of the pictures.
        max_steps: after which an episode is truncated.
        light: brightness of the lamp, 1 is as in the scene.
        stiffness: of the arm's servos, 1 is as in the scene.
        camera_offset: the distance of the fixed camera from its place in the scene, in metres along x, y and z.
        joint_offset: the error of the first joint's encoder, in radians.
        render_mode: ``rgb_array``; there is no other.

    Raises:
        ConfigError: a value is out of range.
    """

    metadata: ClassVar[dict[str, Any]] = {"render_modes": ["rgb_array"], "render_fps": CONTROL_HZ}  # type: ignore[misc]

    def __init__(
        self,
        *,
        pixels: int = 48,
        max_steps: int = 50,
        light: float = 1.0,
        stiffness: float = 1.0,
        camera_offset: Sequence[float] = (0.0, 0.0, 0.0),
        joint_offset: float = 0.0,
        render_mode: str = "rgb_array",
    ) -> None:
        if pixels < 8 or max_steps < 1 or light < 0 or stiffness <= 0 or len(camera_offset) != 3:
            raise ConfigError(
                "examples.robot.arm:PressButton: expected at least 8 pixels, at least 1 step, light of 0 or more, "
                "stiffness above 0 and three offsets of the camera, found "
                f"{pixels}, {max_steps}, {light}, {stiffness} and {camera_offset}"
            )
        self.model = mujoco.MjModel.from_xml_path(str(SCENE))
        self.data = mujoco.MjData(self.model)
        self._pixels, self._max_steps, self._steps = pixels, max_steps, 0
        self._differ(light, stiffness, camera_offset)
        self._joint_offset = joint_offset
        self._target = np.zeros(3)
        self._drawers: dict[int, Drawer] = {}  # By size; made by the thread that acts.
        picture = gymnasium.spaces.Box(0, 255, (3, pixels, pixels), np.uint8)
        state = gymnasium.spaces.Box(-np.inf, np.inf, (7,), np.float32)
        self.observation_space = gymnasium.spaces.Dict({"fixed": picture, "state": state, "wrist": picture})
        self.action_space = gymnasium.spaces.Box(-1, 1, (3,), np.float32)
        self.render_mode = render_mode

    def _differ(self, light: float, stiffness: float, camera_offset: Sequence[float]) -> None:
        self.model.light_diffuse *= light
        self.model.vis.headlight.diffuse[:] *= light
        self.model.actuator_gainprm[:, 0] *= stiffness
        self.model.actuator_biasprm[:, 1] *= stiffness
        self.model.camera("fixed").pos += camera_offset

    @property
    def tip(self) -> Array:
        """The true place of the fingertip, in metres ``[3]``."""
        place: Array = self.data.site("tip").xpos
        return place

    @property
    def button(self) -> Array:
        """The true place of the button's cap, in metres ``[3]``: for a person's eyes and scripts, not for a policy."""
        place: Array = self.data.geom("cap").xpos
        return place

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[dict[str, Array], dict[str, Any]]:
        """Put the button somewhere else, and the hand above the table."""
        super().reset(seed=seed, options=options)
        mujoco.mj_resetData(self.model, self.data)
        self.model.body("button").pos[:2] = self.np_random.uniform(BUTTON_LOW, BUTTON_HIGH)
        self._target, self._steps = self.np_random.uniform(START_LOW, START_HIGH), 0
        self.data.ctrl[:] = self.data.qpos[:4] = self._joints_towards(self._target)
        mujoco.mj_forward(self.model, self.data)
        return self._observe(), {"is_success": False}

    def step(self, action: Array) -> tuple[dict[str, Array], float, bool, bool, dict[str, Any]]:
        """Move the hand for a tenth of a second."""
        self._target = np.clip(self._target + np.clip(action, -1, 1) * SPEED / CONTROL_HZ, LOW, HIGH)
        way = self._joints_towards(self._target) - self.data.ctrl
        n_substeps = round(1 / CONTROL_HZ / self.model.opt.timestep)
        for _ in range(n_substeps):
            self.data.ctrl += way / n_substeps
            mujoco.mj_step(self.model, self.data)
        self._steps += 1
        success = bool(self.data.joint("press").qpos[0] < PRESSED)
        truncated = self._steps >= self._max_steps and not success
        return self._observe(), float(success), success, truncated, {"is_success": success}

    def halt(self) -> None:
        """Hold the arm where it is: the safe stop."""
        self.data.ctrl[:] = self.data.qpos[:4]

    def _joints_towards(self, place: Array) -> Array:
        """The angles that the servos believe to be those of a place; a wrong encoder misleads them."""
        joints = joints_at(place)
        joints[0] -= self._joint_offset
        return joints

    def _observe(self) -> dict[str, Array]:
        joints = self.data.qpos[:4].copy()
        joints[0] += self._joint_offset
        state = np.concatenate([joints, tip_at(joints)]).astype(np.float32)
        pictures = {name: self._picture(name, self._pixels).transpose(2, 0, 1).copy() for name in CAMERAS}
        return {"fixed": pictures["fixed"], "state": state, "wrist": pictures["wrist"]}

    def render(self) -> Array:
        """Both cameras side by side, uint8 ``[240, 480, 3]``."""
        return np.hstack([self._picture(name, 240).copy() for name in CAMERAS])

    def _picture(self, camera: str, pixels: int) -> Array:
        if pixels not in self._drawers:
            self._drawers[pixels] = Drawer(self.model, pixels)
        return self._drawers[pixels].draw(self.data, camera)

    def close(self) -> None:
        """Release the GL contexts."""
        for drawer in self._drawers.values():
            drawer.close()
        self._drawers.clear()


def joints_at(place: Array) -> Array:
    """The angles of the four joints, in radians ``[4]``, that bring the fingertip to a place ``[3]``, hand upright."""
    reach, height = np.hypot(place[0], place[1]), place[2] + HAND - SHOULDER_HEIGHT
    elbow = np.arccos(np.clip((reach**2 + height**2) / (2 * LINK**2) - 1, -1, 1))
    shoulder = np.arctan2(reach, height) - elbow / 2
    return np.array([np.arctan2(place[1], place[0]), shoulder, elbow, np.pi - shoulder - elbow])


def tip_at(joints: Array) -> Array:
    """The place of the fingertip in metres ``[3]`` by the angles of the four joints ``[4]``."""
    yaw, angles = joints[0], np.cumsum(joints[1:])  # Of the upper arm, the forearm and the hand, from upright.
    lengths = np.array([LINK, LINK, HAND])
    reach, height = lengths @ np.sin(angles), lengths @ np.cos(angles)
    return np.array([reach * np.cos(yaw), reach * np.sin(yaw), SHOULDER_HEIGHT + height])
