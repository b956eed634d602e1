"""Clients that read nothing for long, while much is said to them: their process lives on, and knows the newest when it looks."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import numpy as np
from serving import serve


def test_a_learner_that_does_not_look_for_longer_than_heartbeats_last_goes_on(tmp_path):
    """libzmq ended its process: a queue that is full, and a connection that is opened anew meanwhile, were too much (issue 3937)."""
    code = """
        import sys, numpy as np
        from memsvc_client import Learner, ZmqEndpoint, sockets
        sockets.HEARTBEAT_MS, sockets.SILENT_MS = 50, 200
        with Learner(ZmqEndpoint(sys.argv[1], shared=False), batch_size=4, timeout=20) as learner:
            learner.params(20)
            for _ in range(2):
                print("ready", flush=True)
                sys.stdin.readline()
                learner.update_priorities(learner.sample(20).keys, np.ones(4))
                print(learner.params(20).version, flush=True)
            for _ in range(1200):
                learner.update_priorities(np.ones(1, np.uint64), np.ones(1))
            learner.sample(20)
            print(learner.stats()["forgotten"], flush=True)
    """
    with serve("tcp", tmp_path) as served, served.actor() as actor, served.learner() as publisher:
        for i in range(20):
            actor.add(obs=np.zeros(3, np.float32), action=i, reward=0.0, priority=1.0)
        actor.end_episode(terminated=True)
        publisher.publish({"w": np.zeros(1)})
        command = [sys.executable, "-c", textwrap.dedent(code), served.where]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as child:
            assert child.stdin is not None
            assert child.stdout is not None
            for _ in range(2):
                assert child.stdout.readline() == "ready\n"
                for _ in range(1200):
                    version = publisher.publish({"w": np.zeros(1)})
                child.stdin.write("\n")
                child.stdin.flush()
                assert int(child.stdout.readline()) <= version
            assert child.stdout.readline() == "0\n"
        assert child.returncode == 0
