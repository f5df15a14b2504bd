"""Draws the pictures of cameras without a display, by EGL."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np

from crossborder import Array


class Drawer:
    """Draws a scene off screen. It belongs to the thread that made it, as OpenGL's contexts do.

    Args:
        model: of the scene.
        pixels: height and width of pictures.

    Raises:
        ImportError, AttributeError, RuntimeError: there is no EGL on this host.
    """

    def __init__(self, model: Any, pixels: int) -> None:
        from mujoco.egl import GLContext  # noqa: PLC0415 - only drawing needs EGL.

        self._model, self._gl = model, GLContext(pixels, pixels)
        self._gl.make_current()
        self._context = mujoco.MjrContext(model, mujoco.mjtFontScale.mjFONTSCALE_100)
        mujoco.mjr_setBuffer(mujoco.mjtFramebuffer.mjFB_OFFSCREEN, self._context)
        self._scene, self._options = mujoco.MjvScene(model, maxgeom=100), mujoco.MjvOption()
        for flag in (mujoco.mjtRndFlag.mjRND_SHADOW, mujoco.mjtRndFlag.mjRND_REFLECTION):
            self._scene.flags[flag] = 0
        self._frame = mujoco.MjrRect(0, 0, pixels, pixels)
        self._pixels = np.empty((pixels, pixels, 3), np.uint8)
        self._camera = mujoco.MjvCamera()
        self._camera.type = mujoco.mjtCamera.mjCAMERA_FIXED

    def draw(self, data: Any, camera: str) -> Array:
        """The picture of a camera of the scene, uint8 ``[pixels, pixels, 3]``, valid until the next picture."""
        self._gl.make_current()
        self._camera.fixedcamid = self._model.camera(camera).id
        everything = mujoco.mjtCatBit.mjCAT_ALL
        mujoco.mjv_updateScene(self._model, data, self._options, None, self._camera, everything, self._scene)
        mujoco.mjr_render(self._frame, self._scene, self._context)
        mujoco.mjr_readPixels(self._pixels, None, self._frame, self._context)
        return self._pixels[::-1]  # OpenGL begins at the bottom.

    def close(self) -> None:
        """Release the context."""
        self._context.free()
        self._gl.free()
