"""The meter on the emulated GPU: what a block saves, and accounts that add up to the byte."""
from __future__ import annotations

import json
from pathlib import Path

from conftest import PROGRAMS, Emulated

TABLE = Path(__file__).parents[1] / "data" / "saved_bytes_per_block.json"


def test_bytes_saved_per_block_equal_the_table(emulated: Emulated) -> None:
    rows = json.loads(TABLE.read_text())["rows"]
    found = emulated.run(PROGRAMS / "saved_per_block.py", str(TABLE))
    assert len(rows) == 63
    assert found == [row["saved_bytes"] for row in rows]


def test_owners_add_up_to_what_is_allocated_in_25_random_runs(emulated: Emulated) -> None:
    report = emulated.run(PROGRAMS / "meter_campaign.py", "0", "25")
    assert report == {"runs": 25, "failures": {}}


def test_four_instants_of_a_two_layer_model_by_hand(emulated: Emulated) -> None:
    """GPT-2: L = 2, h = 64, a = 4, v = 256, s = 32, b = 2, fp32, efficient attention."""
    parameters = 4 * 118_528        # 256 h + 32 h + 2 (12 h^2 + 13 h) + 2 h = 118,528
    constants = 8 * 32 + 2 * 8 * 64         # positions; tokens and targets
    # 64 s b h with the block's input; 4 a s b logsumexp; 16 s b statistics; random state
    block = 262_144 + 1_024 + 1_024 + 16
    # final norm: input, statistics; head: input, log-probabilities, total weight
    head = 16_384 + 512 + 16_384 + 65_536 + 4
    loss = 4
    found = emulated.run(PROGRAMS / "four_instants.py")
    assert found == {
        "forward": parameters + constants + 2 * block + head + loss,
        "backward": 2 * parameters + constants,
        "optimizer": 4 * parameters + constants,
        "zero grad": 3 * parameters + constants,
    }
