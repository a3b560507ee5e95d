"""A fresh process that goes on from states: JSON in, JSON out.

Run as `python -m tests.resume.going_on`; stdin has `{"recipe", "hands", "seed", "isolate",
"states"}`, stdout gets for each state what is left of its epoch, and the whole next one.
"""

import json
import sys

from tests.chains import Hands, build, outcome


def main():
    """Go on from each state in turn, in one run."""
    asked = json.load(sys.stdin)
    pipe = build(asked["recipe"], Hands.read(asked["hands"]))
    with pipe.start(seed=asked["seed"], isolate=asked["isolate"]) as run:
        parts = []
        for state in asked["states"]:
            run.load_state_dict(state)
            assert json.loads(json.dumps(run.state_dict())) == state
            parts.append([outcome(run), outcome(run)])
    json.dump(parts, sys.stdout)


if __name__ == "__main__":
    main()
