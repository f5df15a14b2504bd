"""The names of the door of crossborder, and the module that has each of them; the door and type checkers read this.

A text is the heading of the names below it.
"""

"""Training from Python"""
from common.lanes.policy import Policy as Policy
from crossborder.notebook import read_records as read_records
from crossborder.notebook import train as train
from learner.callbacks.early_stopping import EarlyStopping as EarlyStopping
from learner.loop.run import Result as Result
from learner.storage.checkpoint import load_agent as load_agent
from learner.storage.checkpoint import load_policy as load_policy

"""Interfaces"""
from common.interfaces import Agent as Agent
from common.interfaces import Callback as Callback
from common.interfaces import EnvSpec as EnvSpec
from common.interfaces import Evaluation as Evaluation
from common.interfaces import Evaluator as Evaluator
from common.interfaces import LaneAgent as LaneAgent
from common.interfaces import Recorder as Recorder
from common.interfaces import ReplayBuffer as ReplayBuffer
from common.interfaces import RowMap as RowMap
from common.interfaces import RunIdentity as RunIdentity
from common.interfaces import Step as Step
from common.interfaces import StepProcessor as StepProcessor
from common.interfaces import TrainingState as TrainingState
from common.interfaces import acting_for_lanes as acting_for_lanes
from common.parts import SameColumns as SameColumns
from crossborder.people.device import Command as Command
from crossborder.people.device import Device as Device

"""Rows and batches"""
from common.data import Array as Array
from common.data import Column as Column
from common.data import Items as Items
from common.data import Leaves as Leaves
from common.data import Model as Model
from common.data import ModelVersion as ModelVersion
from common.data import Record as Record
from common.data import Schema as Schema
from common.data import Snapshot as Snapshot
from common.episode_files import write_episode as write_episode
from common.spaces import from_columns as from_columns

"""Views"""
from learner.replay.memory import ReplayMemory as ReplayMemory
from learner.replay.shared_buffer import SharedReplay as SharedReplay
from learner.replay.view import Plan as Plan
from learner.replay.view import Rows as Rows
from learner.replay.view import View as View
from learner.views.hindsight import Hindsight as Hindsight
from learner.views.items import SelfContained as SelfContained
from learner.views.paths import follow as follow
from learner.views.paths import stack as stack
from learner.views.rollouts import Rollouts as Rollouts
from learner.views.sequences import Sequences as Sequences
from learner.views.transitions import Transitions as Transitions

"""Bases of agents"""
from common.agents.actor_critic import ActorCritic as ActorCritic
from common.agents.averaging import average_gradients as average_gradients
from common.agents.configured_agent import ConfiguredAgent as ConfiguredAgent
from common.agents.dqn import QAgent as QAgent
from common.agents.exploring import EpsilonGreedy as EpsilonGreedy
from common.agents.losses.sequence_losses import masked_mean as masked_mean
from common.agents.losses.sequence_losses import n_step_target as n_step_target
from common.agents.losses.sequence_losses import rescale as rescale
from common.agents.losses.sequence_losses import undo_rescaling as undo_rescaling
from common.agents.machinery.gradient_step import Batch as Batch
from common.agents.machinery.gradient_step import descend as descend
from common.agents.machinery.gradient_step import discount_of as discount_of
from common.agents.machinery.gradient_step import draw as draw
from common.agents.machinery.gradient_step import measure_td_error as measure_td_error
from common.agents.machinery.gradient_step import report_td_error as report_td_error
from common.agents.machinery.gradient_step import track as track
from common.agents.machinery.lane_states import LaneRandom as LaneRandom
from common.agents.machinery.lane_states import RowRandom as RowRandom
from common.agents.machinery.optimizers import adam as adam
from common.agents.machinery.optimizers import build_optimizer as build_optimizer
from common.agents.machinery.update import Inference as Inference
from common.agents.machinery.update import Results as Results
from common.agents.machinery.update import Update as Update
from common.agents.machinery.update import UpdateConfig as UpdateConfig
from common.agents.network_agent import NetworkAgent as NetworkAgent
from common.agents.networks.normalization import NormalizeBatch as NormalizeBatch
from common.agents.noise import LaneNoise as LaneNoise
from common.agents.recurrent_agent import LaneMemory as LaneMemory

"""Networks"""
from common.agents.networks import AllowedActions as AllowedActions
from common.agents.networks import ConvNet as ConvNet
from common.agents.networks import Head as Head
from common.agents.networks import ImpalaCnn as ImpalaCnn
from common.agents.networks import Linear as Linear
from common.agents.networks import Mlp as Mlp
from common.agents.networks import NatureCnn as NatureCnn
from common.agents.networks.normalization import Normalizer as Normalizer
from common.agents.networks.normalization import build_normalizer as build_normalizer
from common.agents.recurrent_agent import Memory as Memory

"""Agents"""
from common.agents.awac import AWAC as AWAC
from common.agents.bc import BC as BC
from common.agents.c51 import C51 as C51
from common.agents.discrete_sac import DiscreteSAC as DiscreteSAC
from common.agents.dqn import DQN as DQN
from common.agents.impala import IMPALA as IMPALA
from common.agents.iql import IQL as IQL
from common.agents.iqn import IQN as IQN
from common.agents.ppo import PPO as PPO
from common.agents.qr_dqn import QRDQN as QRDQN
from common.agents.r2d2 import R2D2 as R2D2
from common.agents.recurrent_ppo import RecurrentPPO as RecurrentPPO
from common.agents.recurrent_sac import RecurrentSAC as RecurrentSAC
from common.agents.sac import SAC as SAC
from common.agents.td3 import TD3 as TD3

"""Checks"""
from crossborder.testing import ItemMemory as ItemMemory
from crossborder.testing import RowMemory as RowMemory
from crossborder.testing import check_agent as check_agent
from crossborder.testing import check_callback as check_callback
from crossborder.testing import check_env as check_env
from crossborder.testing import check_evaluator as check_evaluator
from crossborder.testing import check_learning as check_learning
from crossborder.testing import check_recorder as check_recorder
from crossborder.testing import check_replay_buffer as check_replay_buffer
from crossborder.testing import check_row_map as check_row_map
from crossborder.testing import check_step_processor as check_step_processor
from crossborder.testing import check_view as check_view
from crossborder.testing import items_of as items_of
from crossborder.testing import play as play
from crossborder.testing import rows_of as rows_of
from crossborder.testing import transitions as transitions
from crossborder.testing import transitions_of as transitions_of

"""Errors"""
from common.errors import AddressError as AddressError
from common.errors import AuthenticationError as AuthenticationError
from common.errors import BudgetExhaustedError as BudgetExhaustedError
from common.errors import CheckpointError as CheckpointError
from common.errors import ChildFailedError as ChildFailedError
from common.errors import ConfigError as ConfigError
from common.errors import CrossborderError as CrossborderError
from common.errors import DatasetError as DatasetError
from common.errors import DivergedError as DivergedError
from common.errors import EnvHungError as EnvHungError
from common.errors import HostUnreachableError as HostUnreachableError
from common.errors import LearnerUnreachableError as LearnerUnreachableError
from common.errors import PluginError as PluginError
from common.errors import ProtocolMismatchError as ProtocolMismatchError
from common.errors import RankLostError as RankLostError
from common.errors import RefusedError as RefusedError
from common.errors import RunDirectoryError as RunDirectoryError
from common.errors import SchemaMismatchError as SchemaMismatchError
from common.errors import StarvedError as StarvedError
from common.errors import TakenOverError as TakenOverError
