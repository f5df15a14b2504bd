"""crossborder from Python. One import offers all that users call, derive from and catch; ``__init__.pyi`` lists it.

    import crossborder

    run = crossborder.train("configs/cartpole.yaml", actors=2)
    policy = crossborder.load_policy(run.run_dir / "best")

A name's module is imported when the name is first used. So ``import crossborder`` takes a millisecond, which matters
because each command begins in this package.

Beside this door, the package has what a run needs only if it asks for it. Each room imports the core, and the core
imports none:

certificates    an authority of one's own, tokens          launching    a learner and its actors on several hosts by ssh
people          devices, taking over, demonstrations       rewards      rewards by a classifier of pictures
sweeps          many runs of one configuration             curves       learning curves of several runs
serving         acting services                            relaying     one fetch of a model for the actors behind it
policies        scoring and exporting saved policies       inspecting   what is wrong with a host, a run or a replay
testing         checks for parts that users write
"""


def __getattr__(name: str) -> object:
    from crossborder.door import find_public, public_names  # noqa: PLC0415 - a command does not use the door

    value = globals()[name] = [*public_names()] if name == "__all__" else find_public(name)
    return value


def __dir__() -> list[str]:
    from crossborder.door import public_names  # noqa: PLC0415 - a command does not use the door

    return sorted({*globals(), *public_names()})
