"""What each of two ranks does: take some batches, save with Accelerate, tell what it had."""

import json
import sys
from pathlib import Path


def main(folder):
    """Leave the epoch after one batch on rank 0, after two on rank 1."""
    from accelerate import Accelerator
    from torch import distributed

    from tests.resume_tools.training import from_page, some_batches

    accelerator = Accelerator(cpu=True)
    rank = accelerator.process_index
    had = []
    with some_batches(shard=()).start() as run:
        accelerator.register_for_checkpointing(from_page("AllRanks")(run))
        for _, batch_BF in zip(range(1 + rank), run, strict=False):
            had += batch_BF.tolist()
        accelerator.save_state(folder / "saved")
    (folder / f"rank_{rank}.json").write_text(json.dumps(had))
    distributed.destroy_process_group()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
