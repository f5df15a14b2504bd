"""``policy-export``: writes the greedy policy of a saved run as ONNX; it needs nothing but the run's directory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping

from common.process.command import Parser, as_output
from crossborder.policies.policy_command import make_policy_parser, policy_command_of

EXAMPLES = """\
  policy-export --run runs/cartpole-20261121-085026-3f2a --output cartpole.onnx
  policy-export --run runs/cartpole-20261121-085026-3f2a --checkpoint final --output cartpole.onnx
"""


def parser() -> Parser:
    """The command's options."""
    made = make_policy_parser("policy-export", __doc__, EXAMPLES)
    made.add_value("--output", "FILE.onnx", "the file that gets the policy", as_output, is_required=True)
    return made


def _export(arguments: argparse.Namespace) -> Mapping[str, object]:
    from common.errors import PluginError
    from common.lanes.building import read_spec, stacked_spec
    from learner.storage.checkpoint import load_agent

    try:
        from crossborder.policies.export import export_policy
    except ImportError as error:
        raise PluginError(f"{error}; for ONNX: pip install 'crossborder[export]'") from error

    agent, parts, meta = load_agent(arguments.run / arguments.checkpoint, arguments.allow)
    spec = stacked_spec(read_spec(parts.env), parts.env.frame_stack)
    metadata = {
        "run_id": meta["run_id"],
        "checkpoint": arguments.checkpoint,
        "opt_steps": str(meta["opt_steps"]),
        "env": json.dumps(parts.env.model_dump(mode="json")),
        "agent": parts.agent.target,
        "observation_space": " ".join(str(spec.observation_space).split()),
        "action_space": " ".join(str(spec.action_space).split()),
    }
    tensors = export_policy(agent.policy(), spec.observation_space, metadata, arguments.output)
    return {"output": str(arguments.output), **tensors, **metadata}


main = policy_command_of(parser, _export)
