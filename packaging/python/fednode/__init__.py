"""Federated learning from peer to peer, from Python.

This package starts the program `fednode`, which came with it, and reads what it writes. It needs nothing but Python.

    import fednode

    run = fednode.swarm(own=["csv:a.csv,label=outcome", "csv:b.csv,label=outcome"])
    print(run.served, run.alone, run.interval)

    with run.model(1) as model:
        print(model([{"age": 58, "pain": None}]))

`swarm` and `simulate` run a whole federation on this machine and return a `Run`. `init`, `invite`, `join` and `Node` take part in
a real one. `load` makes a function of a model. What fails raises `Error`, with the line that says what to do.
"""
from .command import Error, Flag, program, run, version
from .model import Model, Prediction, load
from .node import Node, init, invite, join
from .runs import Run, simulate, swarm

__version__ = version()
__all__ = ["Error", "Flag", "Model", "Node", "Prediction", "Run", "init", "invite", "join", "load", "program", "run",
           "simulate", "swarm"]
